"""What is told of a flow's record: its versions, who changed what and when, whom it serves."""

from collections.abc import Mapping, Sequence

from typing_extensions import TypedDict

from flow_engine.errors import ReloadAndDecide
from flow_engine.ports.flow_store import FlowRecord, Split, SplitSide, VersionEntry
from flow_engine.use_cases.publishing import find_entry
from flow_engine.values import utc_text


class SideReply(TypedDict):
    versionId: str
    weight: float


class VersionRowReply(TypedDict):
    """A version under one of its tags. `parentVersionId` is the version that this one was made from, `weight`
    that of a split tag's side. Author and date are the version's own, the date in UTC."""

    versionId: str
    tag: str | None
    createdBy: str
    createdAt: str
    parentVersionId: str | None
    weight: float | None
    draft: bool


class FlowChangeReply(TypedDict):
    """`action` is `version_saved`, `tag_moved`, `tag_split`, `rolled_back` (by the split's guard, whose
    `metric` was worse) or `flow_named`. `fromVersionId` is where the tag pointed before, a version's parent,
    or what was rolled back. `at` is in UTC."""

    at: str
    by: str
    action: str
    versionId: str | None
    fromVersionId: str | None
    tag: str | None
    split: Sequence[SideReply] | None
    metric: str | None
    draft: bool | None


class FlowHistoryReply(TypedDict):
    """The latest first; `cut`: there is more of it."""

    changes: Sequence[FlowChangeReply]
    cut: bool


def split_sides(split: Split) -> Sequence[SideReply]:
    return [SideReply(versionId=side.version_id, weight=side.weight) for side in split.sides]


def version_rows(flow: FlowRecord, *, only_tagged: bool) -> Sequence[VersionRowReply]:
    """A row per version and tag, in the order of the saves; untagged versions only if asked for (F27). Each
    side of a split stands under its tag."""
    under: dict[str, list[tuple[str | None, float | None]]] = {}
    for entry in flow.tags:
        sides = (SplitSide(entry.version_id, 0.0),) if entry.split is None else entry.split.sides
        for side in sides:
            weight = None if entry.split is None else side.weight
            under.setdefault(side.version_id, []).append((entry.tag, weight))
    untagged = [] if only_tagged else [(None, None)]
    return [
        VersionRowReply(
            versionId=version.version_id,
            tag=tag,
            createdBy=version.created_by,
            createdAt=utc_text(version.created_at),
            parentVersionId=version.parent_version_id,
            weight=weight,
            draft=version.draft,
        )
        for version in flow.versions
        for tag, weight in under.get(version.version_id, untagged)
    ]


_UNTOLD = FlowChangeReply(
    at="",
    by="",
    action="",
    versionId=None,
    fromVersionId=None,
    tag=None,
    split=None,
    metric=None,
    draft=None,
)


def flow_history(flow: FlowRecord, *, at_most: int) -> FlowHistoryReply:
    """Who did what when: every version, the last moves of tags, and the latest naming."""
    named: FlowChangeReply = {**_UNTOLD, "by": flow.updated_by, "action": "flow_named"}
    changes = [(flow.updated_at, named)]
    for entry in flow.versions:
        saved: FlowChangeReply = {
            **_UNTOLD,
            "by": entry.created_by,
            "action": "version_saved",
            "versionId": entry.version_id,
            "fromVersionId": entry.parent_version_id,
            "draft": entry.draft,
        }
        changes.append((entry.created_at, saved))
    before: dict[str, str] = {}
    for move in flow.tag_moves:
        split, moved_at = move.split, move.created_at
        moved: FlowChangeReply = {
            **_UNTOLD,
            "by": move.created_by,
            "action": "tag_moved",
            "versionId": move.version_id,
            "fromVersionId": before.get(move.tag),
            "tag": move.tag,
        }
        if split is not None and (lost := split.rolled_back) is not None:
            moved_at, moved["by"], moved["action"] = lost.at, "guard", "rolled_back"
            moved["fromVersionId"], moved["metric"] = lost.version_id, lost.metric
        elif split is not None:
            moved["action"], moved["split"] = "tag_split", split_sides(split)
        changes.append((moved_at, moved))
        before[move.tag] = move.version_id
    changes.reverse()  # of the same moment, what was written last comes first
    changes.sort(key=lambda change: change[0], reverse=True)
    told = changes[:at_most]
    return FlowHistoryReply(
        changes=[{**change, "at": utc_text(at)} for at, change in told], cut=len(changes) > len(told)
    )


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
