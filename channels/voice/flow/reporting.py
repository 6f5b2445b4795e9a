"""What both sides say, told to the engine in order and beside the call (F33)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import structlog

from channels.engine_client.client import Contact, EngineClient, Utterance
from channels.engine_client.errors import EngineError

log: Any = structlog.get_logger("flow_engine.voice")

MOST_WAITING: Final = 200


class DialogueReport:
    """A queue with one sender. While the engine is away the newest messages are kept, up to a bound, and the
    oldest given up. `told` is called after each message that arrived."""

    def __init__(
        self,
        engine: EngineClient,
        contact: Contact,
        told: Callable[[Utterance], None],
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._engine = engine
        self._contact = contact
        self._told = told
        self._most_waiting = most_waiting
        self._waiting: deque[Utterance] = deque()
        self._sender: asyncio.Task[None] | None = None

    def add(self, said: Utterance) -> None:
        """Returns at once."""
        if len(self._waiting) >= self._most_waiting:
            dropped = self._waiting.popleft()
            log.warning("utterance_dropped", reason="too many wait", message_id=dropped.message_id)
        self._waiting.append(said)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def finish(self, within_s: float) -> None:
        """Send what still waits; what is not sent by then never is."""
        sender = self._sender
        if sender is None or sender.done():
            return
        _, unfinished = await asyncio.wait({sender}, timeout=within_s)
        if unfinished:
            sender.cancel()
            await asyncio.wait(unfinished)
            log.warning("utterances_lost", count=len(self._waiting), within_s=within_s)

    async def _send(self) -> None:
        while self._waiting:
            said = self._waiting[0]
            try:
                await self._engine.utterance(self._contact, said)
            except EngineError as error:
                log.warning("utterance_dropped", reason=str(error), message_id=said.message_id)
            else:
                self._told(said)
            if self._waiting and self._waiting[0] is said:
                self._waiting.popleft()
