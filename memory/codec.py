"""Stored forms of instants, turns and kept replies; entries and snapshots have theirs in the core."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict

import orjson
from pydantic import TypeAdapter, ValidationError

from flow_engine.errors import CallTheOperator
from flow_engine.idempotency import KeptReply
from flow_engine.ports.dialogue import DialogueTurn
from flow_engine.runtime.memory import MemoryEntry, decode_entry
from flow_engine.runtime.mining_state import decode_mining, encode_mining
from flow_engine.runtime.session import decode_session, encode_session
from flow_engine.runtime.storage import FormerConversation

_TURN = TypeAdapter(DialogueTurn)


class _ReplyHead(TypedDict):
    fingerprint: str
    status: int


def encode_instant(instant: datetime) -> str:
    """ISO 8601 in UTC, with the offset."""
    return orjson.dumps(instant if instant.tzinfo is UTC else instant.astimezone(UTC))[1:-1].decode()


def decode_instant(stored: bytes) -> datetime:
    return datetime.fromisoformat(stored.decode())


def decode_entries(
    mined: Sequence[bytes], tools: Sequence[bytes]
) -> tuple[dict[str, MemoryEntry], dict[str, MemoryEntry]]:
    """By id, of hashes stored as id, entry, id, entry, … Most of a conversation's entries are alike, as those
    of a type that nobody wrote: they are decoded once and shared. Raises CallTheOperator `memory_unreadable`.
    """
    known = {data: decode_entry(data) for data in {*mined[1::2], *tools[1::2]}}

    def decoded(stored: Sequence[bytes]) -> dict[str, MemoryEntry]:
        entries = map(known.__getitem__, stored[1::2])
        return dict(zip(map(bytes.decode, stored[::2]), entries, strict=True))

    return decoded(mined), decoded(tools)


def encode_turn(turn: DialogueTurn) -> bytes:
    return orjson.dumps(turn)


def decode_turn(stored: bytes) -> DialogueTurn:
    """Raises CallTheOperator `utterance_unreadable`. `data` is a JSON text."""
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


def encode_former(former: FormerConversation) -> bytes:
    """`{session, mining, turns}` as JSON, each in its own stored form."""
    return orjson.dumps(
        {
            "session": orjson.Fragment(encode_session(former.session)),
            "mining": orjson.Fragment(encode_mining(former.mining)),
            "turns": [orjson.Fragment(encode_turn(turn)) for turn in former.turns],
        }
    )


def decode_former(stored: bytes) -> FormerConversation:
    """Raises CallTheOperator as the parts do. `data` is a JSON text."""
    parts = orjson.loads(stored)
    return FormerConversation(
        decode_session(orjson.dumps(parts["session"])),
        decode_mining(orjson.dumps(parts["mining"])),
        tuple(decode_turn(orjson.dumps(turn)) for turn in parts["turns"]),
    )
