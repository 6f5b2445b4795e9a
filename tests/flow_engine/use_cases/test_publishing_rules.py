"""The rules of versions and tags (F6, F7, F8, F27)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.errors import CorrectTheInput, FlowEngineError, LookElsewhere, ReloadAndDecide
from flow_engine.ports.flow_store import FlowRecord, TagEntry, VersionEntry
from flow_engine.use_cases.flow_overview import supports_channel, version_rows
from flow_engine.use_cases.publishing import (
    LATEST,
    check_tag_name,
    find_entry,
    find_tag,
    move_tag,
    place_version,
    rename,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = T0 + timedelta(hours=1)

EMPTY = FlowRecord("f1", "Bookings", "c1", "1.0.0", "anna", T0)


def _entry(version_id: str, *, draft: bool = False, channels: tuple[str, ...] = ("phone",)) -> VersionEntry:
    return VersionEntry(version_id, draft, channels, f"hash of {version_id}", "anna", T0)


def _save(
    flow: FlowRecord, version_id: str, parent: str | None, tag: str | None = None, *, draft: bool = False
) -> FlowRecord:
    entry = _entry(version_id, draft=draft)
    return place_version(flow, version=entry, parent_version_id=parent, tag=tag, now=NOW)


def _move(flow: FlowRecord, tag: str, version_id: str) -> FlowRecord:
    return move_tag(flow, tag=tag, version_id=version_id, moved_by="bruno", now=NOW)


def _tags(flow: FlowRecord) -> dict[str, str]:
    return {entry.tag: entry.version_id for entry in flow.tags}


def _scene() -> FlowRecord:
    """v1 is `prod`, v2 has no tag, v3 is `latest`, d1 is a draft over v3."""
    flow = _save(EMPTY, "v1", None, "prod")
    flow = _save(flow, "v2", "v1")
    flow = _save(flow, "v3", "v2")
    return _save(flow, "d1", "v3", draft=True)


FLOW = _scene()


class TestSavingAVersion:
    def test_the_scene_is_as_described(self) -> None:
        assert _tags(FLOW) == {"prod": "v1", LATEST: "v3"}

    def test_the_first_version_takes_latest(self) -> None:  # F6
        assert _tags(_save(EMPTY, "v1", None)) == {LATEST: "v1"}

    def test_without_a_parent_latest_moves_to_the_new_version(self) -> None:  # F6
        assert _tags(_save(FLOW, "v4", None)) == {"prod": "v1", LATEST: "v4"}

    def test_over_latest_latest_moves_to_the_new_version(self) -> None:  # F6
        assert _tags(_save(FLOW, "v4", "v3")) == {"prod": "v1", LATEST: "v4"}

    def test_over_latest_a_given_tag_is_taken_too(self) -> None:  # F6
        assert _tags(_save(FLOW, "v4", "v3", "test")) == {"prod": "v1", LATEST: "v4", "test": "v4"}

    def test_a_parent_with_latest_and_another_tag_counts_as_latest(self) -> None:  # F6
        flow = _move(FLOW, "test", "v3")
        assert _tags(_save(flow, "v4", "v3")) == {"prod": "v1", LATEST: "v4", "test": "v3"}

    def test_over_a_tagged_parent_a_save_without_a_tag_is_refused(self) -> None:  # F6
        with pytest.raises(ReloadAndDecide) as refused:
            _save(FLOW, "v4", "v1")
        assert refused.value.code == "parent_tagged"
        assert refused.value.state == {
            "parentVersionId": "v1",
            "parentTags": ("prod",),
            "latestVersionId": "v3",
        }
        assert "a new tag" in refused.value.accepted

    def test_over_a_tagged_parent_a_new_tag_is_taken_and_latest_stays(self) -> None:  # F6
        assert _tags(_save(FLOW, "v4", "v1", "hotfix")) == {"prod": "v1", LATEST: "v3", "hotfix": "v4"}

    def test_over_an_untagged_parent_a_save_without_a_tag_is_refused(self) -> None:  # F6
        with pytest.raises(ReloadAndDecide) as refused:
            _save(FLOW, "v4", "v2")
        assert refused.value.code == "parent_not_latest"
        assert refused.value.state["latestVersionId"] == "v3"

    def test_over_an_untagged_parent_a_new_tag_is_taken_and_latest_stays(self) -> None:  # F6
        assert _tags(_save(FLOW, "v4", "v2", "hotfix")) == {"prod": "v1", LATEST: "v3", "hotfix": "v4"}

    def test_the_second_of_two_designers_who_start_from_latest_is_refused(self) -> None:  # F6
        flow = _save(FLOW, "of anna", "v3")
        with pytest.raises(ReloadAndDecide, match="parent_not_latest"):
            _save(flow, "of bruno", "v3")
        assert _tags(_save(flow, "of bruno", "v3", "bruno"))[LATEST] == "of anna"

    @pytest.mark.parametrize("tag", [None, "new"])
    def test_an_unknown_parent_is_refused(self, tag: str | None) -> None:  # F6
        with pytest.raises(LookElsewhere, match="version_unknown"):
            _save(FLOW, "v4", "v9", tag)

    @pytest.mark.parametrize("parent", [None, "v3", "v1", "v2"])
    def test_a_tag_in_use_is_refused(self, parent: str | None) -> None:  # F6
        with pytest.raises(ReloadAndDecide, match="tag_in_use"):
            _save(FLOW, "v4", parent, "prod")

    @pytest.mark.parametrize("parent", [None, "v3", "v1"])
    def test_latest_cannot_be_given_as_the_tag_of_a_save(self, parent: str | None) -> None:  # F6
        with pytest.raises(CorrectTheInput, match="tag_reserved"):
            _save(FLOW, "v4", parent, LATEST)

    def test_an_id_is_saved_once(self) -> None:  # F7
        with pytest.raises(ReloadAndDecide, match="version_exists"):
            _save(FLOW, "v1", "v3")

    def test_the_entry_remembers_the_parent_and_the_tag_its_author(self) -> None:  # F6
        flow = _save(FLOW, "v4", "v3", "test")
        assert find_entry(flow, "v4") == replace(_entry("v4"), parent_version_id="v3")
        assert TagEntry("test", "v4", "anna", NOW) in flow.tags
        assert flow.tag_moves[-2:] == (
            TagEntry("test", "v4", "anna", NOW),
            TagEntry(LATEST, "v4", "anna", NOW),
        )

    def test_saving_does_not_touch_who_named_the_flow(self) -> None:  # F1
        flow = _save(replace(FLOW, updated_by="carla"), "v4", None)
        assert (flow.updated_by, flow.updated_at) == ("carla", T0)


class TestSavingADraft:
    @pytest.mark.parametrize("parent", [None, "v3"])
    def test_over_latest_or_nothing_it_is_saved_without_a_tag_and_moves_nothing(
        self, parent: str | None
    ) -> None:  # F6
        flow = _save(FLOW, "d2", parent, draft=True)
        assert flow.tags == FLOW.tags
        assert flow.tag_moves == FLOW.tag_moves
        assert find_entry(flow, "d2").draft

    def test_in_an_empty_flow_it_does_not_take_latest(self) -> None:  # F6
        assert _save(EMPTY, "d1", None, draft=True).tags == ()

    @pytest.mark.parametrize("parent", [None, "v3", "v1", "v2", "d1"])
    def test_a_new_tag_names_it_and_latest_stays(self, parent: str | None) -> None:  # F6
        assert _tags(_save(FLOW, "d2", parent, "wip", draft=True)) == {**_tags(FLOW), "wip": "d2"}

    @pytest.mark.parametrize("parent", ["v1", "v2", "d1"])
    def test_over_another_parent_it_needs_a_tag_as_any_version(self, parent: str) -> None:  # F6
        with pytest.raises(ReloadAndDecide):
            _save(FLOW, "d2", parent, draft=True)

    def test_a_version_over_a_draft_needs_a_tag(self) -> None:  # F6
        with pytest.raises(ReloadAndDecide, match="parent_not_latest"):
            _save(FLOW, "v4", "d1")
        assert _tags(_save(FLOW, "v4", "d1", "test")) == {**_tags(FLOW), "test": "v4"}


class TestMovingATag:
    def test_a_tag_moves_and_its_history_grows(self) -> None:  # F6
        flow = _move(FLOW, "prod", "v3")
        moved = TagEntry("prod", "v3", "bruno", NOW)
        assert _tags(flow) == {"prod": "v3", LATEST: "v3"}
        assert moved in flow.tags
        assert flow.tag_moves == (*FLOW.tag_moves, moved)

    def test_latest_can_be_rolled_back(self) -> None:  # F6
        flow = _move(FLOW, LATEST, "v2")
        assert _tags(flow)[LATEST] == "v2"
        assert _tags(_save(flow, "v4", "v2"))[LATEST] == "v4"

    def test_a_new_tag_is_created(self) -> None:  # F6
        assert _tags(_move(FLOW, "test", "v2")) == {**_tags(FLOW), "test": "v2"}

    def test_a_tag_that_is_there_already_keeps_its_author_and_date(self) -> None:  # F6
        flow = _move(FLOW, "prod", "v1")
        assert flow == replace(FLOW, revision=FLOW.revision + 1)

    def test_an_unknown_version_is_refused(self) -> None:  # F6
        with pytest.raises(LookElsewhere, match="version_unknown"):
            _move(FLOW, "prod", "v9")

    @pytest.mark.parametrize("tag", ["prod", LATEST, "new"])
    def test_no_tag_moves_to_a_draft(self, tag: str) -> None:  # F6, F8
        with pytest.raises(ReloadAndDecide, match="version_is_draft"):
            _move(FLOW, tag, "d1")

    def test_a_bad_name_is_refused(self) -> None:
        with pytest.raises(CorrectTheInput, match="tag_invalid"):
            _move(FLOW, "not good", "v1")


class TestTagNames:
    @pytest.mark.parametrize("tag", ["a", "v1.2.0", "prod", "Prod_2-b", "1", "x" * 64, "latest", "latest2"])
    def test_good_names(self, tag: str) -> None:
        check_tag_name(tag)

    @pytest.mark.parametrize(
        "tag", ["", "x" * 65, "a b", "a/b", "..", ".a", "-a", "_a", "è", "a\n", "a%2F", "Latest", "LATEST"]
    )
    def test_bad_names_are_refused_with_a_finding(self, tag: str) -> None:
        with pytest.raises(CorrectTheInput) as refused:
            check_tag_name(tag)
        assert refused.value.code == "tag_invalid"
        assert [finding.code for finding in refused.value.findings] == ["tag_invalid"]

    def test_a_bad_name_is_refused_at_the_save(self) -> None:
        with pytest.raises(CorrectTheInput, match="tag_invalid"):
            _save(FLOW, "v4", None, "a/b")


class TestQuestions:
    def test_a_tag_resolves_to_its_version(self) -> None:  # F6
        assert find_tag(FLOW, "prod").version_id == "v1"

    @pytest.mark.parametrize("tag", ["old", "", "PROD"])
    def test_an_unknown_tag_is_refused_with_the_tags_that_there_are(self, tag: str) -> None:
        with pytest.raises(LookElsewhere, match=r"tag_unknown: .* 'prod', 'latest'"):
            find_tag(FLOW, tag)

    def test_a_row_for_each_version_and_tag(self) -> None:  # F27
        flow = _move(FLOW, "test", "v3")
        tags = [(row["versionId"], row["tag"]) for row in version_rows(flow, only_tagged=False)]
        assert tags == [("v1", "prod"), ("v2", None), ("v3", LATEST), ("v3", "test"), ("d1", None)]
        told = version_rows(flow, only_tagged=False)[0]
        assert (told["createdBy"], told["createdAt"]) == ("anna", "2026-03-01T12:00:00Z")
        assert (told["parentVersionId"], told["weight"], told["draft"]) == (None, None, False)

    def test_only_tagged_versions_when_asked_for(self) -> None:  # F27
        assert [row["versionId"] for row in version_rows(FLOW, only_tagged=True)] == ["v1", "v3"]

    def test_renaming_keeps_everything_else(self) -> None:  # F27
        flow = rename(FLOW, name="New", updated_by="carla", now=NOW)
        assert flow == replace(
            FLOW, name="New", updated_by="carla", updated_at=NOW, revision=FLOW.revision + 1
        )

    def test_a_channel_counts_only_where_a_tagged_version_can_run_it(self) -> None:  # F27
        mail = place_version(
            EMPTY, version=_entry("v1", channels=("mail",)), parent_version_id=None, tag=None, now=NOW
        )
        assert supports_channel(mail, "mail")
        assert not supports_channel(mail, "phone")
        replaced = _save(mail, "v2", "v1")
        assert not supports_channel(replaced, "mail")
        draft = _entry("d1", draft=True, channels=("chat",))
        drafted = place_version(replaced, version=draft, parent_version_id=None, tag="wip", now=NOW)
        assert not supports_channel(drafted, "chat")


# --- laws over any history ----------------------------------------------------------------------


@dataclass(frozen=True)
class Save:
    parent: int | None
    tag: str | None
    draft: bool


@dataclass(frozen=True)
class Move:
    tag: str
    version: int


TAG = st.sampled_from(["prod", "test", "wip", LATEST])
OPERATIONS = st.lists(
    st.one_of(
        st.builds(Save, st.none() | st.integers(0, 12), st.none() | TAG, st.booleans()),
        st.builds(Move, TAG, st.integers(0, 12)),
        st.just("rename"),
    ),
    max_size=25,
)


def _apply(flow: FlowRecord, operation: Save | Move | str) -> FlowRecord:
    if isinstance(operation, Save):
        parent = None if operation.parent is None else f"v{operation.parent}"
        return _save(flow, f"v{len(flow.versions)}", parent, operation.tag, draft=operation.draft)
    if isinstance(operation, Move):
        return _move(flow, operation.tag, f"v{operation.version}")
    return rename(flow, name="x", updated_by="carla", now=NOW)


def _check_the_laws(before: FlowRecord, after: FlowRecord) -> None:
    listed = {entry.version_id: entry for entry in after.versions}
    names = [entry.tag for entry in after.tags]
    assert after.revision == before.revision + 1
    assert after.versions[: len(before.versions)] == before.versions
    assert len(listed) == len(after.versions)
    assert len(set(names)) == len(names)
    assert {entry.tag for entry in before.tags} <= set(names)
    assert all(entry.version_id in listed for entry in after.tags)
    if LATEST in names:
        assert not listed[_tags(after)[LATEST]].draft
    assert {move.tag: move for move in after.tag_moves} == {entry.tag: entry for entry in after.tags}
    assert after.tag_moves[: len(before.tag_moves)] == before.tag_moves


@given(OPERATIONS)
def test_whatever_happens_tags_are_unique_latest_can_run_and_no_version_vanishes(
    operations: list[Save | Move | str],
) -> None:  # F6, F7
    flow = EMPTY
    for operation in operations:
        before = flow
        try:
            flow = _apply(before, operation)
        except FlowEngineError:
            continue
        _check_the_laws(before, flow)


@given(OPERATIONS)
def test_a_save_moves_latest_only_over_latest_or_nothing_and_no_other_tag_that_is_in_use(
    operations: list[Save | Move | str],
) -> None:  # F6
    flow = EMPTY
    for operation in operations:
        before = _tags(flow)
        try:
            flow = _apply(flow, operation)
        except FlowEngineError:
            continue
        if isinstance(operation, Save):
            moved = {
                tag for tag, version_id in _tags(flow).items() if before.get(tag, version_id) != version_id
            }
            assert moved <= {LATEST}
            if moved:
                assert operation.parent is None or f"v{operation.parent}" == before[LATEST]
