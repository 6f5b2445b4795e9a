"""What can be said about a condition without any values: names it lacks, types that cannot compare, and
whether it can hold at all.

`can_hold` looks for values that make some conditions true, or not true, together. It goes through the ways
in which their parts could come out, and keeps for every operand the values that are still possible, out of a
few that stand for all: those that are written in the conditions, what lies below, between and above them,
another type, and no value. How two operands that both vary stand to each other is one more such value. What
depends on the zone of a tenant may come out in any way. So "it cannot hold" is always right, and "it can" may
be too hopeful.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, TypeAlias, cast

from flow_engine.conditions import language as lang
from flow_engine.conditions import syntax
from flow_engine.conditions.comparing import Truth, Value, compare, identity, time_of, truth_of
from flow_engine.conditions.evaluation import BOOLEAN, DURATION, TIME, Kind, constant_value, is_time, kinds_of
from flow_engine.values import listed
from flow_engine.variables import VariableIndex

Problem: TypeAlias = "tuple[Literal['condition_unknown_name', 'condition_type_clash'], str]"
"""Code and reason."""


# --- names and types --------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """What the conditions of one version may name; tasks by their ids. What is told of it is made once."""

    variables: VariableIndex
    tasks: Set[str]

    @cached_property
    def known_variables(self) -> str:
        return listed(sorted({name for each in self.variables for name in (each.id, each.name)}))

    @cached_property
    def known_tasks(self) -> str:
        return listed(sorted(self.tasks))


def problems_of(tree: lang.Tree, names: Names) -> Iterator[Problem]:
    """Every name that the version lacks, then every part whose operands cannot compare whatever they hold."""
    variables = names.variables
    for atom in lang.atoms(tree):
        if isinstance(atom, lang.Count):
            if atom.task_id not in names.tasks:
                reason = f"{atom.task_id!r} is no _id of a task; known: {names.known_tasks}"
                yield "condition_unknown_name", reason
        elif atom.root == "vars":
            spec = variables.resolve(atom.path[0])
            if spec is None:
                missing = f"{lang.operand_text(atom)!r} names no variable of the version"
                reason = f"{missing}; known: {names.known_variables}"
                yield "condition_unknown_name", reason
            elif spec.type != "custom" and atom.path[1:]:
                reason = (
                    f"{lang.operand_text(atom)!r} looks into {spec.name!r} ({spec.type}), which has no parts"
                )
                yield "condition_unknown_name", reason
    for part in syntax.leaves(tree):
        reason = _clash(part, variables)
        if reason is not None:
            yield "condition_type_clash", f"{part.text or lang.text_of(part)!r}: {reason}"


def _clash(part: lang.Part, variables: VariableIndex) -> str | None:
    for operand in lang.operands_of(part):
        if (reason := _clash_in_sum(operand, variables)) is not None:
            return reason
    match part:
        case syntax.Lone():
            kinds = kinds_of(part.operand, variables)
            if kinds is None or "boolean" in kinds:
                return None
            is_name = isinstance(part.operand, lang.Reference)
            asked = f"; has({lang.operand_text(part.operand)}) asks whether there is one" if is_name else ""
            return f"{_named(kinds)} is not true or false{asked}"
        case syntax.Comparison():
            reason = _pair(part.left, part.right, variables)
            kinds = kinds_of(part.left, variables)
            if reason is None and part.sign not in ("==", "!=") and kinds and not kinds - BOOLEAN:
                return "true and false have no order"
            return reason
        case syntax.Membership():
            if not isinstance(part.members, tuple):
                kinds = kinds_of(part.members, variables)
                return None if kinds is None else f"{_named(kinds)} is no list"
            pairs = (_pair(part.operand, member, variables) for member in part.members)
            return next((reason for reason in pairs if reason is not None), None)


def _pair(left: lang.Operand, right: lang.Operand, variables: VariableIndex) -> str | None:
    one, other = kinds_of(left, variables), kinds_of(right, variables)
    for text, beside in ((left, right), (right, left)):
        if isinstance(text, lang.Constant) and isinstance(text.value, str) and is_time(beside, variables):
            return None if time_of(text.value, UTC) else f"{text.value!r} is no date or moment in ISO 8601"
    if one is None or other is None or not one or not other or one & other:
        return None
    return f"{_named(one)} cannot be compared with {_named(other)}"


def _clash_in_sum(operand: lang.Operand, variables: VariableIndex) -> str | None:
    if not isinstance(operand, lang.Sum):
        return None
    sides: list[frozenset[Kind] | None] = []
    for side in (operand.left, operand.right):
        if (inner := _clash_in_sum(side, variables)) is not None:
            return inner
        if isinstance(side, lang.Constant) and isinstance(side.value, str):
            if time_of(side.value, UTC) is None:
                return f"{side.value!r} is no date or moment in ISO 8601"
            sides.append(TIME)
        else:
            sides.append(kinds_of(side, variables))
    wrong = next((kinds for kinds in sides if kinds is not None and kinds not in (TIME, DURATION)), None)
    if wrong is not None:
        return f"{_named(wrong)} cannot be added or taken; durations can, from dates and moments"
    if sides == [TIME, TIME] and operand.sign == "+":
        return "two dates cannot be added"
    if sides == [DURATION, TIME] and operand.sign == "-":
        return "a date cannot be taken from a duration"
    return None


_NAMES: Final[Mapping[Kind, str]] = {
    "text": "a text",
    "number": "a number",
    "boolean": "true or false",
    "time": "a date or moment",
    "duration": "a duration",
}


def _named(kinds: Iterable[Kind]) -> str:
    return " or ".join(_NAMES[kind] for kind in sorted(kinds)) or "an enum without values"


# --- whether it can hold ------------------------------------------------------------------------

Wanted = Literal["true", "false", "not_true", "not_false"]
Goal: TypeAlias = "tuple[lang.Tree, Wanted]"

_TRUTHS: Final[Mapping[Wanted, tuple[Truth, ...]]] = {
    "true": (True,),
    "false": (False,),
    "not_true": (False, None),
    "not_false": (True, None),
}
_TURNED: Final[Mapping[Wanted, Wanted]] = {
    "true": "false",
    "false": "true",
    "not_true": "not_false",
    "not_false": "not_true",
}
_MISSING: Final = None
_EITHER: Final[tuple[Value, ...]] = (True, False, _MISSING)
_PAIRS: Final[tuple[Value, ...]] = ([0, 1], [0, 0], [1, 0], [True, True], [True, False], [_MISSING, 0])
"""How two operands that vary may stand to each other: by size, only equal or not, or not at all."""
_OF_JSON: Final[tuple[Kind, ...]] = ("text", "number", "time")
_DEEPEST: Final = 100
_E164: Final = re.compile(r"\+[1-9][0-9]{1,14}")
"""How the number of a phone is written that a condition compares."""

Test: TypeAlias = Callable[[Value], Truth]
Possible: TypeAlias = "Mapping[str, tuple[Value, ...]]"
"""By operand as it is written: the values that it may still have."""


@dataclass(slots=True)
class Budget:
    """Values that may still be tried, for all questions together; without any, everything is taken to be
    possible."""

    values: int = 200_000


def can_hold(
    goals: Sequence[Goal],
    variables: VariableIndex,
    domains: Mapping[lang.Reference, Sequence[str]],
    budget: Budget,
) -> bool:
    """Whether some values fulfil all goals together; False is certain. `domains` are the values that
    `channel` and `language` can have, any text where they are left out."""
    if budget.values < 0:
        return True
    search = _Search(variables, domains, _constants([tree for tree, _ in goals], variables), budget)
    return search.fulfils(list(goals), {}, 0)


def _constants(trees: Sequence[lang.Tree], variables: VariableIndex) -> Mapping[str, list[Value]]:
    """By operand that varies: the constants that it is compared with."""
    found: dict[str, list[Value]] = {}
    for tree in trees:
        for part in syntax.leaves(tree):
            operands = lang.operands_of(part)
            varying = [operand for operand in operands if _varies(operand)]
            for operand in varying[:1]:
                fixed = [each for each in operands if not _varies(each)]
                constants = found.setdefault(lang.operand_text(operand), [])
                constants += [constant_value(each, operand, variables) for each in fixed]
    return found


def _varies(operand: lang.Operand) -> bool:
    return next(lang.atoms_of(operand), None) is not None


@dataclass(frozen=True, slots=True)
class _View:
    """What a part depends on, by its written form; the values of that, and what the part is for each of them.
    `needed` are the values without which the part is unknown."""

    key: str
    values: tuple[Value, ...]
    test: Test
    needed: Mapping[str, tuple[Value, ...]]


@dataclass
class _Search:
    variables: VariableIndex
    domains: Mapping[lang.Reference, Sequence[str]]
    constants: Mapping[str, list[Value]]
    budget: Budget
    views: dict[int, _View] = field(default_factory=dict[int, _View])

    def fulfils(self, goals: list[Goal], possible: Possible, depth: int) -> bool:
        """Depth first; a way ends where an operand has no possible value left."""
        while goals:
            if self.budget.values < 0 or depth > _DEEPEST:
                return True
            node, wanted = goals.pop()
            match node:
                case syntax.Not():
                    goals.append((node.part, _TURNED[wanted]))
                case syntax.All() | syntax.Any():
                    parts: list[Goal] = [(part, wanted) for part in node.parts]
                    if isinstance(node, syntax.All) != (wanted in ("true", "not_false")):
                        return any(self.fulfils([*goals, part], possible, depth + 1) for part in parts)
                    goals += parts
                case _:
                    narrowed = self._narrowed(node, wanted, possible)
                    if narrowed is None:
                        return False
                    possible = narrowed
        return True

    def _narrowed(self, part: lang.Part, wanted: Wanted, possible: Possible) -> Possible | None:
        view = self.views.get(id(part))  # by identity: 1 and true are equal to Python
        if view is None:
            view = self.views[id(part)] = self._view(part)
        accepted, tried = _TRUTHS[wanted], possible.get(view.key, view.values)
        self.budget.values -= 1 + len(tried)
        kept = tuple(value for value in tried if view.test(value) in accepted)
        if not kept:
            return None
        narrowed = {**possible, view.key: kept}
        if None not in accepted:
            for name, values in view.needed.items():
                present = tuple(v for v in narrowed.get(name, values) if v is not _MISSING)
                if not present:
                    return None
                narrowed[name] = present
        return narrowed

    def _view(self, part: lang.Part) -> _View:
        match part:
            case syntax.Lone(operand=lang.Has() as has):
                reference = has.reference
                return _View(
                    lang.operand_text(reference), self._values(reference), lambda v: v is not _MISSING, {}
                )
            case syntax.Lone():
                return _View(lang.operand_text(part.operand), self._values(part.operand), truth_of, {})
            case syntax.Comparison():
                return self._view_of_comparison(part)
            case syntax.Membership():
                return self._view_of_membership(part)

    def _view_of_comparison(self, part: syntax.Comparison[lang.Operand]) -> _View:
        left, right, sign = part.left, part.right, part.sign
        needed = self._needed(left, right)
        if _varies(left) and _varies(right):
            kinds = {kinds_of(side, self.variables) for side in (left, right)}
            if None in kinds and DURATION in kinds:  # JSON has none
                return _View(lang.text_of(part), (_MISSING,), lambda v: None, needed)
            names = [lang.operand_text(left), lang.operand_text(right)]
            first, second = (0, 1) if names[0] <= names[1] else (1, 0)

            def related(pair: Value) -> Truth:
                both = cast("list[Value]", pair)
                return compare(both[first], sign, both[second], UTC)

            return _View(" ? ".join(sorted(names)), _PAIRS, related, needed)
        varying, fixed = (left, right) if _varies(left) else (right, left)
        constant = constant_value(fixed, varying, self.variables)
        if self._depends_on_zone(varying):
            return _View(lang.text_of(part), _EITHER, truth_of, needed)

        def compared(value: Value) -> Truth:
            one, other = (value, constant) if varying is left else (constant, value)
            return compare(one, sign, other, UTC)

        return _View(lang.operand_text(varying), self._values(varying), compared, needed)

    def _view_of_membership(self, part: syntax.Membership[lang.Operand]) -> _View:
        members, inside = part.members, part.inside
        listed = members if isinstance(members, tuple) else ()
        needed = self._needed(part.operand, *(() if isinstance(members, tuple) else (members,)))
        opaque = not isinstance(members, tuple) or any(map(_varies, listed))
        if opaque or self._depends_on_zone(part.operand):
            key = lang.text_of(syntax.Membership(part.operand, members, inside=True))
            return _View(key, _EITHER, lambda v: v == inside if isinstance(v, bool) else None, needed)
        constants = {identity(constant_value(each, part.operand, self.variables), UTC) for each in listed}
        kinds = {kind for kind, _ in constants}

        def test(value: Value) -> Truth:
            found = identity(value, UTC)
            if value is _MISSING or (found not in constants and kinds - {found[0]}):
                return None
            return (found in constants) == inside

        return _View(lang.operand_text(part.operand), self._values(part.operand), test, needed)

    def _needed(self, *operands: lang.Operand) -> Mapping[str, tuple[Value, ...]]:
        plain = [operand for operand in operands if not isinstance(operand, lang.Has)]
        return {lang.operand_text(a): self._values(a) for operand in plain for a in lang.atoms_of(operand)}

    def _depends_on_zone(self, operand: lang.Operand) -> bool:
        """Moments that are written have another day in each zone."""
        written = self.constants.get(lang.operand_text(operand), ())
        return any(isinstance(value, datetime) for value in written)

    def _values(self, operand: lang.Operand) -> tuple[Value, ...]:
        """A few values that stand for all that the operand can have."""
        if not _varies(operand):
            return (constant_value(operand, operand, self.variables),)
        written = self.constants.get(lang.operand_text(operand), [])
        if isinstance(operand, lang.Count):
            return tuple(v for v in _around("number", written) if isinstance(v, int) and v >= 0)
        if isinstance(operand, lang.Reference):
            if (known := self.domains.get(operand)) is not None:
                return tuple(known)
            if operand.root in ("channel", "language"):
                return _around("text", written)
            spec = self.variables.resolve(operand.path[0]) if operand.root == "vars" else None
            if spec is not None and spec.type == "enum":
                usable = (v for v in spec.enum_values if not isinstance(v, str) or v.strip())
                return (*usable, _MISSING)
            if spec is not None and spec.type == "phone":
                written = [each for each in written if isinstance(each, str) and _E164.fullmatch(each)]
            if operand.root == "vars" and (spec is None or (spec.type != "custom" and operand.path[1:])):
                return (_MISSING,)
        kinds = kinds_of(operand, self.variables)
        if kinds is None:
            scalars = (value for kind in _OF_JSON for value in _around(kind, written))
            return (*scalars, True, False, [], {}, _MISSING)
        found = [value for kind in sorted(kinds) for value in _around(kind, written)]
        always = isinstance(operand, lang.Reference) and operand.root in ("now", "today")
        return tuple(found) if always else (*found, _MISSING)


def _around(kind: Kind, written: Sequence[Value]) -> tuple[Value, ...]:
    """The constants of a kind, and values below, between and above them."""
    match kind:
        case "boolean":
            return (True, False)
        case "number":
            numbers = sorted({v for v in written if isinstance(v, int | float) and not isinstance(v, bool)})
            between = [(low + high) / 2 for low, high in pairwise(numbers)]
            beside = [int(n) + step for n in numbers for step in (-1, 0, 1)]
            return (0, *numbers, *between, *beside)
        case "text":
            texts = [v for v in written if isinstance(v, str)]
            return ("\x00", *(t for t in texts if t.strip()), *(t + "\x00" for t in texts))
        case "duration":
            lengths = [v for v in written if isinstance(v, timedelta)]
            steps = [timedelta(microseconds=step) for step in (-1, 0, 1)]
            return (timedelta(0), *(length + step for length in lengths for step in steps))
        case "time":
            days = [v for v in written if isinstance(v, date) and not isinstance(v, datetime)]
            first, last = date.min.toordinal(), date.max.toordinal()
            beside = {day.toordinal() + step for day in days for step in (-1, 0, 1)}
            near = {date.fromordinal(n) for n in beside if first <= n <= last} | {date(2000, 1, 1)}
            return (*near, *(datetime.combine(day, time(12), UTC) for day in near))
