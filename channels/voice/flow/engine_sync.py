"""Call and engine kept in step: utterances go there, what has moved there comes back (F23, F31, F33).

Messages go in order and beside the call. A realtime model hears, and may act at once; the engine reads the
words, which come later: a task that needs a day would be refused right after the caller has named it. So
where the words decide, they are waited for.

Every prompt differs from the one before, because the time of day is in it. The model gets it again only when
something else than the clock has moved, be it a single digit: a session update costs the model the cache of
the whole dialogue. The engine's ETag spares a prompt that cannot have moved, the prefix's hash tells another
task.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import structlog

from channels.engine_client.client import Contact, EngineClient, Pause, TaggedPrompt, Utterance
from channels.engine_client.replies import EngineError, EngineUnavailable, PromptReply, StateConflict
from channels.voice.call.ports import CallSeat

log: Any = structlog.get_logger("flow_engine.voice")


def is_over(error: EngineError) -> bool:
    """Whether the conversation has ended, or is not there any more: it was erased."""
    return isinstance(error, StateConflict) or error.code == "conversation_unknown"


MOST_WAITING: Final = 200
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 5.0


class DialogueReport:
    """A queue with one sender. While the engine is away the newest messages are kept, up to a bound, and the
    oldest given up; it is asked again after 1, 2, 4, then every 5 seconds. One that the engine refuses is
    logged and left out. `settled` is called after each message that has arrived or was refused. `pause` waits
    that many seconds."""

    def __init__(
        self,
        engine: EngineClient,
        contact: Contact,
        settled: Callable[[Utterance], None],
        *,
        most_waiting: int = MOST_WAITING,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._contact = contact
        self._settled = settled
        self._most_waiting = most_waiting
        self._pause = pause
        self._waiting: deque[Utterance] = deque()
        self._sender: asyncio.Task[None] | None = None

    def add(self, utterance: Utterance) -> None:
        """Returns at once; never raises."""
        if len(self._waiting) >= self._most_waiting:
            dropped = self._waiting.popleft()
            log.warning("utterance_dropped", reason="too many wait", message_id=dropped.message_id)
        self._waiting.append(utterance)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def finish(self, within_s: float) -> None:
        """Send what still waits, for `within_s` seconds; what is not sent by then is lost, which is
        logged."""
        sender = self._sender
        if sender is None or sender.done():
            return
        _, unfinished = await asyncio.wait({sender}, timeout=within_s)
        if unfinished:
            log.warning("utterances_lost", count=len(self._waiting), within_s=within_s)
            self._waiting.clear()  # a request may keep the cancellation to itself, and the next would follow
            sender.cancel()
            await asyncio.wait(unfinished)

    async def _send(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._waiting:
            utterance = self._waiting[0]
            try:
                await self._engine.utterance(self._contact, utterance)
            except EngineUnavailable as error:
                log.warning("utterances_wait", reason=str(error), count=len(self._waiting))
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                continue
            except EngineError as error:
                log.warning("utterance_dropped", reason=str(error), message_id=utterance.message_id)
            self._settled(utterance)
            pause_s = FIRST_PAUSE_S
            if self._waiting and self._waiting[0] is utterance:
                self._waiting.popleft()


WAIT_MS: Final = 1_500
WAITS: Final = 3
"""How often a prompt is waited for after a turn, until its values have been found."""

_NOW = re.compile(r"^(?!- )(?=.{,200}$).* \d{4}-\d{2}-\d{2}, .*\b\d{2}:\d{2}\b.* \([^()]+\)$", re.MULTILINE)


def without_clock(prompt: str) -> str:
    """A prompt without the two lines that tell the time: the date and time of day, and the memory's age.

    The memory is the last paragraph, and the line above tells its age. The line of the time of day has an ISO
    date, a comma, hours and minutes, and the time zone in brackets, in every language, and at most 200
    characters: in one of 8,000 the search took a second.
    """
    head, _, memory = prompt.rpartition("\n\n")
    return f"{_NOW.sub('', head.rpartition(chr(10))[0])}\n\n{memory}"


class MemoryNotices(Protocol):
    """Who tells that the memory of a conversation has changed, whoever changed it. Notices may get lost."""

    async def follow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        """Call `changed` after every change from now on. Where that cannot be had it is logged."""
        ...

    async def unfollow(self, conversation_id: str, changed: Callable[[], None]) -> None: ...


class PromptRefresher:
    """`changed` is awaited with every prompt that says something new, one at a time. It returns whether the
    model has it now; one that came too late is not remembered. `closed` is called when the engine says that
    the conversation is, or knows of none."""

    def __init__(
        self,
        engine: EngineClient,
        conversation_id: str,
        changed: Callable[[PromptReply], Awaitable[bool]],
        closed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._conversation_id = conversation_id
        self._changed = changed
        self._closed = closed
        self._known: tuple[str, str] | None = None
        self._last: TaggedPrompt | None = None
        self._one_at_a_time = asyncio.Lock()
        self._turns = 0
        self._watcher: asyncio.Task[None] | None = None
        self._is_noticed = False
        self._reader: asyncio.Task[None] | None = None

    def knows(self, prefix_hash: str, prompt: str) -> None:
        """The model has just been given this prompt."""
        self._known, self._last = (prefix_hash, without_clock(prompt)), None

    def after_user_turn(self) -> None:
        """Values may be found in an utterance: look until they have been. Returns at once."""
        self._turns += 1
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    def noticed(self) -> None:
        """The memory has changed, by whomever: look at once, and once for all that comes meanwhile."""
        self._is_noticed = True
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while self._is_noticed:
            self._is_noticed = False
            await self.look()

    async def look(self, wait_ms: int = 0) -> bool:
        """Look once, and let the engine wait `wait_ms` milliseconds for values. False when the last turn has
        not been read yet, or the engine does not answer."""
        last = self._last
        etag = None if last is None else last.etag
        try:
            tagged = await self._engine.prompt(self._conversation_id, wait_ms=wait_ms, unless=etag)
        except EngineError as error:
            if is_over(error):
                self._closed()
                return True
            log.warning("prompt_not_refreshed", reason=str(error))
            return False
        if tagged is None:
            return last is not None and last.reply.memory_fresh
        async with self._one_at_a_time:
            reply, last = tagged.reply, self._last
            now = (reply.prefix_hash, without_clock(reply.prompt))
            is_older = last is not None and (
                reply.revision < last.reply.revision or reply.memory_revision < last.reply.memory_revision
            )
            if not is_older and (now == self._known or await self._changed(reply)):
                self._known, self._last = now, tagged
        return tagged.reply.memory_fresh

    async def stop(self) -> None:
        running = [task for task in (self._watcher, self._reader) if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _watch(self) -> None:
        seen = -1
        while seen != self._turns:
            seen = self._turns
            for _ in range(WAITS):
                if await self.look(WAIT_MS):
                    break


READ_WITHIN_S: Final = 2.0
"""Nobody listens to silence any longer for the sake of a value that may not even be there."""

_LOOK_S: Final = 0.02


class TranscriptBarrier:
    """Whether every utterance of the caller is known to the engine, and has been read there for values."""

    def __init__(self, call: CallSeat, watch: PromptRefresher) -> None:
        self._call = call
        self._watch = watch
        self._last: Utterance | None = None

    def arrived(self, utterance: Utterance) -> None:
        """A turn of the caller has arrived at the engine, or never will."""
        self._last = utterance

    async def read(self, within_s: float = READ_WITHIN_S) -> None:
        """Until everything has been read, or for `within_s` seconds. Never raises: what is unread by then is
        logged."""
        now = asyncio.get_running_loop().time
        began = now()
        # Words that are not understood end the waiting too, and no event reports those.
        while self._are_on_their_way() and now() - began < within_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        left_s = max(within_s - (now() - began), 0.0)
        if not await self._watch.look(round(left_s * 1000)):
            log.info("words_not_read", within_s=within_s)

    def _are_on_their_way(self) -> bool:
        if self._call.awaits_transcript:
            return True
        turns = [turn for turn in self._call.transcript if turn.role == "user"]
        return bool(turns) and (self._last is None or self._last.at < turns[-1].at)
