"""What is told of a flow's record: its versions, who changed what and when, whom it serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from flow_engine.errors import ReloadAndDecide
from flow_engine.ports.flow_store import FlowRecord, SplitSide, VersionEntry
from flow_engine.use_cases.publishing import find_entry


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version under one of its tags, or with `tag` None when it has none; author and date are its own. Its
    date is in UTC. `weight`: of a side, where the tag is split."""

    version_id: str
    tag: str | None
    created_by: str
    created_at: datetime
    parent_version_id: str | None = None
    weight: float | None = None
    draft: bool = False


FlowAction = Literal["version_saved", "tag_moved", "tag_split", "rolled_back", "flow_named"]


@dataclass(frozen=True, slots=True)
class FlowChange:
    """What was done to a flow, by whom and when (UTC). `from_version_id`: where a tag pointed before, or the
    parent of a version. `sides`: of a split, versions with their weights. `metric`: why a guard rolled back,
    from `from_version_id` to the base."""

    at: datetime
    by: str
    action: FlowAction
    version_id: str | None = None
    tag: str | None = None
    from_version_id: str | None = None
    sides: tuple[tuple[str, float], ...] = ()
    metric: str | None = None
    draft: bool | None = None


def version_rows(flow: FlowRecord, *, only_tagged: bool) -> tuple[VersionRow, ...]:
    """A row per version and tag, in the order of the saves; untagged versions only if asked for (F27). Each
    side of a split stands under its tag."""
    under: dict[str, list[tuple[str | None, float | None]]] = {}
    for entry in flow.tags:
        sides = (SplitSide(entry.version_id, 0.0),) if entry.split is None else entry.split.sides
        for side in sides:
            weight = None if entry.split is None else side.weight
            under.setdefault(side.version_id, []).append((entry.tag, weight))
    untagged = [] if only_tagged else [(None, None)]
    return tuple(
        VersionRow(
            version.version_id,
            tag,
            version.created_by,
            version.created_at,
            version.parent_version_id,
            weight,
            version.draft,
        )
        for version in flow.versions
        for tag, weight in under.get(version.version_id, untagged)
    )


def flow_changes(flow: FlowRecord) -> Sequence[FlowChange]:
    """Who did what when, the latest first: every version, the last TAG_MOVES_KEPT moves of tags, and the
    latest naming. Times are in UTC."""
    changes = [FlowChange(flow.updated_at, flow.updated_by, "flow_named")]
    for entry in flow.versions:
        parent = entry.parent_version_id
        changes.append(
            FlowChange(
                entry.created_at,
                entry.created_by,
                "version_saved",
                entry.version_id,
                from_version_id=parent,
                draft=entry.draft,
            )
        )
    before: dict[str, str] = {}
    for move in flow.tag_moves:
        split, to = move.split, move.version_id
        if split is None:
            known = before.get(move.tag)
            changes.append(FlowChange(move.created_at, move.created_by, "tag_moved", to, move.tag, known))
        elif split.rolled_back is not None:
            lost = split.rolled_back
            changes.append(
                FlowChange(lost.at, "guard", "rolled_back", to, move.tag, lost.version_id, metric=lost.metric)
            )
        else:
            sides = tuple((side.version_id, side.weight) for side in split.sides)
            known = before.get(move.tag)
            changes.append(
                FlowChange(move.created_at, move.created_by, "tag_split", to, move.tag, known, sides)
            )
        before[move.tag] = to
    changes.reverse()  # of the same moment, what was written last comes first
    changes.sort(key=lambda change: change.at, reverse=True)
    return changes


def common_version(flow: FlowRecord, version_id: str, other_id: str) -> str:
    """The nearest version that both were made from, by their parents; one of the two where it was made from
    the other.

    Raises LookElsewhere (`version_unknown`) and ReloadAndDecide (`no_common_version`).
    """
    parents = {entry.version_id: entry.parent_version_id for entry in flow.versions}

    def lineage(entry: VersionEntry) -> Mapping[str, None]:
        """The version and those that it was made from, the nearest first."""
        found: dict[str, None] = {}
        at: str | None = entry.version_id
        while at is not None and at not in found:
            found[at] = None
            at = parents.get(at)
        return found

    above, own = lineage(find_entry(flow, version_id)), lineage(find_entry(flow, other_id))
    if (shared := next((each for each in own if each in above), None)) is not None:
        return shared
    raise ReloadAndDecide(
        "no_common_version",
        f"{version_id!r} and {other_id!r} have no version in common among those that they were made from",
        accepted=("the query parameter 'baseVersionId'",),
    )


def supports_channel(flow: FlowRecord, channel: str) -> bool:
    """Whether a contact of `channel` can start by one of the flow's tags (F27).

    Untagged versions do not count: the channels of work that was replaced long ago would make a flow look
    compatible. Drafts do not count either, since they never run.
    """
    tagged = {entry.version_id for entry in flow.tags}
    return any(
        entry.version_id in tagged and not entry.draft and channel in entry.channels
        for entry in flow.versions
    )
