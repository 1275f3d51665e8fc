"""The lines of results/attention_mass.jsonl as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

NAMES = {
    "bounds_exact": "bounds 64, then exact 8 (`standard`)",
    "bounds_exact_stride4": "... every 4th row scored (`standard` in prefill)",
    "bounds_exact_relative": "... pruned at `relative` positions",
    "exact": "exact 8 alone",
    "bounds": "bounds 64 alone",
    "descent": "descent 256, 32, 8 (`paper-3k`)",
    "descent_narrow": "... at most 4 times the budget in any stage",
    "block_mean": "mean key of 64 tokens",
    "block_mean_8": "mean key of 8 tokens",
    "best_chunks_64": "best possible 64-token chunks",
    "best_chunks_8": "best possible 8-token chunks",
    "best_tokens": "best possible tokens",
}


class Lines:
    """Of each (kind, budget, method, ranking, age) its line, and what there is of each."""

    def __init__(self, lines: Sequence[dict]) -> None:
        self.share = next(line for line in lines if line["id"] == "mass_decode_middle_share")
        cases = [line for line in lines if "method" in line]
        self._lines = {self._key(line): line for line in cases}
        self.methods = list(dict.fromkeys((line["method"], line["ranking"]) for line in cases))
        self.budgets = sorted({line["budget_tokens"] for line in cases})
        self.ages = sorted({line["age_steps"] for line in cases})

    @staticmethod
    def _key(line: dict) -> tuple:
        return line["kind"], line["budget_tokens"], line["method"], line["ranking"], line["age_steps"]

    def of(self, kind: str, budget: int, method: tuple[str, str], age: int = 0) -> dict | None:
        return self._lines.get((kind, budget, *method, age))


def _value(line: dict | None) -> str:
    return "" if line is None else f"{line['value']:.1f} ± {line['half_interval_95']:.1f}"


def _difference(line: dict | None) -> str:
    """Bold where the interval does not hold 0."""
    if line is None:
        return ""
    low, high = line["difference_interval_95"]
    if low == high:
        return "-"
    text = f"{line['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _worst(line: dict | None) -> str:
    return "" if line is None else f"{line['worst_heads']:.1f}"


def _ranking(method: tuple[str, str]) -> str:
    return "" if method[0].startswith("best") else f"`{method[1]}`"


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(row) + " |"


def table(lines: Sequence[dict]) -> str:
    """What each method keeps: by age at the smallest budget, then fresh at every budget."""
    found = Lines(lines)
    small = found.budgets[0]
    later = found.ages[1:]
    by_age = [
        [
            NAMES[method[0]],
            _ranking(method),
            _value(found.of("prefill", small, method)),
            _difference(found.of("prefill", small, method)),
            _value(found.of("decode", small, method)),
            _difference(found.of("decode", small, method)),
            *(_value(found.of("decode", small, method, age)) for age in later),
            _worst(found.of("decode", small, method)),
        ]
        for method in found.methods
    ]
    budgets = [
        [
            NAMES[method[0]],
            _ranking(method),
            *(_value(found.of("prefill", budget, method)) for budget in found.budgets),
            *(_value(found.of("decode", budget, method)) for budget in found.budgets),
            *(_worst(found.of("decode", budget, method)) for budget in found.budgets),
        ]
        for method in found.methods
    ]
    setting = found.share["shapes"]
    return "\n".join(
        [
            f"Share of the middle's attention that a selection of {small} tokens keeps, in percent, with "
            f"95 % intervals ({setting}; the middle itself has {_value(found.share)} % of all attention). "
            "Differences are paired, from `bounds` then `exact` under `probability`; bold where their "
            "interval does not hold 0. Worst heads: the 5th percentile of the heads.",
            "",
            *_rows(
                ["method", "ranking", "prefill", "difference", "decode, fresh", "difference"]
                + [f"{age} steps old" for age in later]
                + ["worst heads"],
                by_age,
            ),
            "",
            "The same, fresh, by budget.",
            "",
            *_rows(
                ["method", "ranking"]
                + [f"prefill {budget}" for budget in found.budgets]
                + [f"decode {budget}" for budget in found.budgets]
                + [f"worst heads {budget}" for budget in found.budgets],
                budgets,
            ),
        ]
    )
