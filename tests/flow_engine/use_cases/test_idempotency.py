"""Replies kept under an idempotency key (F15)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.flow_store import FlowRecord
from flow_engine.use_cases.flow_service import KEPT_FOR, MAX_BYTES, MAX_REPLIES, find_reply, keep_reply

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
FLOW = FlowRecord("f1", "Bookings", "c1", "1.0.0", "anna", T0)
REQUEST = IdempotencyKey("k1", "print")
REPLY = FinalReply(201, b'{"id":"f1"}')
KEPT = keep_reply(FLOW, REQUEST, REPLY, T0)
JUST_BEFORE_THE_END = T0 + KEPT_FOR - timedelta(microseconds=1)


def test_the_same_request_finds_its_reply_for_24_hours() -> None:  # F15
    assert find_reply(KEPT, REQUEST, JUST_BEFORE_THE_END) == REPLY
    assert find_reply(KEPT, REQUEST, T0 + KEPT_FOR) is None


def test_another_request_under_the_same_key_is_refused_for_24_hours() -> None:  # F15
    other = replace(REQUEST, fingerprint="other")
    with pytest.raises(CorrectTheInput, match="idempotency_key_reused"):
        find_reply(KEPT, other, JUST_BEFORE_THE_END)
    assert find_reply(KEPT, other, T0 + KEPT_FOR) is None


def test_without_a_key_nothing_is_found_and_nothing_kept() -> None:  # F15
    assert find_reply(KEPT, None, T0) is None
    assert keep_reply(FLOW, None, REPLY, T0) == FLOW


def test_another_key_finds_nothing() -> None:  # F15
    assert find_reply(KEPT, replace(REQUEST, key="k2"), T0) is None


def test_every_write_forgets_the_old_replies() -> None:  # F15
    assert keep_reply(KEPT, None, REPLY, T0 + KEPT_FOR).replies == ()


def test_a_key_that_comes_again_after_its_time_is_kept_once() -> None:  # F15
    again = keep_reply(KEPT, replace(REQUEST, fingerprint="new"), FinalReply(200, b"new"), T0 + KEPT_FOR)
    assert [(kept.key, kept.body) for kept in again.replies] == [("k1", b"new")]


def test_of_too_many_replies_the_newest_stay() -> None:
    flow = FLOW
    for number in range(MAX_REPLIES + 3):
        flow = keep_reply(flow, IdempotencyKey(f"k{number}", "print"), REPLY, T0)
    keys = [kept.key for kept in flow.replies]
    assert keys == [f"k{number}" for number in range(3, MAX_REPLIES + 3)]


def test_of_too_large_replies_the_newest_stay_and_at_least_one() -> None:
    half = FinalReply(200, b"x" * (MAX_BYTES // 2))
    flow = FLOW
    for number in range(3):
        flow = keep_reply(flow, IdempotencyKey(f"k{number}", "print"), half, T0)
    assert [kept.key for kept in flow.replies] == ["k1", "k2"]
    flow = keep_reply(flow, IdempotencyKey("big", "print"), FinalReply(200, b"x" * (MAX_BYTES + 1)), T0)
    assert [kept.key for kept in flow.replies] == ["big"]
