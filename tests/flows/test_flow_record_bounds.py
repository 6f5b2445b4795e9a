"""A flow's record stays within what its stores take (A15)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pymongo.errors import DocumentTooLarge

from flow_engine.errors import CorrectTheInput, ReloadAndDecide
from flow_engine.ports.flow_store import FlowRecord, VersionEntry
from flow_engine.use_cases import publishing
from flows.mongo_store import mongo_errors_translated

T0 = datetime(2026, 3, 1, tzinfo=UTC)


def version(number: int) -> VersionEntry:
    return VersionEntry(f"v{number}", False, ("chat",), "hash", "anna", T0)


@pytest.fixture
def flow() -> FlowRecord:
    empty = FlowRecord("f", "F", "c", "1.0.0", "anna", T0)
    return publishing.place_version(empty, version=version(0), parent_version_id=None, tag=None, now=T0)


def test_only_the_last_moves_of_tags_are_remembered(flow: FlowRecord) -> None:  # A15
    flow = publishing.place_version(flow, version=version(1), parent_version_id="v0", tag=None, now=T0)
    for number in range(publishing.TAG_MOVES_KEPT + 20):
        name = f"v{number % 2}"
        flow = publishing.move_tag(flow, tag="prod", version_id=name, moved_by="b" * 500, now=T0)
    assert len(flow.tag_moves) == publishing.TAG_MOVES_KEPT
    assert publishing.find_tag(flow, "prod").version_id == "v1"


def test_a_flow_that_is_full_says_what_to_do(flow: FlowRecord) -> None:  # A15
    full = replace(flow, versions=tuple(version(number) for number in range(publishing.VERSIONS_KEPT)))
    with pytest.raises(ReloadAndDecide) as refused:
        publishing.place_version(full, version=version(-1), parent_version_id=None, tag=None, now=T0)
    assert refused.value.code == "flow_full"


def test_a_record_that_mongodb_does_not_take_is_the_callers_to_mend() -> None:  # A15
    with pytest.raises(CorrectTheInput, match="flow_record_too_large"), mongo_errors_translated():
        raise DocumentTooLarge("17 MB")
