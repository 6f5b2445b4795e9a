"""Stored forms of instants, turns and kept replies; entries and snapshots have theirs in the core."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

import orjson
from pydantic import TypeAdapter, ValidationError

from flow_engine.errors import CallTheOperator
from flow_engine.idempotency import KeptReply
from flow_engine.ports.dialogue import DialogueTurn

_TURN = TypeAdapter(DialogueTurn)


class _ReplyHead(TypedDict):
    fingerprint: str
    status: int


def encode_instant(instant: datetime) -> str:
    """ISO 8601; the instants of this package are in UTC."""
    return instant.isoformat()


def decode_instant(stored: bytes) -> datetime:
    return datetime.fromisoformat(stored.decode())


def encode_turn(turn: DialogueTurn) -> bytes:
    return orjson.dumps(turn)


def decode_turn(stored: bytes) -> DialogueTurn:
    """Raises CallTheOperator `utterance_unreadable`."""
    try:
        return _TURN.validate_json(stored)
    except ValidationError as error:
        raise CallTheOperator("utterance_unreadable", "a stored utterance does not fit its format") from error


def encode_reply_head(fingerprint: str, status: int) -> bytes:
    """The body follows after the line break, byte for byte as it was sent."""
    return orjson.dumps(_ReplyHead(fingerprint=fingerprint, status=status)) + b"\n"


def decode_reply(stored: bytes) -> KeptReply:
    head_text, _, body = stored.partition(b"\n")
    head: _ReplyHead = orjson.loads(head_text)
    return KeptReply(head["fingerprint"], head["status"], body)
