"""What template expressions evaluate to, and all that can be done with it: operators, filters, tests.

1. Values are JSON: text, numbers, booleans, null, lists, objects. Objects are looked into by key, lists
   and texts by position; no Python attribute is ever read.
2. What does not exist is an `Absent`: false in conditions, equal to nothing, visible when written. Its
   marker names the place in the template and never a value.
3. No operation raises, whatever its arguments; each pays the budget before it works.
4. Filters and tests mean what Jinja's of the same name mean, with three differences: `default` also
   replaces null, since a memory without a value is null; what is absent passes through the other filters
   unchanged, so that its marker stays visible; and a value that a filter cannot take becomes a marker.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from jinja2.filters import do_title

from flow_engine.templates.frame import Budget

_MAX_NESTING = 64
_ELEMENTS_A_STEP = 16
_MAX_INT_BITS = 256
"""Larger integers cannot all be turned into floats or text; no JSON reader in use yields them."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that is not there. `marker` is what the output shows for it, possibly nothing."""

    marker: str


NOTHING = Absent("")


def unknown(label: str) -> Absent:
    """The marker of an unknown name, `[unknown: label]`."""
    return Absent(f"[unknown: {label}]")


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


def is_object(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, float):
        return True
    return is_integer(value) and value.bit_length() <= _MAX_INT_BITS


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def truth(value: object) -> bool:
    return not isinstance(value, Absent) and bool(value)


def text(value: object, budget: Budget) -> str:
    """Text as it is, nothing for null, the marker of what is absent, JSON for the rest."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Absent):
        budget.met_absent = True
        return value.marker
    writer = _JsonWriter(budget)
    writer.add(value, 0)
    return "".join(writer.chunks)


class _JsonWriter:
    """JSON in pieces, so that a huge value is cut when the budget ends and not after it is done."""

    __slots__ = ("budget", "chunks", "length")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.chunks: list[str] = []
        self.length = 0

    def add(self, value: object, depth: int) -> None:
        if depth > _MAX_NESTING:
            self._put('"[nested too deep]"')
        elif is_object(value):
            self._put("{")
            for index, key in enumerate(value):
                self._put(", " if index else "")
                self._put(_json_text(str(key)))
                self._put(": ")
                self.add(value[key], depth + 1)
            self._put("}")
        elif is_list(value):
            self._put("[")
            for index, item in enumerate(value):
                self._put(", " if index else "")
                self.add(item, depth + 1)
            self._put("]")
        elif isinstance(value, str):
            self.budget.charge_text(len(value))
            self._put(_json_text(value))
        elif isinstance(value, Absent):
            self._put(_json_text(value.marker))
        else:
            is_scalar = value is None or isinstance(value, bool) or is_number(value)
            self._put(json.dumps(value) if is_scalar else '"[not JSON]"')

    def _put(self, chunk: str) -> None:
        self.length += len(chunk)
        self.budget.charge_text(self.length, weight=0)
        self.chunks.append(chunk)


def _json_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def member(base: object, key: object, absent: object) -> object:
    """`base[key]` for objects by text, for lists and texts by position, else `absent`."""
    if is_object(base):
        return base[key] if isinstance(key, str) and key in base else absent
    if (is_list(base) or isinstance(base, str)) and is_integer(key) and -len(base) <= key < len(base):
        return base[key]
    return absent


def section(base: object, bounds: tuple[object, object, object], absent: object, budget: Budget) -> object:
    """`base[start:stop:step]` of a list or text, else `absent`. Paid by its characters or elements: raises
    OutOfBudget."""
    if not (is_list(base) or isinstance(base, str)):
        return absent
    start, stop, step = bounds
    if not (_is_bound(start) and _is_bound(stop) and _is_bound(step)) or step == 0:
        return absent
    cut = slice(start, stop, step)
    length = len(range(*cut.indices(len(base))))
    if isinstance(base, str):
        budget.charge_text(length)
    else:
        budget.charge(1 + length // _ELEMENTS_A_STEP)
    return base[cut]


def _is_bound(value: object) -> TypeGuard[int | None]:
    return value is None or is_integer(value)


def equal(left: object, right: object, budget: Budget, depth: int = 0) -> bool:
    """Deep equality of JSON values. Python's own has no bound on time or depth."""
    budget.charge(1)
    if isinstance(left, Absent) or isinstance(right, Absent) or depth > _MAX_NESTING:
        return False
    if is_object(left):
        return (
            is_object(right)
            and len(left) == len(right)
            and all(key in right and equal(left[key], right[key], budget, depth + 1) for key in left)
        )
    if is_list(left):
        return (
            is_list(right)
            and len(left) == len(right)
            and all(equal(*pair, budget, depth + 1) for pair in zip(left, right, strict=True))
        )
    if is_object(right) or is_list(right):
        return False
    if isinstance(left, str) and isinstance(right, str) and len(left) == len(right):
        budget.charge_text(len(left))
    return left == right


def contains(item: object, container: object, budget: Budget) -> bool:
    """`item in container`: part of a text, element of a list, key of an object. A text is paid by its
    characters: raises OutOfBudget."""
    if isinstance(container, str):
        if not isinstance(item, str):
            return False
        budget.charge_text(len(container))
        return item in container
    if is_list(container):
        return any(equal(item, element, budget) for element in container)
    return is_object(container) and isinstance(item, str) and item in container


def ordered(left: object, right: object, relation: Callable[[Any, Any], bool], budget: Budget) -> bool:
    """Whether two numbers or two texts stand in a relation; no other pair does. Texts are paid by their
    characters: raises OutOfBudget."""
    if isinstance(left, str) and isinstance(right, str):
        budget.charge_text(min(len(left), len(right)))
        return relation(left, right)
    return is_number(left) and is_number(right) and relation(left, right)


def added(left: object, right: object, sign: int, budget: Budget) -> object:
    """`+` and `-` of numbers, `+` of texts, as people used to JavaScript write it."""
    if is_number(left) and is_number(right):
        return left + sign * right
    if sign > 0 and isinstance(left, str) and isinstance(right, str):
        budget.charge_text(len(left) + len(right))
        return left + right
    return next(
        (side for side in (left, right) if isinstance(side, Absent) and side.marker),
        Absent(f"[not numbers: {'+' if sign > 0 else '-'}]"),
    )


def joined(pieces: Sequence[object], separator: str, budget: Budget) -> str:
    """The texts of the pieces with the separator between them, paid for before they are joined. In
    characters. Raises OutOfBudget."""
    texts: list[str] = []
    length = 0
    for piece in pieces:
        piece_text = text(piece, budget)
        length += len(piece_text) + len(separator)
        budget.charge_text(length, weight=0)
        texts.append(piece_text)
    budget.charge_text(length)
    return separator.join(texts)


def elements(value: object, label: str, budget: Budget) -> Sequence[object] | Absent:
    """What a loop visits: a list's elements, an object's keys, nothing for null. Raises OutOfBudget for an
    object of more keys than are left to pay."""
    if value is None:
        return ()
    if isinstance(value, Absent):
        return value
    if is_list(value):
        return value
    if is_object(value):
        budget.charge(len(value))
        return cast(Sequence[object], tuple(value))
    return Absent(f"[not a list: {label}]")


# --- filters and tests ------------------------------------------------------------------------

FilterCall = Callable[[object, tuple[object, ...], Budget], object]
"""Value, arguments (as many as the filter has parameters), budget → value."""

_LONGEST_NUMBER = 64


@dataclass(frozen=True, slots=True)
class Filter:
    """`parameters` in order, with their defaults. `takes_absent`: it is asked about what is not there too."""

    call: FilterCall
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])
    takes_absent: bool = False


FILTERS: dict[str, Filter] = {}
"""By name. No other filter exists."""


def _filter(
    name: str, *, takes_absent: bool = False, **parameters: object
) -> Callable[[FilterCall], FilterCall]:
    def enter(call: FilterCall) -> FilterCall:
        FILTERS[name] = Filter(call, parameters, takes_absent)
        return call

    return enter


def _refusal(name: str) -> Absent:
    return Absent(f"[{name} cannot take this value]")


@_filter("default", takes_absent=True, default_value="", boolean=False)
def _default(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    fallback, when_false = arguments
    missing = value is None or isinstance(value, Absent)
    return fallback if missing or (truth(when_false) and not truth(value)) else value


def _on_text(change: Callable[[str], str], weight: int) -> FilterCall:
    def call(value: object, _: tuple[object, ...], budget: Budget) -> object:
        plain = text(value, budget)
        budget.charge_text(len(plain), weight)
        return change(plain)

    return call


@_filter("join", d="")
def _join(value: object, arguments: tuple[object, ...], budget: Budget) -> object:
    separator = text(arguments[0], budget)
    if is_list(value):
        return joined(value, separator, budget)
    return value if value is None or isinstance(value, str) else _refusal("join")


@_filter("length")
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


@_filter("replace", old="", new="")
def _replace(value: object, arguments: tuple[object, ...], budget: Budget) -> object:
    plain, old, new = text(value, budget), text(arguments[0], budget), text(arguments[1], budget)
    budget.charge_text(len(plain), weight=2)
    budget.charge_text(max(0, len(plain) + plain.count(old) * (len(new) - len(old))))
    return plain.replace(old, new)


@_filter("round", precision=0)
def _round(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    digits = arguments[0]
    if not is_number(value) or not is_integer(digits):
        return _refusal("round")
    # Far outside this range Python computes a power of ten of that size.
    return round(value, min(max(digits, 0), 15))


@_filter("int", default=0)
def _int(value: object, arguments: tuple[object, ...], _: Budget) -> object:
    number = _number(value)
    try:
        return arguments[0] if number is None else int(number)
    except (OverflowError, ValueError):  # an infinity, or not a number
        return arguments[0]


@_filter("float", default=0.0)
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


for _name, _position in (("first", 0), ("last", -1)):
    FILTERS[_name] = Filter(_at(_position, _name))
for _name, _change, _weight in (
    ("lower", str.lower, 2),
    ("string", str, 2),
    ("title", do_title, 16),
    ("trim", str.strip, 2),
    ("upper", str.upper, 2),
):
    FILTERS[_name] = Filter(_on_text(_change, _weight))

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
