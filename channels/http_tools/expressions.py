"""Conditions: `block_if`, `condition`, `fail_if` (V9), by the grammar of `flow_engine/conditions/syntax.py`.

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
from channels.http_tools.scope import NAMESPACES, Scope, Values
from flow_engine.conditions import syntax
from flow_engine.conditions.lexing import Mistake, Path, path_of
from flow_engine.json_values import same_json, walk
from flow_engine.values import JsonValue

_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
class Condition:
    node: syntax.Node[_Operand]

    @classmethod
    def parse(cls, text: str, names: frozenset[str] | None = frozenset()) -> Condition:
        """Raises the first mistake that `read` tells."""
        condition, mistakes = cls.read(text, names)
        if condition is None:
            raise mistakes[0]
        return condition

    @classmethod
    def read(
        cls, text: str, names: frozenset[str] | None = frozenset()
    ) -> tuple[Condition | None, list[Mistake]]:
        """The condition, None where it cannot be read, and then why: every unknown name up to the first
        mistake of another kind, and that. `names` are what the step of the condition extracts, None where
        that is unknown and any name may be one of them."""
        unknown: dict[str, Mistake] = {}
        try:
            node = _Parser(text, names, unknown).whole()
        except Mistake as mistake:
            return None, [*unknown.values(), mistake]
        return None if unknown else cls(node), list(unknown.values())

    def holds(self, scope: Scope, document: JsonValue = None, names: Values = _NO_NAMES) -> bool:
        """`document` is what `$` stands for, `names` the values of the step's extracts."""
        return _holds(self.node, _Facts(scope, document, names))


def _holds(node: syntax.Node[_Operand], facts: _Facts) -> bool:
    match node:
        case syntax.Not():
            return not _holds(node.part, facts)
        case syntax.All():
            return all(_holds(part, facts) for part in node.parts)
        case syntax.Any():
            return any(_holds(part, facts) for part in node.parts)
        case syntax.Lone():
            return bool(_value(node.operand, facts))
        case syntax.Comparison():
            return _compares(_value(node.left, facts), node.sign, _value(node.right, facts))
        case syntax.Membership():
            value, members = _value(node.operand, facts), node.members
            listed = members if isinstance(members, tuple) else (members,)
            return any(same_json(value, _value(member, facts)) for member in listed) == node.inside


def _compares(left: JsonValue, sign: str, right: JsonValue) -> bool:
    if sign not in _ORDERS:
        return same_json(left, right) == (sign == "==")
    before = _ORDERS[sign]
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if isinstance(left, int | float) and isinstance(right, int | float):
        return before(left, right)
    if isinstance(left, str) and isinstance(right, str):
        return cast("Callable[[str, str], bool]", before)(left, right)
    return False


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


class _Parser(syntax.Parser[_Operand]):
    """The operands of the grammar at the top of the file. Names that there are not are gathered in `unknown`,
    and passed over."""

    def __init__(self, text: str, names: frozenset[str] | None, unknown: dict[str, Mistake]) -> None:
        super().__init__(text, ConditionMistake)
        self._names = names
        self._unknown = unknown
        fields = [f"{space}.x" for space in sorted(NAMESPACES)]
        fields += sorted(names or ())
        self._operands = ", ".join(["$.x", *fields, "{{placeholder}}, null, true, false, a number, 'text'"])

    def operand(self) -> _Operand:
        reader = self.reader
        token = reader.current
        if reader.at_sign("{{"):
            reader.advance()
            placeholder = placeholders.read_placeholder(reader)
            reader.expect("}}", "'}}'")
            return placeholder
        if token.kind == "path":
            path = path_of(reader.advance())
            if self._names is not None and path[0] not in NAMESPACES | self._names | {"$"}:
                mistake = reader.mistake(f"{path[0]!r} is unknown; accepted are {self._operands}", token.at)
                if reader.at_sign("("):  # a call: its arguments are no parts of a condition
                    raise mistake
                self._unknown.setdefault(path[0], mistake)
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
