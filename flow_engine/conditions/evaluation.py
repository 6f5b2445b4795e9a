"""What a flow's condition means, by Kleene's logic of three values.

1. A condition is true, false or unknown (None) for all values there are, and cannot fail.
2. A missing value makes its comparison unknown, and so does a pair of values that cannot be compared, by `==`
   and `!=` too. `not unknown` is unknown, `true or unknown` true, `false and unknown` false.
3. `has()` is never unknown. `false`, `0` and `[]` are values; null, empty and blank texts are none (F5).
4. Numbers compare with numbers, texts with texts by code points, true and false by `==` and `!=` alone, lists
   and objects likewise. A phone is the text of its number in E.164.
5. Dates and moments compare with one another: beside a date a moment counts as its day in the tenant's zone.
   A text beside either is read as ISO 8601, without an offset in the tenant's zone: one that is written in
   the condition, or one of a custom variable, the tenant or the contact.
6. `x in [a, b]` is `x == a or x == b`, and false for an empty list and a known x.

Compiled into closures once; a value is looked up when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import islice, product
from typing import Final, Literal, Protocol, TypeAlias, cast

from flow_engine.conditions import language as lang
from flow_engine.conditions import syntax
from flow_engine.conditions.comparing import Truth, Value, added, compare, time_of, truth_of
from flow_engine.conditions.lexing import Path
from flow_engine.json_values import rough_size, walk
from flow_engine.masking import shown
from flow_engine.values import JsonValue, utc_text
from flow_engine.variables import VariableIndex, VariableSpec

Kind = Literal["text", "number", "boolean", "time", "duration"]
TIME: Final = frozenset[Kind]({"time"})
DURATION: Final = frozenset[Kind]({"duration"})
BOOLEAN: Final = frozenset[Kind]({"boolean"})

WAYS: Final = 5
"""Ways to make a condition hold that are told at most."""
LONGEST_VALUE: Final = 1_000
"""Characters of a value that an explanation shows, about."""


class Valued(Protocol):
    """Something that holds a canonical value, None for none."""

    @property
    def value(self) -> JsonValue: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """The values that conditions read. `memory` is by variable id, `now` aware, `zone` the tenant's;
    `entries` and `refusals` count by task id."""

    memory: Mapping[str, Valued]
    tenant: Mapping[str, object]
    contact: Mapping[str, object]
    channel: str
    language: str
    now: datetime
    zone: tzinfo
    entries: Mapping[str, int]
    refusals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A comparison or `has()` as it was written, and the values that it has read by how they are written."""

    expression: str
    truth: Truth
    values: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`would_hold`: conditions, each of which would make the whole one true if nothing else changed."""

    truth: Truth
    parts: tuple[FoundPart, ...]
    would_hold: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition over the variables of one version. Asking it never raises."""

    text: str
    tree: lang.Tree
    truth: Callable[[Facts], Truth]
    variables: VariableIndex

    @classmethod
    def compile(cls, text: str, variables: VariableIndex) -> Condition:
        """Raises ConditionMistake for a text that cannot be read. Names of variables that the version lacks
        never have a value."""
        tree = lang.parse(text)
        return cls(text, tree, _compiled(tree, variables), variables)

    @property
    def reads_clock(self) -> bool:
        """Whether it may come out otherwise a moment later."""
        roots = {atom.root for atom in lang.atoms(self.tree) if isinstance(atom, lang.Reference)}
        return not roots.isdisjoint(("now", "today"))

    def explain(self, facts: Facts) -> Explanation:
        found = tuple(
            FoundPart(
                part.text,
                compiled_part(part, self.variables)(facts),
                {
                    lang.operand_text(atom): _shown(atom, self.variables, facts)
                    for operand in lang.operands_of(part)
                    for atom in lang.atoms_of(operand)
                },
            )
            for part in syntax.leaves(self.tree)
        )
        truth = self.truth(facts)
        ways = () if truth else self._ways(self.tree, True, facts)
        shortest = sorted(dict.fromkeys(ways), key=len)[:WAYS]
        return Explanation(truth, found, tuple(" and ".join(dict.fromkeys(way)) for way in shortest))

    def _ways(self, node: lang.Tree, wanted: bool, facts: Facts) -> Iterator[tuple[str, ...]]:
        """Sets of conditions by which the node would be what is wanted; one empty set where it is."""
        match node:
            case syntax.Not():
                yield from self._ways(node.part, not wanted, facts)
            case syntax.All() | syntax.Any():
                each = (tuple(islice(self._ways(part, wanted, facts), WAYS)) for part in node.parts)
                if isinstance(node, syntax.All) == wanted:
                    for chosen in islice(product(*each), WAYS * WAYS):
                        yield tuple(text for way in chosen for text in way)
                else:
                    every = [way for ways in each for way in ways]
                    yield from [()] if () in every else every
            case _:
                if compiled_part(node, self.variables)(facts) is wanted:
                    yield ()
                elif any(True for operand in lang.operands_of(node) for _ in lang.atoms_of(operand)):
                    yield (node.text if wanted else lang.opposite_text(node),)


# --- static kinds -----------------------------------------------------------------------------


def kinds_of(operand: lang.Operand, variables: VariableIndex) -> frozenset[Kind] | None:
    """The kinds of values that an operand can have; None where the version does not tell."""
    match operand:
        case lang.Reference():
            return _kinds_of_reference(operand, variables)
        case lang.Constant(value=bool()) | lang.Has():
            return BOOLEAN
        case lang.Constant(value=str()):
            return frozenset({"text"})
        case lang.Constant() | lang.Count():
            return frozenset({"number"})
        case lang.Duration():
            return DURATION
        case lang.Sum():
            left, right = (kinds_of(side, variables) for side in (operand.left, operand.right))
            # JSON has texts of dates and no durations.
            is_length = left == right == DURATION or (operand.sign == "-" and right != DURATION)
            return DURATION if is_length else TIME


def _kinds_of_reference(reference: lang.Reference, variables: VariableIndex) -> frozenset[Kind] | None:
    if reference.root in ("now", "today"):
        return TIME
    if reference.root in ("channel", "language"):
        return frozenset({"text"})
    spec = variables.resolve(reference.path[0]) if reference.root == "vars" else None
    if spec is None or spec.type == "custom":
        return None
    if spec.type == "enum":
        return frozenset("text" if each is str else "number" for each in variables.member_types[spec.id])
    kinds: Mapping[str, Kind] = {"number": "number", "boolean": "boolean", "date": "time"}
    return frozenset({kinds.get(spec.type, "text")})


def is_time(operand: lang.Operand, variables: VariableIndex) -> bool:
    """Whether an operand is a date or moment, so that a text beside it is read as one."""
    return kinds_of(operand, variables) == TIME


# --- compiled ---------------------------------------------------------------------------------

_TODAY: Final = lang.Reference("today")
"""Stands beside the terms of a sum: a text there is a date, since nothing else is added or taken."""

Getter: TypeAlias = "Callable[[Facts], Value]"


def _compiled(node: lang.Tree, variables: VariableIndex) -> Callable[[Facts], Truth]:
    match node:
        case syntax.Not():
            inner = _compiled(node.part, variables)

            def negated(facts: Facts) -> Truth:
                truth = inner(facts)
                return None if truth is None else not truth

            return negated
        case syntax.All() | syntax.Any():
            parts = [_compiled(part, variables) for part in node.parts]
            decisive = isinstance(node, syntax.Any)

            def joined(facts: Facts) -> Truth:
                """One part that is `decisive` decides, then one that is unknown."""
                result: Truth = not decisive
                for part in parts:
                    truth = part(facts)
                    if truth is decisive:
                        return decisive
                    if truth is None:
                        result = None
                return result

            return joined
        case _:
            return compiled_part(node, variables)


def compiled_part(part: lang.Part, variables: VariableIndex) -> Callable[[Facts], Truth]:
    """A comparison, membership or lone operand as a function of the facts. It never raises."""
    match part:
        case syntax.Lone():
            alone = _getter(part.operand, variables)
            return lambda facts: truth_of(alone(facts))
        case syntax.Comparison():
            left = _getter(part.left, variables, beside=part.right)
            right, sign = _getter(part.right, variables, beside=part.left), part.sign
            return lambda facts: compare(left(facts), sign, right(facts), facts.zone)
        case syntax.Membership():
            return _membership(part, variables)


def _membership(part: syntax.Membership[lang.Operand], variables: VariableIndex) -> Callable[[Facts], Truth]:
    inside, members = part.inside, part.members
    if isinstance(members, tuple):
        times = next((member for member in members if is_time(member, variables)), part.operand)
        value_of = _getter(part.operand, variables, beside=times)
        getters = [_getter(member, variables, beside=part.operand) for member in members]

        def listed(facts: Facts) -> list[Value] | None:
            return [getter(facts) for getter in getters]
    else:
        value_of, members_of = _getter(part.operand, variables), _getter(members, variables)

        def listed(facts: Facts) -> list[Value] | None:
            found = members_of(facts)
            return cast("list[Value]", found) if isinstance(found, list) else None

    def holds(facts: Facts) -> Truth:
        value, found = value_of(facts), listed(facts)
        if value is None or found is None:
            return None
        if isinstance(value, str | int | float):  # what may be long is looked through by Python itself
            kind = {int, float} if type(value) in (int, float) else {type(value)}
            is_alike = {*map(type, found)} <= kind
            alike = found if is_alike else [member for member in found if type(member) in kind]
            return inside if value in alike else None if len(alike) < len(found) else not inside
        truths = [compare(value, "==", member, facts.zone) for member in found]
        if True in truths:
            return inside
        return None if None in truths else not inside

    return holds


def _getter(operand: lang.Operand, variables: VariableIndex, *, beside: lang.Operand | None = None) -> Getter:
    beside_time = beside is not None and is_time(beside, variables)
    match operand:
        case lang.Constant(value=str() as text) if beside_time:
            return lambda facts: time_of(text, facts.zone)
        case lang.Constant():
            value: Value = operand.value
            return lambda facts: value
        case lang.Duration():
            length = operand.length
            return lambda facts: length
        case lang.Count():
            task_id = operand.task_id
            if operand.of == "entries":
                return lambda facts: facts.entries.get(task_id, 0)
            return lambda facts: facts.refusals.get(task_id, 0)
        case lang.Has():
            found = _reference(operand.reference, variables)
            return lambda facts: found(facts) is not None
        case lang.Reference():
            found = _reference(operand, variables)
            is_text = beside_time and kinds_of(operand, variables) is None
            return (lambda facts: time_of(found(facts), facts.zone)) if is_text else found
        case lang.Sum():
            left, right = (_getter(side, variables, beside=_TODAY) for side in (operand.left, operand.right))
            sign = 1 if operand.sign == "+" else -1
            return lambda facts: added(left(facts), sign, right(facts), facts.zone)


def _reference(reference: lang.Reference, variables: VariableIndex) -> Getter:
    path = reference.path
    match reference.root:
        case "vars":
            spec = variables.resolve(path[0])
            return (lambda facts: None) if spec is None else _variable(spec, path[1:])
        case "tenant":
            return lambda facts: _present(walk(cast("JsonValue", facts.tenant), path))
        case "contact":
            return lambda facts: _present(walk(cast("JsonValue", facts.contact), path))
        case "channel":
            return lambda facts: facts.channel
        case "language":
            return lambda facts: facts.language
        case "now":
            return lambda facts: facts.now
        case "today":
            return lambda facts: facts.now.astimezone(facts.zone).date()


def _variable(spec: VariableSpec, path: Path) -> Getter:
    var_id = spec.id

    def stored(facts: Facts) -> JsonValue:
        entry = facts.memory.get(var_id)
        return None if entry is None else _present(entry.value)

    match spec.type:
        case "custom":
            return lambda facts: _present(walk(stored(facts), path))
        case _ if path:
            return lambda facts: None
        case "date":
            return lambda facts: time_of(stored(facts), facts.zone)
        case "phone":
            return lambda facts: _present(walk(stored(facts), ("number",)))
        case _:
            return stored


def _present(value: JsonValue) -> JsonValue:
    return None if isinstance(value, str) and not value.strip() else value


def constant_value(operand: lang.Operand, beside: lang.Operand, variables: VariableIndex) -> Value:
    """The value of an operand that depends on nothing, as it counts beside another; times in UTC. None where
    it has none."""
    return _getter(operand, variables, beside=beside)(_NOTHING)


_NOTHING: Final = Facts({}, {}, {}, "", "", datetime.fromtimestamp(0, UTC), UTC, {}, {})

# --- shown ------------------------------------------------------------------------------------


def _shown(atom: lang.Reference | lang.Count, variables: VariableIndex, facts: Facts) -> JsonValue:
    """The value as JSON, as far as it is not too long to be read, and not sensitive."""
    value = _getter(atom, variables)(facts)
    if isinstance(atom, lang.Reference) and atom.root == "vars" and value is not None:
        spec = variables.resolve(atom.path[0])
        if spec is not None and spec.sensitive:
            return shown(spec, True)
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE] + "…"
    size = rough_size(value) if isinstance(value, list | dict) else 0
    return value if size <= LONGEST_VALUE else f"… {size} characters"
