"""Words, merges, control tokens and streaming, on the tiny vocabulary."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiny_model import MERGES, TOKEN_TYPES, TOKENS

from longshore.runner import RunnerError, TextStream, Tokenizer
from longshore.runner.bpe import Merges, merge

NASTY = [
    "",
    " ",
    "  hello\n\n\thello  ",
    "don't WE'LL 's ''",
    "x123 4５6 ½²Ⅷ ١٢٣",
    "é e\u0301 ñ",
    "👩‍👩‍👧‍👦🇫🇷",
    "\u00a0\u3000\u2028\x85\x1c\ufeff\u200b",
    "\x00\x01\x7f\r\n\r",
    "日本語 ไทย हिन्दी مرحبا",
    "\U0010ffff𝟘𝐀",
    "<|im_end|> is text",
]


def tiny_tokenizer(pre: str = "smollm", **options: object) -> Tokenizer:
    return Tokenizer(TOKENS, TOKEN_TYPES, MERGES, pre, **options)  # type: ignore[arg-type]


def names(ids: Sequence[int]) -> list[str]:
    return [TOKENS[i] for i in ids]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_decode_gives_back_what_was_encoded(text: str, pre: str) -> None:
    tokenizer = tiny_tokenizer(pre)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decode_gives_back_random_unicode() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    tokenizer = tiny_tokenizer()
    for _ in range(500):
        points = [
            rng.choice([rng.randrange(0x300), rng.randrange(0xE000, 0x20000)]) for _ in range(12)
        ]
        text = "".join(map(chr, points))
        assert tokenizer.decode(tokenizer.encode(text)) == text, f"seed {seed}"


def test_merges_apply_in_rank_order() -> None:
    assert names(tiny_tokenizer().encode("hello hello hell")) == ["hello", "Ġhello", "Ġ", "hell"]


def test_a_run_of_spaces_leaves_its_last_to_the_word() -> None:
    # three spaces: two are a word of their own and merge, the third belongs to " hello"
    assert names(tiny_tokenizer().encode("   hello")) == ["ĠĠ", "Ġhello"]


def test_a_digit_takes_no_space_and_no_neighbour() -> None:
    assert names(tiny_tokenizer().encode("  12")) == ["ĠĠ", "1", "2"]


def test_characters_may_be_merged_from_bytes() -> None:
    assert names(tiny_tokenizer().encode("é")) == ["Ã©"]


def test_a_control_token_in_text_is_text() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("<|im_end|>")
    assert tokenizer.control("<|im_end|>") not in ids
    assert tokenizer.decode([*ids, tokenizer.control("<|im_end|>")]) == "<|im_end|><|im_end|>"


def test_a_byte_without_token_is_left_out() -> None:
    tokens = ["a", "b"]
    assert Tokenizer(tokens, [1, 1], [], "smollm").encode("a\x04b?") == [0, 1]


def test_stop_ids_are_the_metadatas_and_the_known_names() -> None:
    assert tiny_tokenizer(metadata_stops=[17]).stop_ids == {0, 2, 17}


def test_a_lone_surrogate_is_replaced() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_unknown_pre_tokenizer_is_refused() -> None:
    with pytest.raises(RunnerError, match="'qwen2' is not known; known are gpt-2, smollm"):
        tiny_tokenizer("qwen2")


def test_an_unknown_control_token_is_refused() -> None:
    with pytest.raises(RunnerError, match="no control token <|eot|>"):
        tiny_tokenizer().control("<|eot|>")
    with pytest.raises(RunnerError, match="no control token hello"):
        tiny_tokenizer().control("hello")


def naive_merge(symbols: Sequence[int], merges: Merges) -> list[int]:
    ids = list(symbols)
    while True:
        ranked = [
            (merges[pair][0], i) for i, pair in enumerate(zip(ids, ids[1:])) if pair in merges
        ]
        if not ranked:
            return ids
        _, i = min(ranked)
        ids[i : i + 2] = [merges[ids[i], ids[i + 1]][1]]


def test_merge_equals_the_naive_search() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for _ in range(300):
        merges: Merges = {}
        for rank in range(8):  # ids 0..3 are bytes, 4.. are merged
            pair = rng.randrange(4 + rank), rng.randrange(4 + rank)
            merges.setdefault(pair, (rank, 4 + rank))
        word = [rng.randrange(4) for _ in range(rng.randrange(30))]
        assert merge(word, merges) == naive_merge(word, merges), f"seed {seed}, word {word}"


def test_a_stream_never_shows_part_of_a_character() -> None:
    tokenizer = tiny_tokenizer()
    stream = TextStream(tokenizer)
    shown = [stream.push(i) for i in tokenizer.encode("a€👍b")]  # one token a byte
    assert shown == ["a", "", "", "€", "", "", "", "👍", "b"]
    assert stream.finish() == ""


def test_a_stream_that_ends_inside_a_character_says_so() -> None:
    tokenizer = tiny_tokenizer()
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in tokenizer.encode("€")[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"


def test_a_stream_replaces_bytes_that_are_not_utf8() -> None:
    tokenizer = tiny_tokenizer()
    broken = [*tokenizer.encode("€")[:2], *tokenizer.encode("hello")]
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, broken)) + stream.finish() == "\ufffdhello"
    assert tokenizer.decode(broken) == "\ufffdhello"
