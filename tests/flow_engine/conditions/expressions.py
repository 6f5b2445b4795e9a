"""Random conditions and facts, and a second, plain reading of what conditions mean."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from flow_engine.conditions import language as lang
from flow_engine.conditions.evaluation import Facts
from flow_engine.conditions.syntax import All, Comparison, Lone, Membership, Not
from flow_engine.conditions.syntax import Any as AnyOf
from flow_engine.values import JsonValue
from flow_engine.variables import VariableIndex, VariableSpec

ZONE = ZoneInfo("Europe/Rome")
NOW = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)  # in Rome it is the 29th, the day on which clocks change

VARIABLES = VariableIndex(
    [
        VariableSpec("name", "name", "string"),
        VariableSpec("age", "age", "number"),
        VariableSpec("vip", "vip", "boolean"),
        VariableSpec("size", "size", "enum", enum_values=("S", "M", 42)),
        VariableSpec("day", "day", "date"),
        VariableSpec("phone", "phone", "phone"),
        VariableSpec("any id", "any", "custom"),
    ]
)
TASKS = ("menu", "a task")
TIMES = ("2026-03-28", "2026-03-29", "2026-03-28T23:00:00Z", "2026-03-29T00:00:00+02:00", "2026-03-28T23:45")


@dataclass(frozen=True)
class Stored:
    value: JsonValue


def facts(values: dict[str, JsonValue] | None = None, **changes: Any) -> Facts:
    """`values` by variable id; everything else as a conversation in Rome has it."""
    known: dict[str, Any] = {
        "memory": {key: Stored(value) for key, value in (values or {}).items()},
        "tenant": {"plan": "gold", "seats": 3, "none": None, "tags": ["a", 1, True], "blank": " "},
        "contact": {"callerId": "+39347", "room": {"floor": 2}},
        "channel": "phone",
        "language": "it-IT",
        "now": NOW,
        "zone": ZONE,
        "entries": {"menu": 2},
        "refusals": {"menu": 1},
    }
    return Facts(**{**known, **changes})


# --- random conditions --------------------------------------------------------------------------

_PATHS = (
    lang.Reference("vars", ("name",)),
    lang.Reference("vars", ("age",)),
    lang.Reference("vars", ("vip",)),
    lang.Reference("vars", ("size",)),
    lang.Reference("vars", ("day",)),
    lang.Reference("vars", ("phone",)),
    lang.Reference("vars", ("any id",)),
    lang.Reference("vars", ("any id", "list")),
    lang.Reference("vars", ("any id", "list", "0")),
    lang.Reference("tenant", ("tags",)),
    lang.Reference("tenant", ("plan",)),
    lang.Reference("contact", ("room", "floor")),
    lang.Reference("channel"),
    lang.Reference("language"),
    lang.Reference("now"),
    lang.Reference("today"),
)
_texts = st.sampled_from(("a", "b", "S", "phone", "it's", 'q"\\', "", *TIMES))
_constants = st.builds(
    lang.Constant, _texts | st.integers(-2, 43) | st.sampled_from((1.5, 2.0)) | st.booleans()
)
_references = st.sampled_from(_PATHS)
_durations = st.builds(lang.Duration, st.integers(-2, 3) | st.just(0.5), st.sampled_from(lang.UNITS))
_counts = st.builds(lang.Count, st.sampled_from(lang.COUNTS), st.sampled_from(TASKS))
_terms = st.one_of(
    _references, _references, _constants, _durations, _counts, st.builds(lang.Has, _references)
)
_summands = st.one_of(_references, _constants, _durations, _counts)


def _sums(left: st.SearchStrategy[lang.Operand]) -> st.SearchStrategy[lang.Operand]:
    return st.builds(lang.Sum, left, st.sampled_from("+-"), _summands)


operands: st.SearchStrategy[lang.Operand] = st.one_of(
    _terms, _terms, _terms, _sums(_summands | _sums(_summands))
)
parts = st.one_of(
    st.builds(Comparison, operands, st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), operands),
    st.builds(Membership, operands, st.lists(operands, max_size=3).map(tuple) | _references, st.booleans()),
    st.builds(Lone, operands),
)


def _joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(All, several), st.builds(AnyOf, several))


trees: st.SearchStrategy[lang.Tree] = st.recursive(parts, _joined, max_leaves=5)

_moments = st.sampled_from(("2026-03-28", "2026-03-29", "2026-03-28T23:00:00Z", "2026-03-29T12:00:00Z"))
_custom = st.one_of(
    st.sampled_from(("a", "", 1, True, [], "2026-03-28")),
    st.fixed_dictionaries({"list": st.lists(st.sampled_from(("a", 1, None, True, " ")), max_size=2)}),
)
memories = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(("a", "b", "S")),
        "age": st.integers(-2, 43) | st.just(1.5),
        "vip": st.booleans(),
        "size": st.sampled_from(("S", "M", 42)),
        "day": _moments,
        "phone": st.sampled_from(("+1212", "+39347")).map(
            lambda n: {"country": "IT", "type": "mobile", "number": n}
        ),
        "any id": _custom,
    },
)
all_facts = st.builds(
    facts,
    memories,
    channel=st.sampled_from(("phone", "chat")),
    entries=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 3)),
)

# --- the same rules, read again -------------------------------------------------------------------

Found = Any
"""None for nothing; `Unlike` never compares."""


def truth(tree: Any, known: Facts) -> bool | None:
    match tree:
        case Not(part=part):
            return {True: False, False: True, None: None}[truth(part, known)]
        case All(parts=several):
            found = {truth(part, known) for part in several}
            return False if False in found else None if None in found else True
        case AnyOf(parts=several):
            found = {truth(part, known) for part in several}
            return True if True in found else None if None in found else False
        case Lone(operand=operand):
            value = found_value(operand, known)
            return value if type(value) is bool else None
        case Comparison(left=left, sign=sign, right=right):
            return related(*pair(left, right, known), sign, known)
        case Membership():
            return membership(tree, known)
    raise AssertionError(tree)


def membership(part: Any, known: Facts) -> bool | None:
    if isinstance(part.members, tuple):
        beside = next((m for m in part.members if timelike(m)), part.operand)
        value = found_value(part.operand, known, dated=timelike(beside))
        others = [found_value(m, known, dated=timelike(part.operand)) for m in part.members]
    else:
        value, others = found_value(part.operand, known), found_value(part.members, known)
    if value is None or not isinstance(others, list):
        return None
    found = {related(value, other, "==", known) for other in others}
    inside = True if True in found else None if None in found else False
    return inside if inside is None or part.inside else not inside


def timelike(operand: Any) -> bool:
    match operand:
        case lang.Reference(root="vars", path=(name, *_)):
            return name == "day"
        case lang.Reference(root=root):
            return root in ("now", "today")
        case lang.Sum():
            return not lengthlike(operand)
    return False


def lengthlike(operand: Any) -> bool:
    match operand:
        case lang.Duration():
            return True
        case lang.Sum(left=left, sign=sign, right=right):
            return (sign == "-" and not lengthlike(right)) or (lengthlike(left) and lengthlike(right))
    return False


def pair(left: Any, right: Any, known: Facts) -> tuple[Found, Found]:
    return found_value(left, known, dated=timelike(right)), found_value(right, known, dated=timelike(left))


def found_value(operand: Any, known: Facts, *, dated: bool = False) -> Found:
    match operand:
        case lang.Constant(value=value):
            return parsed(value) if dated and isinstance(value, str) else value
        case lang.Duration(amount=amount, unit=unit):
            return timedelta(seconds=amount * {"days": 86_400, "hours": 3_600, "minutes": 60}[unit])
        case lang.Count(of=of, task_id=task_id):
            return (known.entries if of == "entries" else known.refusals).get(task_id, 0)
        case lang.Has(reference=reference):
            return found_value(reference, known) is not None
        case lang.Reference(root="vars", path=(name, *path)):
            return variable(name, path, known, dated=dated)
        case lang.Reference(root=root, path=path):
            simple = {"channel": known.channel, "language": known.language, "now": known.now}
            if root == "today":
                return known.now.astimezone(ZONE).date()
            return simple[root] if root in simple else inside(getattr(known, root), path, dated=dated)
        case lang.Sum(left=left, sign=sign, right=right):
            return total(found_value(left, known, dated=True), sign, found_value(right, known, dated=True))
    raise AssertionError(operand)


def variable(name: str, path: list[str], known: Facts, *, dated: bool) -> Found:
    entry = known.memory.get(name)
    value: Any = None if entry is None else entry.value
    if name == "day":
        return None if value is None or path else parsed(value)
    if name == "phone":
        return None if value is None or path else value["number"]
    return inside(value, path, dated=dated and name == "any id")


def inside(value: Any, path: Any, *, dated: bool = False) -> Found:
    for part in path:
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    if isinstance(value, str):
        return parsed(value) if dated else value if value.strip() else None
    return value


def parsed(text: str) -> date | None:
    try:
        if "T" not in text:
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=ZONE)
    except ValueError:
        return None


def day_of(moment: date) -> date:
    return moment.astimezone(ZONE).date() if isinstance(moment, datetime) else moment


def total(one: Found, sign: str, other: Found) -> Found:
    if isinstance(one, timedelta) and isinstance(other, timedelta):
        return one + other if sign == "+" else one - other
    if isinstance(one, timedelta) and isinstance(other, date) and sign == "+":
        one, other = other, one
    if not isinstance(one, date):
        return None
    if isinstance(other, date) and sign == "-":
        both = isinstance(one, datetime) and isinstance(other, datetime)
        return one - other if both else day_of(one) - day_of(other)
    if not isinstance(other, timedelta):
        return None
    length = other if sign == "+" else -other
    if isinstance(one, datetime):
        return one.astimezone(UTC) + length
    if length.seconds or length.microseconds:
        return datetime(one.year, one.month, one.day, tzinfo=ZONE).astimezone(UTC) + length
    return one + length


def related(one: Found, other: Found, sign: str, known: Facts) -> bool | None:
    kinds = (kind(one), kind(other))
    if None in kinds or kinds[0] != kinds[1]:
        return None
    if kinds[0] == "time" and not (isinstance(one, datetime) and isinstance(other, datetime)):
        one, other = day_of(one), day_of(other)
    equal = one == other and repr(one) == repr(other) if kinds[0] in ("list", "object") else one == other
    if sign in ("==", "!="):
        return equal == (sign == "==")
    if kinds[0] in ("list", "object", "boolean"):
        return None
    return {"<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[sign]


def kind(value: Found) -> str | None:
    names = (
        (bool, "boolean"),
        (int, "number"),
        (float, "number"),
        (str, "text"),
        (date, "time"),
        (timedelta, "duration"),
        (list, "list"),
        (dict, "object"),
    )
    return next((name for known, name in names if isinstance(value, known)), None)
