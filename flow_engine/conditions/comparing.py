"""The values that conditions compare, and how: total functions over JSON, dates, moments and durations.

The rules stand at the top of `evaluation.py`.
"""

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Final, TypeAlias

from flow_engine.json_values import same_json
from flow_engine.values import JsonValue

Truth: TypeAlias = bool | None
"""None is unknown."""
Value: TypeAlias = JsonValue | date | timedelta
"""What operands become: JSON, a date, a moment, a duration; None where there is nothing."""

_ORDERS: Final[Mapping[str, Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def truth_of(value: Value) -> Truth:
    """Of a value that stands alone."""
    return value if isinstance(value, bool) else None


def time_of(text: object, zone: tzinfo) -> date | None:
    """An ISO 8601 text as a date or an aware moment, in `zone` where it has no offset; None for any other."""
    if not isinstance(text, str):
        return None
    written = text.strip().upper()
    try:
        if len(written) <= len("2026-01-31"):
            return date.fromisoformat(written)
        moment = datetime.fromisoformat(written)
        return moment if moment.tzinfo else moment.replace(tzinfo=zone)
    except ValueError:
        return None


def _day(moment: date, zone: tzinfo) -> date:
    return moment.astimezone(zone).date() if isinstance(moment, datetime) else moment


def added(left: Value, sign: int, right: Value, zone: tzinfo) -> Value:
    """None for what cannot be added, and beyond the years 1 to 9999."""
    try:
        if isinstance(left, timedelta) and isinstance(right, timedelta):
            return left + sign * right
        if isinstance(left, timedelta) and isinstance(right, date) and sign > 0:
            left, right = right, left
        if isinstance(left, date) and isinstance(right, timedelta):
            if isinstance(left, datetime):
                return (left.astimezone(UTC) + sign * right).astimezone(left.tzinfo)
            if right % timedelta(days=1):
                return datetime.combine(left, time(), zone).astimezone(UTC) + sign * right
            return left + sign * right
        if isinstance(left, date) and isinstance(right, date) and sign < 0:
            if isinstance(left, datetime) and isinstance(right, datetime):
                return left - right
            return _day(left, zone) - _day(right, zone)
    except (OverflowError, ValueError):
        pass
    return None


def identity(value: Value, zone: tzinfo) -> tuple[str, object]:
    """Its kind and what it is of that, a moment being its day. `compare` tells whether two are equal where
    the kinds are the same, and so do these, but for two moments and for lists and objects."""
    if isinstance(value, bool | timedelta | str):
        return type(value).__name__, value
    if isinstance(value, date):
        return "time", _day(value, zone)
    return ("number", value) if isinstance(value, int | float) else (type(value).__name__, None)


def compare(left: Value, sign: str, right: Value, zone: tzinfo) -> Truth:
    """By the rules at the top of the file; None for values that cannot be compared."""
    if isinstance(left, date) and isinstance(right, date):
        try:
            if not (isinstance(left, datetime) and isinstance(right, datetime)):
                left, right = _day(left, zone), _day(right, zone)
            if sign in ("==", "!="):
                return (left == right) == (sign == "==")
            return _ORDERS[sign](left, right)
        except (OverflowError, ValueError):  # a moment at the edge of the calendar, in another zone
            return None
    if isinstance(left, timedelta) and isinstance(right, timedelta):
        ordered = True
    elif isinstance(left, bool) or isinstance(right, bool):
        if not (isinstance(left, bool) and isinstance(right, bool)):
            return None
        ordered = False
    else:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        ordered = numbers or (isinstance(left, str) and isinstance(right, str))
        if not ordered and not (
            (isinstance(left, list) and isinstance(right, list))
            or (isinstance(left, dict) and isinstance(right, dict))
        ):
            return None
    if sign in ("==", "!="):
        return same_json(left, right) == (sign == "==")
    before: Callable[[Any, Any], bool] = _ORDERS[sign]
    return before(left, right) if ordered else None
