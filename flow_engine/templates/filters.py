"""The filters and tests that templates may use; no other exists.

They mean what Jinja's of the same name mean, with three differences: `default` also replaces null, since
a memory without a value is null; what is absent passes through the other filters unchanged, so that its
marker stays visible; and a value that a filter cannot take becomes a marker, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jinja2.filters import do_title

from flow_engine.templates.frame import Budget
from flow_engine.templates.values import (
    NOTHING,
    Absent,
    is_integer,
    is_list,
    is_number,
    is_object,
    joined,
    member,
    text,
    truth,
)

FilterCall = Callable[[object, tuple[object, ...], Budget], object]
"""Value, arguments (as many as the filter has parameters), budget → value."""

_LONGEST_NUMBER = 64


@dataclass(frozen=True, slots=True)
class Filter:
    """`parameters` in order, with their defaults."""

    call: FilterCall
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])
    takes_absent: bool = False


def _refusal(name: str) -> Absent:
    return Absent(f"[{name} cannot take this value]")


def _default(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    fallback, when_false = arguments
    missing = value is None or isinstance(value, Absent)
    return fallback if missing or (truth(when_false) and not truth(value)) else value


def _on_text(change: Callable[[str], str], weight: int = 2) -> FilterCall:
    def call(value: object, _: tuple[object, ...], budget: Budget) -> object:
        plain = text(value, budget)
        budget.charge_text(len(plain), weight)
        return change(plain)

    return call


def _unchanged(plain: str) -> str:
    return plain


def _join(value: object, arguments: tuple[object, ...], budget: Budget) -> object:
    separator = text(arguments[0], budget)
    if is_list(value):
        return joined(value, separator, budget)
    return value if value is None or isinstance(value, str) else _refusal("join")


def _length(value: object, _: tuple[object, ...], __: Budget) -> object:
    if value is None:
        return 0
    return len(value) if isinstance(value, str) or is_list(value) or is_object(value) else _refusal("length")


def _at(position: int, name: str) -> FilterCall:
    def call(value: object, _: tuple[object, ...], __: Budget) -> object:
        if value is None or isinstance(value, str) or is_list(value):
            return member(value, position, NOTHING)
        return _refusal(name)

    return call


def _replace(value: object, arguments: tuple[object, ...], budget: Budget) -> object:
    plain, old, new = text(value, budget), text(arguments[0], budget), text(arguments[1], budget)
    budget.charge_text(len(plain), weight=2)
    budget.charge_text(max(0, len(plain) + plain.count(old) * (len(new) - len(old))))
    return plain.replace(old, new)


def _round(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    digits = arguments[0]
    if not is_number(value) or not is_integer(digits):
        return _refusal("round")
    # Far outside this range Python computes a power of ten of that size.
    return round(value, min(max(digits, 0), 15))


def _int(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    number = _number(value)
    try:
        return arguments[0] if number is None else int(number)
    except (OverflowError, ValueError):  # an infinity, or not a number
        return arguments[0]


def _float(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    number = _number(value)
    return arguments[0] if number is None else float(number)


def _number(value: object) -> int | float | None:
    if is_number(value) or isinstance(value, bool):
        return value
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return None
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return None


FILTERS: Mapping[str, Filter] = {
    "default": Filter(_default, {"default_value": "", "boolean": False}, takes_absent=True),
    "first": Filter(_at(0, "first")),
    "float": Filter(_float, {"default": 0.0}),
    "int": Filter(_int, {"default": 0}),
    "join": Filter(_join, {"d": ""}),
    "last": Filter(_at(-1, "last")),
    "length": Filter(_length),
    "lower": Filter(_on_text(str.lower)),
    "replace": Filter(_replace, {"old": "", "new": ""}),
    "round": Filter(_round, {"precision": 0}),
    "string": Filter(_on_text(_unchanged)),
    "title": Filter(_on_text(do_title, weight=16)),
    "trim": Filter(_on_text(str.strip)),
    "upper": Filter(_on_text(str.upper)),
}

TESTS: Mapping[str, Callable[[object], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "defined": lambda value: not isinstance(value, Absent),
    "mapping": is_object,
    "none": lambda value: value is None,
    "number": lambda value: is_number(value) or isinstance(value, bool),
    "sequence": is_list,
    "string": lambda value: isinstance(value, str),
    "undefined": lambda value: isinstance(value, Absent),
}
