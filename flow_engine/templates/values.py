"""What template expressions evaluate to, and the operations on it.

1. Values are JSON: text, numbers, booleans, null, lists, objects. Objects are looked into by key, lists
   and texts by position; no Python attribute is ever read.
2. What does not exist is an `Absent`: false in conditions, equal to nothing, visible when written. Its
   marker names the place in the template and never a value.
3. No operation raises, whatever it is given; each pays the budget before it works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

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
        else:
            self._put(_scalar(value))

    def _put(self, chunk: str) -> None:
        self.length += len(chunk)
        self.budget.charge_text(self.length, weight=0)
        self.chunks.append(chunk)


def _json_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool) or is_number(value):
        return json.dumps(value)
    if isinstance(value, Absent):
        return _json_text(value.marker)
    return '"[not JSON]"'


def member(base: object, key: object, absent: object) -> object:
    """`base[key]` for objects by text, for lists and texts by position, else `absent`."""
    if is_object(base):
        return base[key] if isinstance(key, str) and key in base else absent
    if (is_list(base) or isinstance(base, str)) and is_integer(key) and -len(base) <= key < len(base):
        return base[key]
    return absent


def section(base: object, bounds: tuple[object, object, object], absent: object, budget: Budget) -> object:
    """`base[start:stop:step]` of a list or text, else `absent`."""
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
    """`item in container`: part of a text, element of a list, key of an object."""
    if isinstance(container, str):
        if not isinstance(item, str):
            return False
        budget.charge_text(len(container))
        return item in container
    if is_list(container):
        return any(equal(item, element, budget) for element in container)
    return is_object(container) and isinstance(item, str) and item in container


def ordered(left: object, right: object, relation: Callable[[Any, Any], bool], budget: Budget) -> bool:
    """Whether two numbers or two texts stand in a relation; no other pair does."""
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
    """The texts of the pieces with the separator between them, paid for before they are joined."""
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
    """What a loop visits: a list's elements, an object's keys, nothing for null."""
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
