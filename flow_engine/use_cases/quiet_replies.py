"""Replies to reads that are sent again, as they were, while nothing that they were made from has changed."""

from datetime import UTC, datetime
from weakref import ref

import msgspec

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.prompt import Prefix

QUIET_REST_BYTES = 1024
"""What a reply takes beside its texts."""
_ALWAYS = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class ReadReply(msgspec.Struct, frozen=True):
    """The reply to a read. `body` is JSON; `etag` names all that it depends on but the clock, quoted as RFC
    9110 has it. `fresh`: its memory has read every user turn. `tells`: it has a command for the agent, which
    is told once."""

    body: bytes
    etag: str = ""
    fresh: bool = True
    tells: bool = False


class QuietReply(msgspec.Struct, frozen=True):
    """The reply to a read, as it is from `made_at` until `same_until` (UTC) while `state` is what is stored.
    `texts` are the bytes of its body between those of a prefix, which conversations share and a composer
    keeps: the reply is over with it."""

    texts: tuple[bytes, ...]
    state: bytes
    prefix: ref[Prefix] | None = None
    etag: str = ""
    fresh: bool = True
    made_at: datetime = _ALWAYS[0]
    same_until: datetime = _ALWAYS[1]


class QuietReplies:
    """The replies to reads that were sent last, at most `most_bytes` of them. One is sent again when nothing
    that it was made from has changed: the caller has asked the store for the state, and the clock for the
    time."""

    def __init__(self, most_bytes: int) -> None:
        self._kept = Kept[tuple[ConversationRef, str | None], QuietReply](
            most_bytes, lambda reply: sum(map(len, reply.texts)) + QUIET_REST_BYTES
        )

    def find(
        self, conversation: ConversationRef, form: str | None, state: bytes, now: datetime
    ) -> ReadReply | None:
        """`form` is what was asked for. None where nothing is kept that is right `now`, in UTC."""
        kept = self._kept.get((conversation, form))
        if kept is None or kept.state != state or not kept.made_at <= now < kept.same_until:
            return None
        shared = b""
        if kept.prefix is not None:
            if (prefix := kept.prefix()) is None:
                return None
            shared = prefix.json
        return ReadReply(shared.join(kept.texts), kept.etag, kept.fresh)

    def keep(self, conversation: ConversationRef, form: str | None, reply: QuietReply) -> None:
        self._kept.put((conversation, form), reply)
