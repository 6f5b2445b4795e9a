"""Numbers of a JSON text that a float would change: readers make the nearest float of them without a word.

Every decimal of at most 15 significant digits is some float's own, but for the smallest: only what is longer,
or has an exponent below -99, is looked at one by one.
"""

import json
from decimal import Decimal, InvalidOperation

LONGEST_NUMBER = 400
"""Characters of a number that is read at all where a float is not its own."""

_SHAPES = bytes(
    b"0"[0] if byte in b"0123456789." else b"e"[0] if byte in b"eE" else byte if byte in b"-" else b" "[0]
    for byte in range(256)
)
_MANY_DIGITS, _SMALL = b"0" * 16, b"e-000"
_DIGITS_AS_ZEROS = bytes(b"0"[0] if byte in b"0123456789" else b" "[0] for byte in range(256))
_LEAST_DIGITS_BEYOND = b"0" * 19


class InexactNumber(float):
    """The float nearest to a number that none equals: no value of a variable."""


def read_decimal(text: str) -> float:
    """What a JSON number with a fraction or an exponent spells; an `InexactNumber` where no float is that."""
    number = float(text)
    return number if _is_kept(text, number) else InexactNumber(number)


def read_exactly(body: bytes) -> object | None:
    """A JSON text that was read already, with an `InexactNumber` for each number that a float would change.
    None where there can be none of these: nearly always."""
    shapes = body.translate(_SHAPES)  # ten times as fast as a pattern
    if _MANY_DIGITS not in shapes and _SMALL not in shapes:
        return None
    return json.loads(body, parse_float=read_decimal)


def may_exceed_64_bits(body: bytes) -> bool:
    """Whether a JSON text may hold an integer beyond 64 bits."""
    return _LEAST_DIGITS_BEYOND in body.translate(_DIGITS_AS_ZEROS)  # ten times as fast as a pattern


def _is_kept(text: str, number: float) -> bool:
    try:
        return len(text) <= LONGEST_NUMBER and Decimal(text) == Decimal(repr(number))
    except InvalidOperation:  # an exponent of twenty digits
        return False
