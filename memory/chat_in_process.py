"""Sessions of the chat in this process, gone with it: the embedded default."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flow_engine.ports import chat


@dataclass(slots=True)
class _Session:
    state: bytes | None = None
    seq: int = 0
    frames: deque[chat.LoggedFrame] = field(
        default_factory=lambda: deque[chat.LoggedFrame](maxlen=chat.FRAMES_KEPT)
    )
    queue: deque[bytes] = field(default_factory=deque[bytes])
    seen: set[str] = field(default_factory=set[str])
    holder: str | None = None
    held_until: float = 0.0
    touched: float = 0.0
    silent_since: float = float("inf")

    def check(self, holder: str | None) -> None:
        if holder is not None and holder != self.holder:
            raise chat.LeaseLost


class Listeners:
    """Who listens to which topic in this process."""

    def __init__(self) -> None:
        self._of: dict[str, list[chat.Listener]] = {}

    def add(self, topic: str, listener: chat.Listener) -> None:
        self._of.setdefault(topic, []).append(listener)

    def remove(self, topic: str, listener: chat.Listener) -> bool:
        """Whether it was the topic's last one; False where it did not listen."""
        listeners = self._of.get(topic, [])
        if listener not in listeners:
            return False
        listeners.remove(listener)
        if not listeners:
            del self._of[topic]
        return not listeners

    def tell(self, topic: str, message: bytes) -> None:
        """`message` is bytes of any content."""
        for listener in tuple(self._of.get(topic, ())):
            listener(message)


class InProcessChat:
    """Implements every port of `flow_engine/ports/chat.py`. `monotonic` is in seconds."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sessions: dict[chat.SessionRef, _Session] = {}
        self._arrivals: dict[tuple[str, str], int] = {}
        self._listeners = Listeners()
        self._secret = secrets.token_bytes(32)

    # ChatSessions

    async def create(self, ref: chat.SessionRef, state: bytes) -> None:
        # Sessions are made in the order of time, so that the old ones stand in front, but for those that are
        # still talked in.
        before = self._monotonic() - chat.KEPT_S
        for old in [ref for ref, session in self._sessions.items() if session.touched < before]:
            del self._sessions[old]
        self._sessions[ref] = _Session(state, touched=self._monotonic())

    async def load(self, ref: chat.SessionRef) -> bytes | None:
        session = self._sessions.get(ref)
        return None if session is None else session.state

    async def save(self, ref: chat.SessionRef, state: bytes, holder: str) -> None:
        session = self._session(ref)
        session.check(holder)
        session.state = state

    async def arrive(self, tenant_id: str, user: str) -> int:
        number = self._arrivals[tenant_id, user] = self._arrivals.get((tenant_id, user), 0) + 1
        return number

    async def secret(self) -> bytes:
        return self._secret

    # ChatQueue

    async def put(
        self, ref: chat.SessionRef, message_id: str, message: bytes, *, bounded: bool = True
    ) -> chat.Put:
        session = self._session(ref)
        if message_id in session.seen:
            return "duplicate"
        if bounded and len(session.queue) > chat.MOST_WAITING:
            return "busy"
        session.seen.add(message_id)
        session.queue.append(message)
        session.touched = session.silent_since = self._monotonic()
        return "queued"

    async def hold(self, ref: chat.SessionRef, holder: str) -> bool:
        session, now = self._session(ref), self._monotonic()
        if session.holder not in (None, holder) and now < session.held_until:
            return False
        session.holder, session.held_until = holder, now + chat.LEASE_S
        return True

    async def head(self, ref: chat.SessionRef, holder: str) -> bytes | None:
        session = self._session(ref)
        session.check(holder)
        if session.queue:
            return session.queue[0]
        session.holder = None
        return None

    async def done(self, ref: chat.SessionRef, holder: str, state: bytes) -> None:
        session = self._session(ref)
        session.check(holder)
        session.queue.popleft()
        session.state = state
        session.touched = self._monotonic()

    async def abandoned(self) -> Sequence[chat.SessionRef]:
        now = self._monotonic()
        return [
            ref
            for ref, session in self._sessions.items()
            if session.queue and (session.holder is None or now >= session.held_until)
        ]

    # ChatLine

    async def waiting(self, ref: chat.SessionRef) -> Sequence[bytes]:
        return tuple(self._session(ref).queue)

    # ChatFrames

    async def append(self, ref: chat.SessionRef, frame: bytes, holder: str | None) -> int:
        session = self._session(ref)
        session.check(holder)
        session.seq += 1
        logged = chat.LoggedFrame(session.seq, frame)
        session.frames.append(logged)
        self._listeners.tell(chat.frames_topic(ref), logged.published())
        return session.seq

    async def after(self, ref: chat.SessionRef, seq: int) -> Sequence[chat.LoggedFrame]:
        session = self._session(ref)
        missed = session.seq - seq
        return [] if missed <= 0 else [frame for frame in session.frames if frame.seq > seq]

    async def last(self, ref: chat.SessionRef) -> int:
        return self._session(ref).seq

    # IdleSessions

    async def idle(self, for_s: float) -> Sequence[chat.SessionRef]:
        before = self._monotonic() - for_s
        found = [
            ref
            for ref, session in self._sessions.items()
            if session.silent_since <= before and not session.queue
        ]
        for ref in found:
            self._sessions[ref].silent_since = before + chat.LEASE_S
        return found

    async def forget(self, ref: chat.SessionRef) -> None:
        self._session(ref).silent_since = float("inf")

    # ChatBus

    async def publish(self, topic: str, message: bytes) -> None:
        self._listeners.tell(topic, message)

    async def listen(self, topic: str, listener: chat.Listener) -> None:
        self._listeners.add(topic, listener)

    async def unlisten(self, topic: str, listener: chat.Listener) -> None:
        self._listeners.remove(topic, listener)

    def _session(self, ref: chat.SessionRef) -> _Session:
        found = self._sessions.get(ref)
        if found is None:
            found = self._sessions[ref] = _Session(touched=self._monotonic())
        return found
