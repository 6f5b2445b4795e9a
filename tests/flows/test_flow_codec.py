"""Flow records as plain documents (F7, F15)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator
from flow_engine.ports.flow_store import (
    FlowRecord,
    Guard,
    GuardMetric,
    RolledBack,
    Split,
    SplitSide,
    StoredReply,
    TagEntry,
    VersionEntry,
)
from flows.codec import FORMAT, flow_from_plain, flow_to_plain

T0 = datetime(2026, 3, 1, tzinfo=UTC)
TEXT = st.text(max_size=20)
TIME = st.datetimes(timezones=st.just(UTC))
VERSION = st.builds(
    VersionEntry,
    TEXT,
    st.booleans(),
    st.lists(TEXT, max_size=3).map(tuple),
    TEXT,
    TEXT,
    TIME,
    st.none() | TEXT,
)
SIDE = st.builds(
    SplitSide,
    TEXT,
    st.floats(0.1, 1e9),
    st.lists(st.tuples(st.integers(0, 9_999), st.integers(1, 10_000)), max_size=2).map(tuple),
)
METRIC = st.sampled_from(get_args(GuardMetric))
SPLIT = st.builds(
    Split,
    TEXT,
    st.lists(SIDE, max_size=2).map(tuple),
    st.none() | st.builds(Guard, METRIC, st.floats(0.01, 1e9), st.integers(1, 1_000)),
    st.none() | st.builds(RolledBack, TEXT, METRIC, TIME, TEXT),
)
TAG = st.builds(TagEntry, TEXT, TEXT, TEXT, TIME, st.none() | SPLIT)
REPLY = st.builds(StoredReply, TEXT, TEXT, st.integers(200, 599), st.binary(max_size=40), TIME)
FLOW = st.builds(
    FlowRecord,
    *[TEXT] * 5,
    updated_at=TIME,
    revision=st.integers(1, 2**31),
    versions=st.lists(VERSION, max_size=3).map(tuple),
    tags=st.lists(TAG, max_size=3).map(tuple),
    tag_moves=st.lists(TAG, max_size=3).map(tuple),
    replies=st.lists(REPLY, max_size=3).map(tuple),
)


def _plain() -> dict[str, Any]:
    return flow_to_plain(FlowRecord("f1", "n", "c", "1.0.0", "anna", datetime(2026, 3, 1, tzinfo=UTC)))


@settings(max_examples=60)
@given(FLOW)
def test_every_record_comes_back_from_its_json(flow: FlowRecord) -> None:  # F7
    assert flow_from_plain(json.loads(json.dumps(flow_to_plain(flow)))) == flow


def test_a_record_without_splits_is_one_that_the_release_before_reads() -> None:  # D4
    split = TagEntry("prod", "v1", "anna", T0, Split("s", (SplitSide("v1", 1.0), SplitSide("v2", 1.0))))
    flow = FlowRecord("f1", "n", "c", "1.0.0", "anna", T0)
    assert flow_to_plain(flow)["format"] == 1
    assert flow_to_plain(replace(flow, tags=(split,)))["format"] == FORMAT
    assert flow_to_plain(replace(flow, tag_moves=(split,)))["format"] == FORMAT


def test_keys_of_the_store_are_ignored() -> None:
    assert flow_from_plain({**_plain(), "_id": "t/f1", "tenant_id": "t"}).flow_id == "f1"


def test_a_later_format_is_refused_rather_than_cut_down() -> None:
    with pytest.raises(CallTheOperator, match="stored_flow_newer"):
        flow_from_plain({**_plain(), "format": FORMAT + 1})


@pytest.mark.parametrize(
    "broken",
    [
        {"revision": "many"},
        {"versions": [{"version_id": "v1"}]},
        {"replies": None},
        {"replies": [{"body": "not base64!"}]},
        {"replies": [{"key": "k"}]},
        {"updated_at": "yesterday"},
    ],
)
def test_what_is_no_record_needs_the_operator(broken: dict[str, Any]) -> None:
    with pytest.raises(CallTheOperator, match="stored_flow_unreadable"):
        flow_from_plain({**_plain(), **broken})


def test_an_empty_document_needs_the_operator() -> None:
    with pytest.raises(CallTheOperator, match="stored_flow_unreadable"):
        flow_from_plain({})
