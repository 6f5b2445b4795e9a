"""Ends of contacts that have to arrive: told again until the engine has taken them.

A conversation whose contact nobody ends stays live, until its time limit, and no other try is ever made. So
an end that the engine does not take is told again after 1, 2, 4 … seconds, at most 5 minutes, for a day. A
refusal is an answer, but for one of the key: the contact has ended already, or the engine knows no such one.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from channels.engine_client import client, replies
from channels.retries import MOST_WAITING, Retries

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
        self._monotonic = monotonic
        self._retries = Retries(
            self._try,
            lambda end: _lost(end[0], "the engine was away too long"),
            clock=monotonic,
            pause=pause,
        )

    @property
    def waiting(self) -> int:
        """How many ends the engine has not taken yet."""
        return self._retries.waiting

    async def end(self, contact: client.Contact, reason: str) -> None:
        """Returns after the first try, whatever comes of it. Never raises for an engine that is away."""
        if await self._try((contact, reason)):
            return
        if self.waiting >= MOST_WAITING:
            _lost(contact, "too many wait")
        else:
            self._retries.begin((contact, reason), self._monotonic())

    async def aclose(self) -> None:
        """One last try of everything that waits, within some seconds."""
        for contact, _ in await self._retries.aclose():
            _lost(contact, "the process stops")

    async def _try(self, end: tuple[client.Contact, str]) -> bool:
        """Whether the engine has answered."""
        contact, reason = end
        try:
            await self._engine.end_contact(contact, reason)
        except replies.EngineError as error:
            waits = not isinstance(error, (replies.RequestRefused, replies.StateConflict))
            event = "contact_end_waits" if waits else "contact_not_ended"
            log.warning(event, reason=str(error), **_ids(contact))
            return not waits
        return True


def _lost(contact: client.Contact, reason: str) -> None:
    log.error("contact_not_ended", reason=reason, **_ids(contact))


def _ids(contact: client.Contact) -> dict[str, str]:
    return {"conversation_id": contact.conversation_id, "contact_id": contact.contact_id}
