"""Keeps the model's prompt as fresh as the memory, without disturbing the model for nothing (F23, F31).

Every prompt differs from the one before, because the time of day is in it. The model is told again only when
something else than the clock has moved, be it a single digit: a session update costs the model the cache of
the whole dialogue. The engine's ETag spares a prompt that cannot have moved, the prefix's hash tells another
task.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from channels.engine_client.client import EngineClient, TaggedPrompt
from channels.engine_client.errors import EngineError, StateConflict
from channels.engine_client.replies import PromptReply

log: Any = structlog.get_logger("flow_engine.voice")

WAIT_MS: Final = 1_500
WAITS: Final = 3
"""How often a prompt is waited for after a turn, until its values have been found."""

_NOW = re.compile(r"^(?!- ).* \d{4}-\d{2}-\d{2}, .*\b\d{2}:\d{2}\b.* \([^()]+\)$", re.MULTILINE)


def without_clock(prompt: str) -> str:
    """A prompt without the two lines that tell the time: the date and time of day, and the memory's age.

    The memory is the last paragraph, and the line above tells its age. The line of the time of day has an ISO
    date, a comma, hours and minutes, and the time zone in brackets, in every language.
    """
    head, _, memory = prompt.rpartition("\n\n")
    return f"{_NOW.sub('', head.rpartition(chr(10))[0])}\n\n{memory}"


class PromptRefresher:
    """`changed` is awaited with every prompt that says something new, one at a time. It returns whether the
    model has it now; one that came too late is not remembered. `closed` is called when the engine says that
    the conversation is."""

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

    def knows(self, prefix_hash: str, prompt: str) -> None:
        """The model has just been given this prompt."""
        self._known, self._last = (prefix_hash, without_clock(prompt)), None

    def after_user_turn(self) -> None:
        """Values may be found in what was said: look until they have been. Returns at once."""
        self._turns += 1
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    async def look(self, wait_ms: int = 0) -> bool:
        """Look once. False when the last turn has not been read yet, or the engine does not answer."""
        last = self._last
        etag = None if last is None else last.etag
        try:
            tagged = await self._engine.prompt(self._conversation_id, wait_ms=wait_ms, unless=etag)
        except StateConflict:
            self._closed()
            return True
        except EngineError as error:
            log.warning("prompt_not_refreshed", reason=str(error))
            return False
        if tagged is None:
            return last is not None and last.reply.memory_fresh
        async with self._one_at_a_time:
            await self._take(tagged)
        return tagged.reply.memory_fresh

    async def stop(self) -> None:
        if self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    async def _take(self, tagged: TaggedPrompt) -> None:
        reply = tagged.reply
        now = (reply.prefix_hash, without_clock(reply.prompt))
        if self._last is not None and _is_older(reply, self._last.reply):
            return
        if now == self._known or await self._changed(reply):
            self._known, self._last = now, tagged

    async def _watch(self) -> None:
        seen = -1
        while seen != self._turns:
            seen = self._turns
            for _ in range(WAITS):
                if await self.look(WAIT_MS):
                    break


def _is_older(one: PromptReply, other: PromptReply) -> bool:
    return one.revision < other.revision or one.memory_revision < other.memory_revision
