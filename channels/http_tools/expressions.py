"""Conditions: `block_if`, `condition`, `fail_if` (V9). Read into a small tree once; nothing is ever executed.

    condition  =  comparisons joined by `and`, `or`, `not` and parentheses; `not` binds closest, then `and`
    comparison =  operand == != < <= > >= operand  |  operand [not] in [operand, ...]  |  operand
    operand    =  $.x.y   ctx.x   pre.x   args.x   session.x   agent.x   a name that the step extracts
               |  null true false  |  numbers  |  'text'  |  {{placeholder}}, always a value

1. A condition is true or false for all values there are. What is not there is null.
2. Values of different types are different, and neither comes before the other: `"42" == 42` and `1 < "2"`
   are false, `1 == 1.0` is true, `true == 1` is false. Only numbers, and texts, have an order.
3. A lone operand holds unless it is null, false, 0, or an empty text, list or object.
4. Placeholders inside quotes are put into the text.
5. `None`, `True` and `False` are read too, as configs have been written with Python in mind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from channels.http_tools import placeholders
from channels.http_tools.lexing import Mistake, Reader, path_of
from channels.http_tools.scope import NAMESPACES, Path, Scope, Values, walk
from flow_engine.json_values import same_json
from flow_engine.values import JsonValue

MAX_CHARS: Final = 2_000
MAX_NESTING: Final = 40

_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISONS: Final = ("==", "!=", *_ORDERS)
_NO_NAMES: Final[Values] = {}


class ConditionMistake(Mistake):
    """A condition that cannot be read: raised with the place in it, in characters from 1."""


@dataclass(frozen=True, slots=True)
class _Facts:
    scope: Scope
    document: JsonValue
    names: Values


@dataclass(frozen=True, slots=True)
class _Field:
    path: Path

    def value(self, facts: _Facts) -> JsonValue:
        head, rest = self.path[0], self.path[1:]
        if head == "$":
            return walk(facts.document, rest)
        if head in NAMESPACES:
            return facts.scope.lookup(self.path)
        return walk(facts.names.get(head), rest)


_Operand: TypeAlias = placeholders.Constant | placeholders.Template | placeholders.Placeholder | _Field


@dataclass(frozen=True, slots=True)
class _Lone:
    operand: _Operand

    def holds(self, facts: _Facts) -> bool:
        return bool(_value(self.operand, facts))


@dataclass(frozen=True, slots=True)
class _Comparison:
    left: _Operand
    sign: str
    right: _Operand

    def holds(self, facts: _Facts) -> bool:
        left, right = _value(self.left, facts), _value(self.right, facts)
        if self.sign in _ORDERS:
            before = _ORDERS[self.sign]
            if isinstance(left, bool) or isinstance(right, bool):
                return False
            if isinstance(left, int | float) and isinstance(right, int | float):
                return before(left, right)
            if isinstance(left, str) and isinstance(right, str):
                return cast("Callable[[str, str], bool]", before)(left, right)
            return False
        return same_json(left, right) == (self.sign == "==")


@dataclass(frozen=True, slots=True)
class _Membership:
    operand: _Operand
    members: tuple[_Operand, ...]
    inside: bool

    def holds(self, facts: _Facts) -> bool:
        value = _value(self.operand, facts)
        return any(same_json(value, _value(member, facts)) for member in self.members) == self.inside


@dataclass(frozen=True, slots=True)
class _Not:
    part: _Node

    def holds(self, facts: _Facts) -> bool:
        return not self.part.holds(facts)


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[_Node, ...]

    def holds(self, facts: _Facts) -> bool:
        return all(part.holds(facts) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[_Node, ...]

    def holds(self, facts: _Facts) -> bool:
        return any(part.holds(facts) for part in self.parts)


_Node: TypeAlias = "_Lone | _Comparison | _Membership | _Not | _All | _Any"


@dataclass(frozen=True, slots=True)
class Condition:
    node: _Node

    @classmethod
    def parse(cls, text: str, names: frozenset[str] | None = frozenset()) -> Condition:
        """`names` are what the step of the condition extracts, None where that is unknown and any name may
        be one of them. Raises ConditionMistake, TemplateMistake."""
        if len(text) > MAX_CHARS:
            raise ConditionMistake(f"accepted are at most {MAX_CHARS} characters", MAX_CHARS + 1)
        return cls(_Parser(text, names).whole())

    def holds(self, scope: Scope, document: JsonValue = None, names: Values = _NO_NAMES) -> bool:
        """`document` is what `$` stands for, `names` the values of the step's extracts."""
        return self.node.holds(_Facts(scope, document, names))


def _value(operand: _Operand, facts: _Facts) -> JsonValue:
    match operand:
        case placeholders.Constant():
            return operand.value
        case placeholders.Placeholder():
            return operand.value(facts.scope)
        case placeholders.Template():
            return operand.render_text(facts.scope)
        case _Field():
            return operand.value(facts)


class _Parser:
    """Recursive descent over the grammar at the top of the file."""

    def __init__(self, text: str, names: frozenset[str] | None) -> None:
        self._reader = Reader(text, 0, ConditionMistake)
        self._names = names
        self._depth = 0
        fields = [f"{space}.x" for space in sorted(NAMESPACES)]
        fields += sorted(names or ())
        self._operands = ", ".join(["$.x", *fields, "{{placeholder}}, null, true, false, a number, 'text'"])

    def whole(self) -> _Node:
        node = self._any()
        if self._reader.current.kind != "end":
            raise self._reader.unexpected(
                f"the end, and, or, and behind an operand {' '.join(_COMPARISONS)}, in, not in"
            )
        return node

    def _any(self) -> _Node:
        parts = [self._all()]
        while self._reader.at_word("or"):
            self._reader.advance()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _all(self) -> _Node:
        parts = [self._one()]
        while self._reader.at_word("and"):
            self._reader.advance()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _one(self) -> _Node:
        opening = self._reader.current
        negated, grouped = self._reader.at_word("not"), self._reader.at_sign("(")
        if not negated and not grouped:
            left = self._operand()
            reader = self._reader
            if reader.at_sign(*_COMPARISONS):
                return _Comparison(left, reader.advance().text, self._operand())
            inside = not reader.at_word("not")
            if not inside:
                reader.advance()
            if reader.at_word("in"):
                reader.advance()
                return _Membership(left, self._members(), inside)
            if not inside:
                raise reader.unexpected("`in`")
            return _Lone(left)
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._reader.mistake(f"accepted are at most {MAX_NESTING} levels", opening.at)
        self._reader.advance()
        if negated:
            node: _Node = _Not(self._one())
        else:
            node = self._any()
            self._reader.expect(")", "and, or, ')'")
        self._depth -= 1
        return node

    def _members(self) -> tuple[_Operand, ...]:
        reader = self._reader
        reader.expect("[", "a list such as ['pending', 'confirmed']")
        members: list[_Operand] = []
        while not reader.at_sign("]"):
            members.append(self._operand())
            if not reader.at_sign("]"):
                reader.expect(",", "',' or ']'")
        reader.advance()
        return tuple(members)

    def _operand(self) -> _Operand:
        reader = self._reader
        token = reader.current
        if reader.at_sign("{{"):
            reader.advance()
            placeholder = placeholders.read_placeholder(reader)
            reader.expect("}}", "'}}'")
            return placeholder
        if token.kind == "path":
            path = path_of(reader.advance())
            if self._names is not None and path[0] not in NAMESPACES | self._names | {"$"}:
                raise reader.mistake(f"{path[0]!r} is unknown; accepted are {self._operands}", token.at)
            return _Field(path)
        constant = placeholders.read_constant(reader)
        if constant is None:
            raise reader.unexpected(self._operands)
        if isinstance(constant.value, str) and placeholders.OPEN in constant.value:
            try:
                return placeholders.Template.parse(constant.value)
            except placeholders.TemplateMistake as mistake:
                raise placeholders.TemplateMistake(mistake.message, token.at + 1 + mistake.at) from mistake
        return constant
