"""Replies of designers' mutations, kept under their `Idempotency-Key` (F15).

A reply is part of the record that its mutation changes, so the two are stored by one compare-and-set:
there is no moment in which the change is made and its reply is not known. A key is therefore scoped to
one flow. Only successes are kept: a refusal changes nothing, and may be right to ask again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.flow_store import FlowRecord, StoredReply

KEPT_FOR = timedelta(hours=24)

# A flow's record is read and written whole, and a MongoDB document ends at 16 MB. Whoever sends more
# keyed changes of one flow in a day loses the oldest replies first; the newest is always kept.
MAX_REPLIES = 500
MAX_BYTES = 1_000_000


def find_reply(flow: FlowRecord, request: IdempotencyKey | None, now: datetime) -> FinalReply | None:
    """The reply that this request got already, or None when it is new.

    Raises CorrectTheInput (`idempotency_key_reused`) when another request came under the same key.
    """
    if request is None:
        return None
    for kept in flow.replies:
        if kept.key == request.key and _is_young(kept, now):
            if kept.fingerprint != request.fingerprint:
                raise CorrectTheInput(
                    "idempotency_key_reused",
                    f"key {request.key!r} was sent with another request less than 24 hours ago: "
                    "use a new key for a new request",
                )
            return FinalReply(kept.status, kept.body, replayed=True)
    return None


def keep_reply(
    flow: FlowRecord, request: IdempotencyKey | None, reply: FinalReply, now: datetime
) -> FlowRecord:
    """Forget the replies older than 24 hours, and keep this one if it came under a key."""
    replies = [kept for kept in flow.replies if _is_young(kept, now)]
    if request is not None:
        replies = [kept for kept in replies if kept.key != request.key]
        replies.append(StoredReply(request.key, request.fingerprint, reply.status, reply.body, now))
    return replace(flow, replies=_newest_that_fit(replies))


def _is_young(kept: StoredReply, now: datetime) -> bool:
    return now - kept.stored_at < KEPT_FOR


def _newest_that_fit(replies: list[StoredReply]) -> tuple[StoredReply, ...]:
    fitting: list[StoredReply] = []
    size = 0
    for kept in reversed(replies[-MAX_REPLIES:]):
        size += len(kept.body)
        if fitting and size > MAX_BYTES:
            break
        fitting.append(kept)
    return tuple(reversed(fitting))
