"""How a daemon words a refusal: the field, then what is wrong with it."""

from __future__ import annotations

from typing import NoReturn

from longshore.errors import InvalidArgument


def refuse(field: str, what: str) -> NoReturn:
    """Raises InvalidArgument as the daemon's answer INVALID_FIELD about `field` does."""
    raise InvalidArgument(f"{field} {what}", "INVALID_FIELD", field)


def number(value: float) -> str:
    """A floating-point number as the daemon prints it: at most six digits."""
    return f"{value:.6g}"
