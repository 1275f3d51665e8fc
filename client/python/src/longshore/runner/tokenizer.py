"""Byte-level BPE from a GGUF file's own tokens and merges."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

import regex

from longshore.runner.bpe import Merges, merge
from longshore.runner.errors import RunnerError
from longshore.runner.gguf_file import GgufFile

# How text is cut into words before merging, by tokenizer.ggml.pre. The alternatives together match
# any text. smollm cuts out each digit first and applies GPT-2's pattern to what lies between, so
# that for the look-ahead (a run of spaces leaves its last one to the next word) a digit counts as
# the end of the text.
_WORD_PATTERNS = {
    "gpt-2": r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "smollm": r"\p{N}|'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+",
}

# Values of tokenizer.ggml.token_type whose token is plain text instead of byte-level characters.
_CONTROL, _USER_DEFINED = 3, 4

# A token with one of these names ends an answer, besides the ones that the metadata names.
_STOP_NAMES = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_in = {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in.get(byte, chr(byte)) for byte in range(256)]


class Tokenizer:
    """Text to token ids and back. Ids are indices into `tokens`."""

    def __init__(
        self,
        tokens: Sequence[str],
        token_types: Sequence[int],
        merges: Sequence[str],
        pre: str,
        metadata_stops: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> None:
        """merges: "left right" in byte-level characters, the first wins.

        Raises RunnerError if `pre` is unknown.
        """
        if pre not in _WORD_PATTERNS:
            known = ", ".join(sorted(_WORD_PATTERNS))
            raise RunnerError(f"pre-tokenizer {pre!r} is not known; known are {known}")
        self._word = regex.compile(_WORD_PATTERNS[pre])
        self._ids = {token: i for i, token in enumerate(tokens)}
        self.control_ids = frozenset(
            i for i, kind in enumerate(token_types) if kind in (_CONTROL, _USER_DEFINED)
        )
        characters = byte_characters()
        byte_of = {character: byte for byte, character in enumerate(characters)}
        self._bytes = [
            token.encode() if i in self.control_ids else bytes(byte_of[c] for c in token)
            for i, token in enumerate(tokens)
        ]
        self._byte_ids = [self._ids.get(character) for character in characters]
        self._merges: Merges = {}
        for rank, pair in enumerate(merges):
            left, _, right = pair.partition(" ")
            self._merges[self._ids[left], self._ids[right]] = rank, self._ids[left + right]
        names = (self._ids[name] for name in _STOP_NAMES if name in self._ids)
        self.stop_ids = frozenset(metadata_stops) | (frozenset(names) & self.control_ids)
        self.chat_template = chat_template
        self._word_ids: dict[str, list[int]] = {}  # real text repeats its words

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """Raises RunnerError if the file's tokenizer is not byte-level BPE of a known kind."""
        kind = file.value("tokenizer.ggml.model", str)
        if kind != "gpt2":
            raise RunnerError(
                f"{file.path}: tokenizer {kind!r} is not known; only byte-level BPE is ('gpt2')"
            )
        tokens = file.value("tokenizer.ggml.tokens", list)
        stops = (
            file.value(f"tokenizer.ggml.{name}_token_id", int, -1) for name in ("eos", "eot", "eom")
        )
        return cls(
            tokens=tokens,
            token_types=file.value("tokenizer.ggml.token_type", list, [1] * len(tokens)),
            merges=file.value("tokenizer.ggml.merges", list),
            pre=file.value("tokenizer.ggml.pre", str, "gpt-2"),
            metadata_stops=[token for token in stops if token >= 0],
            chat_template=file.value("tokenizer.chat_template", str, None),
        )

    def __len__(self) -> int:
        return len(self._bytes)

    def control(self, name: str) -> int:
        """The id of a control token such as <|im_end|>. Raises RunnerError if there is none."""
        token = self._ids.get(name)
        if token is None or token not in self.control_ids:
            raise RunnerError(f"the vocabulary has no control token {name}")
        return token

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: the name of a control token in it is text like any other.

        A byte for which the vocabulary has no token is left out, as llama.cpp does; in SmolLM2's
        those are six control characters (0x04, 0x06, 0x13, 0x14, 0x16, 0x1d) and the first bytes of
        planes that hold no characters.
        """
        ids: list[int] = []
        for word in self._word.findall(text):
            known = self._word_ids.get(word)
            if known is None:
                known = self._word_ids[word] = self._encode_word(word)
            ids += known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        byte_ids = (self._byte_ids[byte] for byte in word.encode("utf-8", errors="replace"))
        return merge([i for i in byte_ids if i is not None], self._merges)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character."""
        return self._bytes[token]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens by name. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", errors="replace")


class TextStream:
    """Turns tokens into text as they come, never showing a part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that has become certain with this token; may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the tokens end inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
