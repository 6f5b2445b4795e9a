"""Ends of contacts that have to arrive: told again until the engine has taken them.

A conversation whose contact nobody ends stays live, until its time limit, and no other try is ever made. So
an end that the engine does not take is told again after 1, 2, 4 … seconds, at most 5 minutes, for a day. A
refusal is an answer, but for one of the key: the contact has ended already, or the engine knows no such one.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from channels.engine_client import client, replies

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
GIVEN_UP_AFTER_S: Final = 24 * 3600.0
CLOSE_WITHIN_S: Final = 5.0
MOST_WAITING: Final = 5_000

log: Any = structlog.get_logger("flow_engine.agents")


class ContactEnds:
    """Those of one engine. What still waits when the process stops is tried once more, then lost. `pause`
    waits that many seconds, `monotonic` gives them."""

    def __init__(
        self,
        engine: client.EngineClient,
        *,
        pause: client.Pause = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._pause = pause
        self._monotonic = monotonic
        self._waiting: dict[asyncio.Task[None], tuple[client.Contact, str]] = {}

    @property
    def waiting(self) -> int:
        """How many ends the engine has not taken yet."""
        return len(self._waiting)

    async def end(self, contact: client.Contact, reason: str) -> None:
        """Returns after the first try, whatever comes of it. Never raises for an engine that is away."""
        if await self._try(contact, reason):
            return
        if len(self._waiting) >= MOST_WAITING:
            _lost(contact, "too many wait")
            return
        task = asyncio.create_task(self._until_taken(contact, reason))
        self._waiting[task] = contact, reason
        task.add_done_callback(self._waiting.pop)

    async def aclose(self) -> None:
        """One last try of everything that waits, within `CLOSE_WITHIN_S` seconds."""
        waiting = dict(self._waiting)
        if not waiting:
            return
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        tries = {asyncio.create_task(self._try(*each)): each[0] for each in waiting.values()}
        _, late = await asyncio.wait(tries, timeout=CLOSE_WITHIN_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        for task, contact in tries.items():
            if task in late or not task.result():
                _lost(contact, "the process stops")

    async def _until_taken(self, contact: client.Contact, reason: str) -> None:
        began, pause_s = self._monotonic(), FIRST_PAUSE_S
        while self._monotonic() - began < GIVEN_UP_AFTER_S:
            await self._pause(pause_s)
            if await self._try(contact, reason):
                return
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        _lost(contact, "the engine was away too long")

    async def _try(self, contact: client.Contact, reason: str) -> bool:
        """Whether the engine has answered."""
        ids = {"conversation_id": contact.conversation_id, "contact_id": contact.contact_id}
        try:
            await self._engine.end_contact(contact, reason)
        except replies.EngineError as error:
            waits = not isinstance(error, (replies.RequestRefused, replies.StateConflict))
            log.warning("contact_end_waits" if waits else "contact_not_ended", reason=str(error), **ids)
            return not waits
        return True


def _lost(contact: client.Contact, reason: str) -> None:
    ids = {"conversation_id": contact.conversation_id, "contact_id": contact.contact_id}
    log.error("contact_not_ended", reason=reason, **ids)
