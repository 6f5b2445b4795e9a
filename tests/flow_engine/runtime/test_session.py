"""The snapshot of a conversation and its stored form (F14)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator
from flow_engine.runtime.session import (
    SNAPSHOT_FORMAT,
    Approval,
    Contact,
    Session,
    TaskEntry,
    decode_session,
    encode_session,
)
from flow_engine.vocabulary import CHANNELS

NOW = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
texts = st.text(max_size=20)
moments = st.datetimes(timezones=st.just(UTC))
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
facts = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def made(model: Callable[..., Any], **fields: Any) -> st.SearchStrategy[Any]:
    """`st.builds` would take the aliases of a model for its required arguments."""
    return st.fixed_dictionaries(fields).map(lambda given: model(**given))


contacts = made(
    Contact,
    channel=st.sampled_from(CHANNELS),
    status=st.sampled_from(("active", "ended", "superseded")),
    started_at=moments,
    ended_at=st.none() | moments,
    data=facts,
    tasks=st.lists(texts, max_size=3).map(tuple),
)
counters = st.dictionaries(texts, st.integers(0, 2**40), max_size=3)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    known = draw(st.dictionaries(texts, contacts, min_size=1, max_size=3))
    return Session(
        conversation_id=draw(texts),
        tenant_id=draw(texts),
        campaign_id=draw(texts),
        flow_id=draw(texts),
        version_id=draw(texts),
        content_hash=draw(texts),
        revision=draw(st.integers(1, 2**53)),
        configuration=tuple(draw(st.lists(texts, max_size=3))),
        history=tuple(draw(st.lists(texts, max_size=1))),
        contacts=known,
        active_contact_id=draw(st.none() | st.sampled_from(sorted(known))),
        language=draw(texts),
        started_at=draw(moments),
        task=draw(
            made(
                TaskEntry,
                task_id=texts,
                entered_at=moments,
                global_prompt=texts,
                prompt=texts,
                descriptions=st.dictionaries(texts, texts, max_size=3),
                routing_deadline=st.none() | moments,
                human_reason=st.none() | texts,
            )
        ),
        entered=draw(counters),
        refused=draw(counters),
        deadline=draw(st.none() | moments),
        pending_command=draw(st.none() | texts),
        digressions=draw(st.lists(texts, max_size=2).map(tuple)),
        approval=draw(
            st.none()
            | made(
                Approval,
                id=st.integers(1, 99),
                task_id=texts,
                status=st.sampled_from(("waiting", "edited", "withdrawn")),
                text=texts,
                draft=texts,
                asked_at=moments,
                until=moments,
                reason=st.none() | texts,
                decided_at=st.none() | moments,
            )
        ),
        hidden=draw(st.dictionaries(texts, st.tuples(st.just("phone"), st.just(True)), max_size=2)),
    )


def stored(**changes: Any) -> bytes:
    """A snapshot as Redis holds it, with some of its fields changed; `...` takes one away."""
    session = Session(
        conversation_id="conv-1",
        tenant_id="default",
        campaign_id="campaign-1",
        flow_id="flow-1",
        version_id="version-1",
        content_hash="hash",
        revision=3,
        configuration=("active", "active/reception"),
        contacts={"call-1": Contact(channel="phone", status="active", started_at=NOW)},
        active_contact_id="call-1",
        language="en-US",
        started_at=NOW,
        task=TaskEntry(
            task_id="reception", entered_at=NOW, global_prompt="g", prompt="p", descriptions={"a": "b"}
        ),
    )
    raw = orjson.loads(encode_session(session)) | changes
    return orjson.dumps({name: value for name, value in raw.items() if value is not ...})


def refusal(snapshot: bytes) -> str:
    with pytest.raises(CallTheOperator) as raised:
        decode_session(snapshot)
    return raised.value.code


@given(sessions())
@settings(deadline=None)
def test_a_snapshot_reads_back_to_exactly_the_same_session(session: Session) -> None:
    again = decode_session(encode_session(session))
    assert again == session  # F14
    assert encode_session(again) == encode_session(session)


def test_a_snapshot_holds_all_that_a_conversation_needs_to_go_on() -> None:
    assert set(orjson.loads(stored())) == {  # F14
        *("format", "conversationId", "tenantId", "campaignId", "flowId", "versionId", "contentHash"),
        *("revision", "configuration", "history", "contacts", "activeContactId", "language", "startedAt"),
        *("task", "entered", "refused"),
    }


def test_fields_that_an_older_snapshot_lacks_take_their_defaults() -> None:
    session = decode_session(stored(history=..., entered=..., refused=...))
    assert (session.history, session.entered, session.refused) == ((), {}, {})  # F14


@pytest.mark.parametrize("changes", [{}, {"addedLater": 1}, {"task": "moved elsewhere"}])
def test_a_newer_format_is_refused_whatever_it_holds(changes: dict[str, Any]) -> None:
    assert refusal(stored(format=SNAPSHOT_FORMAT + 1, **changes)) == "snapshot_too_new"  # F14


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"format":"new"}',
        stored(revision="three"),
        stored(revision=...),
        stored(task=None),
        stored(contacts={}),
        stored(activeContactId="call-2"),
        stored(
            contacts={
                "call-1": {"channel": "pigeon", "status": "active", "startedAt": "2026-01-15T09:30:00Z"}
            }
        ),
        stored(startedAt="yesterday"),
        stored(unknown=1),
        b"[" * 100_000,
    ],
)
def test_what_is_no_snapshot_is_refused_and_never_read_as_a_new_conversation(garbage: bytes) -> None:
    assert refusal(garbage) == "snapshot_unreadable"  # F13, F14


def test_the_refusal_names_places_and_quotes_nothing_of_what_was_said() -> None:
    with pytest.raises(CallTheOperator) as raised:
        decode_session(stored(task={"prompt": "my number is +39 347 1234567"}))
    assert "task/" in raised.value.detail  # F46
    assert "347" not in raised.value.detail
    assert "347" not in str(raised.value)


def test_the_latest_contact_is_the_active_one_else_the_last_that_started() -> None:
    earlier = Contact(channel="phone", status="ended", started_at=NOW)
    later = earlier.model_copy(update={"channel": "chat", "started_at": NOW.replace(hour=10)})
    session = decode_session(stored()).model_copy(
        update={"contacts": {"b": later, "a": earlier}, "active_contact_id": None}
    )
    assert session.latest_contact == later  # F14
    assert session.model_copy(update={"active_contact_id": "a"}).latest_contact == earlier
