"""One sequence of a model: prefill, decode, generate, score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longshore.attention import Attention, Floats
from longshore.runner.local_attention import LocalAttention
from longshore.runner.model import Model, decoder_layer, load_model
from longshore.runner.tokenizer import Tokenizer

LOGIT_ROWS = 256  # logits of this many rows at a time: 50 MB with a vocabulary of 49152


class Llama:
    """A model, an attention and the position they have reached. Not thread-safe.

    with Llama.load("model.gguf", max_tokens=4096) as llama:
        logits = llama.prefill(llama.tokenizer.encode("Once upon a time"))
        print(llama.tokenizer.decode(llama.generate(logits, max_tokens=50)))
    """

    def __init__(self, model: Model, attention: Attention, piece: int = 1024) -> None:
        """piece: prompt rows that go through the layers together, a multiple of 64."""
        if piece <= 0 or piece % 64 != 0:
            raise ValueError(f"piece {piece} is not a positive multiple of 64")
        self.model = model
        self.attention = attention
        self.piece = piece
        self.position = 0  # tokens that the attention holds

    @classmethod
    def load(cls, path: str | Path, max_tokens: int = 8192) -> Llama:
        """Reads a GGUF and opens a LocalAttention. Raises RunnerError for what cannot be run."""
        model = load_model(path)
        return cls(model, LocalAttention(model.shape, max_tokens))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def prefill(
        self, tokens: Sequence[int], on_piece: Callable[[int], None] | None = None
    ) -> Floats:
        """Appends tokens and returns the logits [vocabulary] after the last one.

        on_piece is called with the number of tokens done after each piece.
        """
        if not tokens:
            raise ValueError("nothing to prefill: no tokens")
        done = 0
        for x in self._pieces(tokens):
            done += len(x)
            if on_piece is not None:
                on_piece(done)
        return self.model.logits(x[-1:])[0]

    def prefill_logits(self, tokens: Sequence[int]) -> Iterator[Floats]:
        """Appends tokens; yields the logits after every one, in blocks of [rows, vocabulary]."""
        for x in self._pieces(tokens):
            for start in range(0, len(x), LOGIT_ROWS):
                yield self.model.logits(x[start : start + LOGIT_ROWS])

    def log_probs(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        """Appends tokens; log p(tokens[i + 1] | everything up to tokens[i]): [len(tokens) - 1].

        Perplexity is exp(-mean).
        """
        targets = np.asarray(tokens[1:])
        result = np.empty(len(targets))
        start = 0
        for logits in self.prefill_logits(tokens):
            block = targets[start : start + len(logits)]
            rows = logits[: len(block)].astype(np.float64)  # after the last token nothing follows
            rows -= rows.max(axis=1, keepdims=True)
            log_total = np.log(np.exp(rows).sum(axis=1))
            result[start : start + len(block)] = rows[np.arange(len(block)), block] - log_total
            start += len(block)
        return result

    def decode(self, token: int) -> Floats:
        """Appends one token and returns the logits [vocabulary] after it."""
        return self.model.logits(self._forward([token], self.attention.decode))[0]

    def generate(
        self, logits: Floats, max_tokens: int, temperature: float = 0.0, seed: int | None = None
    ) -> Iterator[int]:
        """Yields up to max_tokens tokens from `logits` (of prefill or decode) on.

        A stop token ends it and is not yielded.
        temperature 0 takes the likeliest token. The last token yielded has not been appended.
        """
        rng = np.random.default_rng(seed)
        for count in range(1, max_tokens + 1):
            token = pick_token(logits, temperature, rng)
            if token in self.tokenizer.stop_ids:
                return
            yield token
            if count < max_tokens:
                logits = self.decode(token)

    def truncate(self, position: int) -> None:
        """Forgets the tokens at `position` and after it; the prefix can be used again."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot truncate {self.position} tokens to {position}")
        self.attention.truncate(position)
        self.position = position

    def close(self) -> None:
        """Closes the attention."""
        self.attention.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pieces(self, tokens: Sequence[int]) -> Iterator[Floats]:
        """Runs tokens through the layers in pieces; yields the last layer's x [rows, hidden]."""
        start = 0
        while start < len(tokens):
            # Cut at absolute multiples of `piece`: there a cut does not change the daemon's result.
            rows = self.piece - self.position % self.piece
            yield self._forward(tokens[start : start + rows], self.attention.prefill)
            start += rows

    def _forward(
        self,
        tokens: Sequence[int],
        attention: Callable[[int, int, Floats, Floats, Floats], Floats],
    ) -> Floats:
        """tokens -> the last layer's x [rows, hidden]; attention is its prefill or its decode."""
        model, position = self.model, self.position
        x = model.embedding[np.asarray(tokens)]
        for index, layer in enumerate(model.layers):

            def attend(q: Floats, k: Floats, v: Floats, index: int = index) -> Floats:
                return attention(index, position, q, k, v)

            x = decoder_layer(x, layer, model.shape, model.norm_epsilon, attend)
        self.position += len(tokens)
        return x


def pick_token(logits: Floats, temperature: float, rng: np.random.Generator) -> int:
    """Samples softmax(logits / temperature); the likeliest at 0. logits [vocabulary]."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
