"""Presets and limits as the engine has them: tests/service/policy_data_test.cc writes data/."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from google.protobuf import text_format

from longshore._proto.longshore.v1.policy_pb2 import AttentionPolicy
from longshore.policy.refusal import refuse

_DATA = files("longshore.policy") / "data"
_ENGINE = json.loads((_DATA / "engine.json").read_text())

MAX_PAGE_BYTES: int = _ENGINE["max_page_bytes"]  # a page of the pool lies in one slab
LAYER_STATE_BYTES: int = _ENGINE["layer_state_bytes"]  # what the engine remembers of a layer

PRESETS: tuple[str, ...] = tuple(_ENGINE["presets"])


@dataclass(frozen=True)
class SessionLimits:
    """What one session may ask of a daemon.

    max_tokens_per_session  of any layer
    max_rows_per_prefill    of a call: a sliding-window layer keeps room for two
    max_table_bytes         rotary tables, page ids and masks
    max_score_bytes         of one stage of one query block
    """

    max_tokens_per_session: int
    max_rows_per_prefill: int
    max_table_bytes: int
    max_score_bytes: int


# Of a daemon whose operator has set no others.
DEFAULT_LIMITS = SessionLimits(
    max_tokens_per_session=_ENGINE["max_tokens_per_session"],
    max_rows_per_prefill=_ENGINE["max_rows_per_prefill"],
    max_table_bytes=_ENGINE["max_table_bytes"],
    max_score_bytes=_ENGINE["max_score_bytes"],
)


def preset(name: str) -> AttentionPolicy:
    """A preset in full, the caller's own. Raises InvalidArgument, which lists the names."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        written = name.encode(errors="surrogateescape")[:64]  # a shell's bytes may be no UTF-8
        refuse("policy.preset", f'"{_c_escape(written)}" is not one of {known}')
    return text_format.Parse(preset_text(name), AttentionPolicy())


def preset_text(name: str) -> str:
    """The protobuf text format of one of PRESETS, with its comments."""
    return (_DATA / f"{name}.textproto").read_text()


_ESCAPES = {ord(char): "\\" + letter for char, letter in zip("\n\r\t\"'\\", "nrt\"'\\")}


def _c_escape(text: bytes) -> str:
    r"""As the daemon quotes what a caller wrote: \n \r \t \" \' \\, and \x.. for what is no ASCII.

    A hexadecimal digit behind a \x.. would be read as a part of it, so that it becomes one, too.
    """
    escaped, after_hex = "", False
    for byte in text:
        hexadecimal = byte not in _ESCAPES and (
            not 32 <= byte < 127 or (after_hex and chr(byte) in "0123456789abcdefABCDEF")
        )
        escaped += f"\\x{byte:02x}" if hexadecimal else _ESCAPES.get(byte, chr(byte))
        after_hex = hexadecimal
    return escaped
