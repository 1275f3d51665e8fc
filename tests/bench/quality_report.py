"""From finished units to the lines of results/quality.jsonl: shares, means, differences and their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from intervals import BLOCK_TOKENS, Interval, block_bootstrap, sign_test, student, wilson
from unit_log import UnitLog
from variants import METHODS, STYLE_TOKENS, STYLES, TEXT_TOKENS, THREE_DEPTHS, Variant

# Names of the tables of the report, and what is in them.
TABLES = {"methods": METHODS, "styles": STYLES}
TRAINED_TOKENS = 8192
LENGTHS = {"methods": (8192, 12288, 16384), "styles": (STYLE_TOKENS,)}
STYLE_PLACES = {(0, depth) for depth in THREE_DEPTHS}
# For each table: the text's length, and the parts of it that are told apart.
TEXTS = {
    "methods": (TEXT_TOKENS, [(0, TEXT_TOKENS), (0, TRAINED_TOKENS), (TRAINED_TOKENS, TEXT_TOKENS)]),
    "styles": (STYLE_TOKENS, [(0, STYLE_TOKENS), (0, TRAINED_TOKENS), (TRAINED_TOKENS, STYLE_TOKENS)]),
}
Floats = npt.NDArray[np.float64]


def passkey_unit(variant: Variant, length: int, turn: int, depth: float) -> str:
    return f"{passkey_units(variant, length)}{turn}/{depth}"


def passkey_units(variant: Variant, length: int) -> str:
    """What all such names begin with."""
    return f"passkey/{length}/{variant.measured_id}/"


def perplexity_unit(variant: Variant, length: int) -> str:
    return f"perplexity/{length}/{variant.measured_id}"


@dataclass(frozen=True)
class Source:
    """What the lines say of where they come from."""

    log: UnitLog
    model: str
    text: str


def passkeys(log: UnitLog, table: str, variant: Variant, length: int) -> dict[tuple[int, float], dict]:
    """Of each round and depth, the answer. Of a baseline of styles, those that styles were asked, too."""
    prefix = passkey_units(variant, length)
    found = {}
    for unit in log.units(prefix):
        turn, depth = unit["unit"].removeprefix(prefix).split("/")
        place = int(turn), float(depth)
        if table == "methods" or place in STYLE_PLACES:
            found[place] = unit
    return found


def log_probs(log: UnitLog, variant: Variant, length: int) -> tuple[Floats, dict] | None:
    """ln p of each token of the text but the first. A longer text begins with the same ones."""
    for measured in (STYLE_TOKENS, TEXT_TOKENS):
        unit = log.get(perplexity_unit(variant, measured))
        if unit is not None and measured >= length:
            return np.array(unit["log_probs"][: length - 1]), unit
    return None


def report(source: Source) -> Iterator[dict]:
    by_name = {variant.name: variant for variant in METHODS}
    for table, variants in TABLES.items():
        for variant in variants:
            baseline = by_name[variant.baseline]
            for length in LENGTHS[table]:
                yield from passkey_lines(source, table, variant, baseline, length)
            yield from perplexity_lines(source, table, variant, baseline)


def passkey_lines(
    source: Source, table: str, variant: Variant, baseline: Variant, length: int
) -> Iterator[dict]:
    found = passkeys(source.log, table, variant, length)
    if not found:
        return
    others = passkeys(source.log, table, baseline, length)
    shared = sorted(found.keys() & others.keys())
    right = [unit["right"] for unit in found.values()]
    about = {
        "table": table,
        "variant": variant.name,
        "tokens": length,
        "answers": len(found),
        "shapes": f"{source.model}, {length} tokens, {len(found)} answers, f32 KV, dense_below_tokens 0",
        "commit": commits(found.values()),
    }
    depths = sorted({depth for _, depth in found})
    line = {
        "id": f"quality_passkey_{length // 1024}k_{variant.id}",
        "value": sum(right) / len(right),
        "unit": "share of answers right",
        "interval_95": rounded(wilson(sum(right), len(right))),
        "right": sum(right),
        "by_depth": {
            str(depth): [unit["right"] for (_, at), unit in sorted(found.items()) if at == depth]
            for depth in depths
        },
        **about,
    }
    log_p = {place: sum(unit["key_log_probs"]) for place, unit in found.items()}
    likely = {
        "id": f"quality_key_log_prob_{length // 1024}k_{variant.id}",
        "value": float(np.mean(list(log_p.values()))),
        "unit": "ln p of the right key",
        "interval_95": rounded(student(list(log_p.values()))),
        # Without the first token: a model that begins another sentence may know the key all the same.
        "once_begun": float(np.mean([sum(unit["key_log_probs"][1:]) for unit in found.values()])),
        **about,
    }
    if not variant.is_baseline and shared:
        pairs = [(found[place]["right"], others[place]["right"]) for place in shared]
        line["versus"] = {
            "baseline": baseline.name,
            "pairs": len(pairs),
            "only_this_right": sum(this and not other for this, other in pairs),
            "only_baseline_right": sum(other and not this for this, other in pairs),
        }
        line["versus"]["p"] = sign_test(
            line["versus"]["only_this_right"], line["versus"]["only_baseline_right"]
        )
        differences = [log_p[place] - sum(others[place]["key_log_probs"]) for place in shared]
        likely["versus"] = {
            "baseline": baseline.name,
            "pairs": len(pairs),
            "difference": float(np.mean(differences)),
            "interval_95": rounded(student(differences)),
        }
    yield line
    yield likely


def perplexity_lines(source: Source, table: str, variant: Variant, baseline: Variant) -> Iterator[dict]:
    length, parts = TEXTS[table]
    measured, compared = log_probs(source.log, variant, length), log_probs(source.log, baseline, length)
    if measured is None:
        return
    values, unit = measured
    for first, end in parts:
        # Element i is about token i + 1.
        part = slice(max(0, first - 1), end - 1)
        low, high = block_bootstrap(values[part])
        line = {
            "id": f"quality_perplexity_{first // 1024}_{end // 1024}k_{variant.id}",
            "value": float(np.exp(-values[part].mean())),
            "unit": "perplexity",
            "interval_95": rounded((np.exp(-high), np.exp(-low))),
            "table": table,
            "variant": variant.name,
            "tokens": end,
            "from_token": first,
            "shapes": f"{source.model}, tokens {first} to {end} of {source.text}, f32 KV, "
            f"dense_below_tokens 0, blocks of {BLOCK_TOKENS} tokens",
            "commit": unit["commit"],
        }
        if not variant.is_baseline and compared is not None:
            differences = values[part] - compared[0][part]
            line["versus"] = {
                "baseline": baseline.name,
                "difference": float(differences.mean()),  # of mean ln p: above 0 is better
                "interval_95": rounded(block_bootstrap(differences)),
            }
        yield line


def verdict(interval: Interval | Sequence[float] | None) -> str:
    """What a 95 % interval of a difference says, more being better."""
    if interval is None:
        return "one pair"
    low, high = interval
    return "better" if low > 0 else "worse" if high < 0 else "not told apart"


def rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(float(bound), 6) for bound in interval]


def commits(units) -> str:
    return ", ".join(sorted({unit["commit"] for unit in units}))
