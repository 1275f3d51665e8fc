"""A runner's attention, computed by a daemon."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from longshore.attention import Floats
from longshore.client import Client, connect
from longshore.connection import default_target
from longshore.dtypes import DType
from longshore.errors import Error
from longshore.model_shape import ModelShape
from longshore.policy import AttentionPolicy
from longshore.runner.errors import RunnerError
from longshore.session import Session

MAX_NAME_BYTES = 64  # of a session's label


class DaemonAttention:
    """An `Attention` whose keys and values are a session in a daemon.

    Raises RunnerError for whatever goes wrong there.
    """

    def __init__(self, session: Session, client: Client | None = None) -> None:
        """Owns the session, and the client if one is given."""
        self._session = session
        self._owned = ExitStack()
        if client is not None:
            self._owned.enter_context(client)
        self._owned.enter_context(session)

    @classmethod
    def connect(
        cls,
        shape: ModelShape,
        max_tokens: int,
        *,
        target: str | None = None,
        policy: str | AttentionPolicy = "standard",
        dense_below_tokens: int | None = None,
        kv_dtype: DType = DType.F32,
        name: str = "",
    ) -> DaemonAttention:
        """Opens a session at the daemon at `target`; see Client.open_session for the arguments."""
        with _as_runner_errors(), ExitStack() as undo:
            client = undo.enter_context(connect(target))
            session = client.open_session(
                replace(shape, kv_dtype=kv_dtype),
                policy,
                max_tokens=max_tokens,
                name=name,
                dense_below_tokens=dense_below_tokens,
            )
            undo.pop_all()
            return cls(session, client)

    @property
    def session(self) -> Session:
        return self._session

    def prefill(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`."""
        self._check(layer, position)
        with _as_runner_errors():
            return self._session.prefill(layer, q, k, v, position)

    def decode(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`."""
        self._check(layer, position)
        with _as_runner_errors():
            return self._session.decode(layer, q, k, v, position)

    def truncate(self, position: int) -> None:
        """See `Attention`. Past the end there is nothing to forget."""
        with _as_runner_errors():
            longest = max(self._session.describe().layer_tokens)
            if position < longest:
                self._session.truncate(position)

    def close(self) -> None:
        """See `Attention`."""
        with _as_runner_errors():
            self._owned.close()

    def _check(self, layer: int, position: int) -> None:
        tokens = self._session.tokens(layer)
        if position != tokens:
            raise ValueError(f"layer {layer} holds {tokens} tokens, got position {position}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command line that attends through a daemon."""
    add = parser.add_argument_group("with --attention daemon").add_argument
    add(
        "--target",
        default=default_target(),
        help="where longshored listens, unix:/path or host:port (default: %(default)s)",
    )
    add(
        "--policy",
        default="standard",
        metavar="PRESET",
        help="what a query attends to: standard, dense, streaming, ... (default: %(default)s)",
    )
    add(
        "--dense-below",
        type=int,
        metavar="N",
        help="contexts shorter than this are attended whole, 0: none (default: the preset's)",
    )
    add(
        "--max-tokens-context",
        type=int,
        metavar="N",
        help="tokens that the session has room for (default: prompt and longest answer)",
    )
    add(
        "--kv-dtype",
        choices=[dtype.value for dtype in DType],
        default=DType.F32.value,
        help="type in which keys and values are kept (default: %(default)s)",
    )


def from_arguments(
    options: argparse.Namespace, shape: ModelShape, max_tokens: int
) -> DaemonAttention:
    """The attention that the options of add_arguments() name.

    It has room for max_tokens unless they say otherwise.
    """
    return DaemonAttention.connect(
        shape,
        max_tokens if options.max_tokens_context is None else options.max_tokens_context,
        target=options.target,
        policy=options.policy,
        dense_below_tokens=options.dense_below,
        kv_dtype=DType(options.kv_dtype),
        name=options.model.stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore"),
    )


@contextmanager
def _as_runner_errors() -> Iterator[None]:
    try:
        yield
    except Error as error:
        raise RunnerError(str(error)) from error
