"""What differs between two versions, by what things are and not by where they stand; two versions of one,
merged by the same rules.

1. Things that have an id (`_id`, or the property in `_KEYED`) are compared with the thing of the same id:
   their order is no difference, and neither is that of properties.
2. A list of ids is a set of connections, or of global tasks.
3. What the server sets is no difference, nor is `null` in place of a property that is not there.
4. Everything else is a value: one change for each that differs, with both sides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast

from typing_extensions import TypedDict

from flow_engine.documents.parsing import SET_BY_SERVER
from flow_engine.errors import pointer
from flow_engine.json_values import as_object, same_json


class Change(TypedDict):
    """`what` is a word of the document: `task`, `variable`, `connection`, … or `version` for what belongs to
    none of them, whose `id` is the property's name. A connection's is `from->to`. `path` is a JSON pointer
    (RFC 6901) with ids in place of positions. The missing side of what was added or removed is null.
    """

    what: str
    id: str
    change: Literal["added", "removed", "changed"]
    path: str
    before: object
    after: object


class VersionDifference(TypedDict):
    changes: list[Change]


_ITSELF = ""
_KEYED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("version", "aiHelpers"): ("aiHelper", "_id"),
    ("version", "variables"): ("variable", "_id"),
    ("version", "tasks"): ("task", "_id"),
    ("version", "checkpoints"): ("checkpoint", "_id"),
    ("version", "reasonsOfContact"): ("reasonOfContact", "name"),
    ("version", "results"): ("result", "name"),
    ("version", "scorecards"): ("scorecard", "name"),
    ("version", "mcpServers"): ("mcpServer", "name"),
    ("version", "globalTasks"): ("globalTask", _ITSELF),
    ("scorecard", "criteria"): ("criterion", "name"),
    ("mcpServer", "includedTools"): ("tool", "toolName"),
    ("task", "aiHelpers"): ("aiHelper", "_id"),
    ("task", "connectedTasks"): ("connection", _ITSELF),
    ("task", "excludedGlobalTasks"): ("excludedGlobalTask", _ITSELF),
    ("task", "transitionParameters"): ("transitionParameter", "variableId"),
    ("task", "enabledCheckpoints"): ("checkpoint", "_id"),
    ("task", "mcpToolSelection"): ("toolSelection", "mcpServerName"),
    ("toolSelection", "selectedTools"): ("tool", "toolName"),
    ("tool", "toolParameters"): ("toolParameter", "parameterName"),
}
"""Of a list in a thing: what its items are, and the property that identifies one."""

_BY_CONNECTION = ("task", "connectionConditions")
"""An object whose properties are the tasks that a connection leads to."""


@dataclass(frozen=True, slots=True)
class _Thing:
    """`kind` is "" within a thing's own values, where no property names other things."""

    what: str
    id: str
    path: tuple[str, ...]
    kind: str


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> VersionDifference:
    """The changes that make the second version of the first, in the order of the properties, the first
    version's before those that only the second has. Both are decoded JSON of any content."""
    version = _Thing("version", "", (), "version")
    kept_before, kept_after = (
        {name: value for name, value in side.items() if name not in SET_BY_SERVER} for side in (before, after)
    )
    return VersionDifference(changes=list(_of_objects(version, kept_before, kept_after)))


def _of_objects(thing: _Thing, before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        left, right = before.get(name), after.get(name)
        if same_json(left, right):
            continue
        path = (*thing.path, name)
        value = _Thing(thing.what, thing.id or name, path, "")
        what, key = _KEYED.get((thing.kind, name), ("", "_id"))
        if (thing.kind, name) == _BY_CONNECTION:
            yield from _of_things(value, "connection", as_object(left), as_object(right))
            continue
        items, others = (_by_key([] if what and side is None else side, key) for side in (left, right))
        if items is not None and others is not None:
            yield from _of_things(value, what, items, others)
        else:
            yield from _of_values(value, left, right)


def _of_things(
    owner: _Thing, what: str, before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[Change]:
    """`what` is "" for things that are a value of their owner."""
    for key in dict.fromkeys((*before, *after)):
        own_id = f"{owner.id}->{key}" if what == "connection" else key
        path = (*owner.path, key)
        thing = _Thing(what, own_id, path, what) if what else _Thing(owner.what, owner.id, path, "")
        if key in before and key in after:
            yield from _of_values(thing, before[key], after[key])
        elif what:
            change = "added" if key in after else "removed"
            yield _change(thing, change, before.get(key), after.get(key))
        else:
            yield _change(thing, "changed", before.get(key), after.get(key))


def _of_values(thing: _Thing, before: object, after: object) -> Iterator[Change]:
    if same_json(before, after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        parts, others = cast("Mapping[str, object]", before), cast("Mapping[str, object]", after)
        yield from _of_objects(thing, parts, others)
    else:
        yield _change(thing, "changed", cast("object", before), after)


def _change(
    thing: _Thing, change: Literal["added", "removed", "changed"], before: object, after: object
) -> Change:
    path = pointer(*thing.path)
    return Change(what=thing.what, id=thing.id, change=change, path=path, before=before, after=after)


def _by_key(items: object, key: str) -> Mapping[str, object] | None:
    """The items of a list by what identifies them; None where one has no such text, or two have the same."""
    if not isinstance(items, list):
        return None
    found: dict[str, object] = {}
    for item in cast("list[object]", items):
        name = item if key == _ITSELF else as_object(item).get(key)
        if not isinstance(name, str) or name in found:
            return None
        found[name] = item
    return found


# --- two versions of one, merged ----------------------------------------------------------------


Side = Literal["base", "ours", "theirs"]


class MergeConflict(TypedDict):
    """What both versions made otherwise of the same: `path` as in `Change`, and what the base and the two
    have there, null for nothing. The merged document has `ours`, or `theirs` where `ours` is nothing."""

    path: str
    base: object
    ours: object
    theirs: object


class MergedVersion(TypedDict):
    """`document` is without what the server sets, and has everything of both that is in no conflict."""

    document: Mapping[str, object]
    conflicts: Sequence[MergeConflict]


@dataclass(frozen=True, slots=True)
class _Settling:
    """What becomes of that which both have made otherwise."""

    choices: Mapping[str, Side]
    conflicts: list[MergeConflict] = field(default_factory=list[MergeConflict])

    def settled(self, path: str, base: object, ours: object, theirs: object) -> object:
        conflict = MergeConflict(path=path, base=base, ours=ours, theirs=theirs)
        if (chosen := self.choices.get(path)) is not None:
            return conflict[chosen]
        self.conflicts.append(conflict)
        return theirs if ours is None else ours


def merged(
    base: Mapping[str, object],
    ours: Mapping[str, object],
    theirs: Mapping[str, object],
    choices: Mapping[str, Side] = MappingProxyType({}),
) -> MergedVersion:
    """What both versions change of their base, in one document. Decoded JSON of any content.

    Things are the same by their ids; what only one of the two has changed, added or removed is taken from it.
    What was removed by one and changed by the other stays, as a conflict. Things stand in the order of
    `ours`, and those that only `theirs` has after the one that they follow there. A conflict whose path has
    one of the `choices` is none: the document has what that side has there.
    """
    settling = _Settling(choices)
    had, own, others = (
        {name: value for name, value in side.items() if name not in SET_BY_SERVER}
        for side in (base, ours, theirs)
    )
    document = _merged_objects(_Thing("version", "", (), "version"), (had, own, others), settling)
    return MergedVersion(document=document, conflicts=settling.conflicts)


def nearest_version(document: Mapping[str, object], versions: Mapping[str, Mapping[str, object]]) -> str:
    """The id of the version that the document changes least, of two alike that of the later one."""
    return min(reversed([*versions]), key=lambda id: len(difference(versions[id], document)["changes"]))


def _merged_objects(
    thing: _Thing,
    sides: tuple[Mapping[str, object], Mapping[str, object], Mapping[str, object]],
    settling: _Settling,
) -> dict[str, object]:
    """A property of null is one that is not there; it is left where both agree on it."""
    base, ours, theirs = sides
    found: dict[str, object] = {}
    for name in _in_order(ours, theirs):
        what, key = _KEYED.get((thing.kind, name), ("", "_id"))
        value = _merged_values(
            _Thing(what, key, (*thing.path, name), ""),
            (base.get(name), ours.get(name), theirs.get(name)),
            settling,
        )
        if value is not None or (name in ours and name in theirs and ours[name] is None):
            found[name] = value
    return found


def _merged_values(place: _Thing, sides: tuple[object, object, object], settling: _Settling) -> object:
    """Of a property: `what` and `id` of the place are what its items are, and what identifies one."""
    base, ours, theirs = sides
    if same_json(ours, theirs) or same_json(base, theirs):
        return ours
    if same_json(base, ours):
        return theirs
    if all(isinstance(side, Mapping) for side in (ours, theirs)):
        inner = _Thing("", "", place.path, place.kind)
        return _merged_objects(inner, (as_object(base), as_object(ours), as_object(theirs)), settling)
    had, own, others = (_by_key([] if side is None else side, place.id) for side in sides)
    if had is not None and own is not None and others is not None:
        kept: list[object] = []
        for name in _in_order(own, others):
            inner = _Thing("", "_id", (*place.path, name), place.what)
            value = _merged_values(inner, (had.get(name), own.get(name), others.get(name)), settling)
            kept += [] if value is None else [value]
        return kept
    return settling.settled(pointer(*place.path), base, ours, theirs)


def _in_order(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """The names of both: ours, with each that only theirs has after the one before it there."""
    following: dict[str, list[str]] = {}
    before = ""
    for name in theirs:
        if name in ours:
            before = name
        else:
            following.setdefault(before, []).append(name)
    first = [] if "" in ours else following.pop("", [])
    return [*first, *(each for name in ours for each in (name, *following.get(name, ())))]
