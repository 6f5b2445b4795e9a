"""Flow records as plain documents (F7, F15)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator
from flow_engine.ports.flow_store import FlowRecord, StoredReply, TagEntry, VersionEntry
from flows.codec import FORMAT, flow_from_plain, flow_to_plain

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
TAG = st.builds(TagEntry, TEXT, TEXT, TEXT, TIME)
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
