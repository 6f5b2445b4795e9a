"""The ports to what replicas of the chat share: sessions, their queues, their frames, and a bus (C12, C14).

Every answer is made by one holder at a time. A holder has a lease, renews it while it works, and writes under
it: once another one has it, nothing that the former holder still sends is taken (LeaseLost).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

LEASE_S: Final = 6.0
KEPT_S: Final = 24 * 60 * 60
"""How long a session without any message is remembered, with everything of it."""

FRAMES_KEPT: Final = 1_000
MOST_WAITING: Final = 5
"""Messages in line behind the one that is being answered."""

Put = Literal["queued", "duplicate", "busy"]


@dataclass(frozen=True, slots=True)
class SessionRef:
    tenant_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class LoggedFrame:
    """`seq` counts from 1 in a session, without gaps. `frame` is a JSON object's text without it."""

    seq: int
    frame: bytes

    def published(self) -> bytes:
        """As those who follow the session get it: the number in decimal, a line feed, the JSON text."""
        return b"%d\n%s" % (self.seq, self.frame)

    @classmethod
    def heard(cls, message: bytes) -> "LoggedFrame":
        """From the bytes of `published`."""
        number, _, frame = message.partition(b"\n")
        return cls(int(number), frame)


class LeaseLost(Exception):
    """Another holder works on this session: stop, and write nothing more."""


class ChatSessions(Protocol):
    """What is known of a session, as text that only the chat reads. Raises RetryLater, as all ports here do,
    with code `memory_unavailable` when the store does not answer."""

    async def create(self, ref: SessionRef, state: bytes) -> None: ...

    async def load(self, ref: SessionRef) -> bytes | None: ...

    async def save(self, ref: SessionRef, state: bytes, holder: str) -> None:
        """Raises LeaseLost."""
        ...

    async def arrive(self, tenant_id: str, user: str) -> int:
        """The number of this connection among all of the user, on any replica: the highest is the newest."""
        ...

    async def secret(self) -> bytes:
        """32 random bytes that all replicas have, for signing tokens."""
        ...


class ChatQueue(Protocol):
    """The messages of a session that wait for an answer, oldest first, and the lease on them. Messages are
    JSON texts as bytes."""

    async def put(self, ref: SessionRef, message_id: str, message: bytes, *, bounded: bool = True) -> Put:
        """`duplicate` for an id that was put before, `busy` for one too many, unless it is not `bounded`;
        neither is kept."""
        ...

    async def hold(self, ref: SessionRef, holder: str) -> bool:
        """Take the lease, or renew it, for `LEASE_S`; False while another holder has it. In seconds from
        now."""
        ...

    async def head(self, ref: SessionRef, holder: str) -> bytes | None:
        """The oldest message; it stays until `done`. None gives the lease back. Raises LeaseLost. Its JSON
        text as bytes."""
        ...

    async def done(self, ref: SessionRef, holder: str, state: bytes) -> None:
        """The oldest message is answered, and `state`, a JSON text, is the session's from then on: both, or
        neither. Raises LeaseLost."""
        ...

    async def abandoned(self) -> Sequence[SessionRef]:
        """Sessions with a message whose holder has not renewed its lease."""
        ...


class ChatLine(Protocol):
    """Who waits in the queue."""

    async def waiting(self, ref: SessionRef) -> Sequence[bytes]:
        """The messages of the queue as JSON texts, oldest first, the one that is being answered too."""
        ...


class ChatFrames(Protocol):
    """The newest `FRAMES_KEPT` frames of each session. Each is a JSON text."""

    async def append(self, ref: SessionRef, frame: bytes, holder: str | None) -> int:
        """The frame's number; everybody who follows the session gets it. Without `holder` anybody may. Raises
        LeaseLost. `frame` is a JSON text in UTF-8."""
        ...

    async def after(self, ref: SessionRef, seq: int) -> Sequence[LoggedFrame]:
        """Those above `seq` that are still kept, in order. Each is a JSON text as bytes."""
        ...

    async def last(self, ref: SessionRef) -> int:
        """The number of the newest frame, 0 before the first."""
        ...


class IdleSessions(Protocol):
    """Sessions by when something was last put into their queue. In seconds."""

    async def idle(self, for_s: float) -> Sequence[SessionRef]:
        """Those without a message for so many seconds, each to one caller; again LEASE_S later where that one
        has neither put anything nor had it forgotten, for it may have been killed."""
        ...

    async def forget(self, ref: SessionRef) -> None:
        """Not named any more until something is put into its queue."""
        ...


Listener = Callable[[bytes], None]


class ChatBus(Protocol):
    """Short messages to every replica that listens. One may get lost; none comes twice. Messages are bytes,
    of any content."""

    async def publish(self, topic: str, message: bytes) -> None: ...

    async def listen(self, topic: str, listener: Listener) -> None:
        """From when this returns. A topic may have several listeners."""
        ...

    async def unlisten(self, topic: str, listener: Listener) -> None: ...


def frames_topic(ref: SessionRef) -> str:
    """Where `ChatFrames.append` publishes `LoggedFrame.published`."""
    return f"frames:{ref.tenant_id}:{ref.session_id}"


def orders_topic(ref: SessionRef) -> str:
    """Where a session's holder hears of cancellations and confirmations."""
    return f"orders:{ref.tenant_id}:{ref.session_id}"
