"""The rules of versions and tags: what a save, a promotion and a rollback make of a flow.

This file owns them all (F6, F7, F27). Every change is a pure function from a flow's record to its next
record, whose revision is one higher, or an error. Whoever stores the result does so over the revision
that the rules have read, and runs them again on the fresh record when somebody else was faster.

1. `latest` names the newest version that can run. It moves to a version saved over it, or over nothing.
2. Any other version is a parent only with a new tag, so that two designers who start from the same
   version cannot bury one another's work: the second one's parent is no longer `latest`.
3. A save never moves a tag that is in use, other than `latest`. Moving is a decision of its own.
4. Drafts never take `latest`, and no tag is moved to one: a tag is an environment, and a draft never
   runs (F8). A draft may be saved with a new tag, which is then only a name for the designers' work;
   otherwise no draft could ever be saved over a draft (rule 2).
5. `latest` is given by rule 1 alone when a version is saved, but it may be moved like any other tag:
   that is how a bad version is rolled back.
6. A flow lists at most VERSIONS_KEPT versions and remembers its last TAG_MOVES_KEPT moves of tags: its record
   is one document, written whole at each change.
7. A tag may be split: new conversations are shared out among versions that can run and serve the channels of
   the first, the base. For every other rule the tag points to its base. Moving the tag ends the split. A
   split whose base stays goes on when its weights or sides change, unless it was rolled back; any other one
   is new, and so are its outcomes.
8. `updated_by` and `updated_at` tell who named the flow and when; the tags have an author and a date of
   their own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from flow_engine.errors import CorrectTheInput, Finding, LookElsewhere, ReloadAndDecide
from flow_engine.ports.flow_store import FlowRecord, Guard, RolledBack, Split, TagEntry, VersionEntry
from flow_engine.use_cases.splits import ShareOrder, share_findings, shared_out

LATEST = "latest"
VERSIONS_KEPT = 5_000
TAG_MOVES_KEPT = 1_000

_TAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """A split as a designer asks for it: the first side is the base."""

    tag: str
    sides: tuple[ShareOrder, ...]
    split_by: str
    guard: Guard | None = None


# --- changes ----------------------------------------------------------------------------------


def place_version(
    flow: FlowRecord, now: datetime, *, version: VersionEntry, parent_version_id: str | None, tag: str | None
) -> FlowRecord:
    """List a new version under `flow` with the tags that rules 1 to 5 give it.

    Raises CorrectTheInput (`tag_invalid`, `tag_reserved`), LookElsewhere (`version_unknown`) and
    ReloadAndDecide (`version_exists`, `tag_in_use`, `parent_tagged`, `parent_not_latest`, `flow_full`). `now`
    is in UTC.
    """
    if parent_version_id is not None:
        find_entry(flow, parent_version_id)
    if lists_version(flow, version.version_id):
        raise ReloadAndDecide(
            "version_exists", f"version {version.version_id!r} is already saved, and a version never changes"
        )
    if len(flow.versions) >= VERSIONS_KEPT:
        raise ReloadAndDecide(
            "flow_full",
            f"flow {flow.flow_id!r} lists {VERSIONS_KEPT} versions, the most it can: go on in another flow",
            accepted=("another flow",),
        )
    over_latest = parent_version_id is None or LATEST in tags_of(flow, parent_version_id)
    if tag is not None:
        _check_tag_for_save(flow, tag)
    elif parent_version_id is not None and not over_latest:
        raise _not_over_latest(flow, parent_version_id)

    listed = replace(flow, versions=(*flow.versions, replace(version, parent_version_id=parent_version_id)))
    if tag is not None:
        listed = _point(listed, TagEntry(tag, version.version_id, version.created_by, now))
    if over_latest and not version.draft:
        listed = _point(listed, TagEntry(LATEST, version.version_id, version.created_by, now))
    return _next_revision(listed)


def move_tag(flow: FlowRecord, now: datetime, *, tag: str, version_id: str, moved_by: str) -> FlowRecord:
    """Point `tag` at a version that can run: a promotion, or a rollback. A new tag is created.

    A tag that is there already keeps its author and date, so that a repeated request changes nothing but the
    revision. Raises CorrectTheInput (`tag_invalid`), LookElsewhere (`version_unknown`) and ReloadAndDecide
    (`version_is_draft`). `now` is in UTC.
    """
    check_tag_name(tag)
    if find_entry(flow, version_id).draft:
        raise ReloadAndDecide(
            "version_is_draft",
            f"version {version_id!r} is a draft, and drafts never run: "
            f"save it as a version that is not a draft, then move {tag!r} there",
            state={"tag": tag, "versionId": version_id},
        )
    if any(entry.split is None and (entry.tag, entry.version_id) == (tag, version_id) for entry in flow.tags):
        return _next_revision(flow)
    return _next_revision(_point(flow, TagEntry(tag, version_id, moved_by, now)))


def split_tag(flow: FlowRecord, now: datetime, *, order: SplitOrder, new_id: str) -> FlowRecord:
    """Share a tag's new conversations out. `new_id` names the split where it is a new one; `now` is in UTC.

    Raises CorrectTheInput: `tag_invalid`, and `split_invalid` with every side that cannot be one.
    """
    check_tag_name(order.tag)
    findings = share_findings(order.sides, _no_sides(flow, order.sides))
    if findings:
        raise CorrectTheInput("split_invalid", f"{len(findings)} fault(s) in the split's sides", findings)
    base = order.sides[0].version_id
    before = next((entry.split for entry in flow.tags if entry.tag == order.tag), None)
    goes_on = before is not None and before.rolled_back is None and before.sides[0].version_id == base
    split = Split(
        before.split_id if goes_on and before is not None else new_id,
        shared_out(order.sides, before),
        order.guard,
    )
    return _next_revision(_point(flow, TagEntry(order.tag, base, order.split_by, now, split)))


def roll_back(flow: FlowRecord, tag: str, split_id: str, rolled_back: RolledBack) -> FlowRecord | None:
    """Leave new conversations to the base. None where somebody else has, or that split is over."""
    for entry in flow.tags:
        split = entry.split
        if entry.tag == tag and split is not None and split.split_id == split_id:
            if split.rolled_back is not None:
                return None
            ended = replace(entry, split=replace(split, rolled_back=rolled_back))
            return _next_revision(_point(flow, ended))
    return None


def rename(flow: FlowRecord, now: datetime, *, name: str, updated_by: str) -> FlowRecord:
    """Give the flow another name. Names need not be unique: ids are. `now` is in UTC."""
    return _next_revision(replace(flow, name=name, updated_by=updated_by, updated_at=now))


# --- questions --------------------------------------------------------------------------------


def check_tag_name(tag: str) -> None:
    """Raise CorrectTheInput (`tag_invalid`) unless `tag` can be a tag's name.

    A name stands in URLs as one path segment. Names are case sensitive, but no name may differ from `latest`
    by case alone: people would take the one for the other. 1 to 64 characters.
    """
    if _TAG_NAME.fullmatch(tag) is None:
        raise CorrectTheInput.breach(
            "tag_invalid",
            "a tag has 1 to 64 letters (A-Z, a-z), digits, '.', '_' or '-'; the first is a letter or digit",
        )
    if tag != LATEST and tag.lower() == LATEST:
        raise CorrectTheInput.breach(
            "tag_invalid", f"{tag!r} would be taken for {LATEST!r}: choose another name"
        )


def lists_version(flow: FlowRecord, version_id: str) -> bool:
    return any(entry.version_id == version_id for entry in flow.versions)


def find_entry(flow: FlowRecord, version_id: str) -> VersionEntry:
    """The entry of a listed version. Raises LookElsewhere (`version_unknown`). Its date is in UTC."""
    for entry in flow.versions:
        if entry.version_id == version_id:
            return entry
    raise LookElsewhere("version_unknown", _no_version(flow, version_id))


def _no_version(flow: FlowRecord, version_id: str) -> str:
    tagged = next((entry.version_id for entry in flow.tags if entry.tag == version_id), None)
    hint = "" if tagged is None else f"; {version_id!r} is a tag, of version {tagged!r}"
    return f"flow {flow.flow_id!r} has no version {version_id!r}{hint}"


def find_tag(flow: FlowRecord, tag: str) -> TagEntry:
    """Raises LookElsewhere (`tag_unknown`). Its date is in UTC."""
    for entry in flow.tags:
        if entry.tag == tag:
            return entry
    there = ", ".join(repr(entry.tag) for entry in flow.tags) or "none"
    raise LookElsewhere("tag_unknown", f"flow {flow.flow_id!r} has no tag {tag!r}; its tags: {there}")


def tags_of(flow: FlowRecord, version_id: str) -> tuple[str, ...]:
    return tuple(entry.tag for entry in flow.tags if entry.version_id == version_id)


# --- the parts of the rules -------------------------------------------------------------------


def _no_sides(flow: FlowRecord, sides: Sequence[ShareOrder]) -> Mapping[str, Finding]:
    """By version id, why it cannot be a side of this split."""
    listed = {entry.version_id: entry for entry in flow.versions}
    base = listed.get(sides[0].version_id)
    refused: dict[str, Finding] = {}
    for side in sides:
        version_id, entry = side.version_id, listed.get(side.version_id)
        if entry is None:
            refused[version_id] = Finding("", "version_unknown", _no_version(flow, version_id))
        elif entry.draft:
            message = f"version {version_id!r} is a draft, and drafts never run"
            refused[version_id] = Finding("", "version_is_draft", message)
        elif base is not None and (lacking := set(base.channels) - set(entry.channels)):
            message = f"version {version_id!r} lacks channels of the base: {', '.join(sorted(lacking))}"
            refused[version_id] = Finding("", "channels_missing", message)
    return refused


def _check_tag_for_save(flow: FlowRecord, tag: str) -> None:
    check_tag_name(tag)
    if tag == LATEST:
        raise CorrectTheInput.breach(
            "tag_reserved",
            f"{LATEST!r} follows the parent of a saved version: leave the tag out, or give another one",
        )
    for entry in flow.tags:
        if entry.tag == tag:
            raise ReloadAndDecide(
                "tag_in_use",
                f"{tag!r} points to version {entry.version_id!r}: give a new tag, or save without it and "
                "then move it",
                state={"tag": tag, "versionId": entry.version_id},
            )


def _not_over_latest(flow: FlowRecord, parent_version_id: str) -> ReloadAndDecide:
    parent_tags = tags_of(flow, parent_version_id)
    newest = next((entry.version_id for entry in flow.tags if entry.tag == LATEST), None)
    code = "parent_tagged" if parent_tags else "parent_not_latest"
    carries = f"is tagged {', '.join(map(repr, parent_tags))}" if parent_tags else f"is not {LATEST!r}"
    return ReloadAndDecide(
        code,
        f"parent {parent_version_id!r} {carries}: save with a new tag, or over the version tagged {LATEST!r}",
        state={"parentVersionId": parent_version_id, "parentTags": parent_tags, "latestVersionId": newest},
        accepted=("a new tag", f"the version tagged {LATEST!r} as the parent", "no parent"),
    )


def _point(flow: FlowRecord, entry: TagEntry) -> FlowRecord:
    """Let a tag point elsewhere, in its old place among the tags, and remember it in the history."""
    moved = tuple(entry if old.tag == entry.tag else old for old in flow.tags)
    tags = moved if entry in moved else (*moved, entry)
    noted = entry
    if entry.split is not None:  # its buckets are of no use to the history
        sides = tuple(replace(side, buckets=()) for side in entry.split.sides)
        noted = replace(entry, split=replace(entry.split, sides=sides))
    return replace(flow, tags=tags, tag_moves=(*flow.tag_moves, noted)[-TAG_MOVES_KEPT:])


def _next_revision(flow: FlowRecord) -> FlowRecord:
    return replace(flow, revision=flow.revision + 1)
