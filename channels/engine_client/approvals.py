"""Texts that a person reads before they are sent: put before the engine, and waited for.

An agent that holds a text back keeps the number of the last text before it, then puts its own before the
engine. Whoever goes on for it later, another process included, finds by that number whether the engine has
the text: it is put there once, and has one decision. Sending it once is the agent's own part.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import structlog

from channels.engine_client import client, replies

POLL_S = 1.0
"""How often the engine is asked what became of a text."""

LATE: Final = timedelta(seconds=30)
"""After its time a text that an engine says nothing about counts as not decided."""

MOST_CHARS: Final = 16_000
"""Of a text that waits, as the engine takes it. The rest of a longer one is left out: nobody has read it."""

Fate: TypeAlias = Literal["approved", "edited", "rejected", "timeout", "withdrawn"]
SENT: Final[frozenset[Fate]] = frozenset(("approved", "edited"))

SUPERSEDED: Final = "another text has taken its place"
GIVEN_UP: Final = "the user no longer waits for it"

log: Any = structlog.get_logger("flow_engine.agents")


def is_decided(text: replies.ApprovalState) -> bool:
    """Whether nothing more becomes of it; an unknown status is no decision."""
    return text.status in get_args(Fate)


class HeldTexts:
    """Of one contact. `now` gives moments with their zone. Every method raises EngineError."""

    def __init__(
        self, engine: client.EngineClient, contact: client.Contact, now: Callable[[], datetime]
    ) -> None:
        self._engine = engine
        self._contact = contact
        self._now = now

    async def submit(self, text: str) -> replies.ApprovalState:
        """The text waits for a person from now on. One that waits already, of an answer that has come to
        nothing, is rejected. Raises StateConflict where the task takes no text: a person has it, or it is
        another one."""
        for _ in range(3):
            reply = await self._engine.human_task(self._contact, "waiting", None, text=text[:MOST_CHARS])
            if reply.approval is None:
                break
            if isinstance(reply, replies.AgentData):
                return reply.approval
            await self.give_up(SUPERSEDED, reply.approval.approval_id)
        raise replies.EngineMisbehaved("the engine does not say what became of a text")

    async def give_up(self, reason: str, approval_id: int | None = None) -> None:
        """The text that waits is not sent, and nobody has to decide on it any more. Nothing where none waits.
        Raises EngineError."""
        try:
            await self._engine.human_task(self._contact, "rejected", reason, approval_id=approval_id)
        except replies.StateConflict as conflict:
            log.info("no_text_waits", code=conflict.code)

    async def look(self, known: replies.ApprovalState) -> replies.ApprovalState:
        """As it is now. An engine that is away changes nothing; one that has said nothing for 30 seconds
        after the text's time has let it pass. Raises EngineError for an engine that refuses to tell."""
        now: replies.ApprovalState | None = known
        try:
            tagged = await self._engine.prompt(self._contact.conversation_id)
            now = None if tagged is None else tagged.reply.approval
        except replies.EngineUnavailable as away:
            log.warning("approval_not_read", reason=str(away))
        except replies.StateConflict:
            now = None
        if now is None or now.approval_id != known.approval_id:
            return known.model_copy(update={"status": "withdrawn"})
        is_late = not is_decided(now) and self._now() > now.until + LATE
        return now.model_copy(update={"status": "timeout"}) if is_late else now

    async def decided(self, known: replies.ApprovalState) -> tuple[Fate, replies.ApprovalState]:
        """What becomes of the text, once that is known: asked every `POLL_S` seconds, at most until 30
        seconds after its time. Raises EngineError."""
        while not is_decided(known):
            await asyncio.sleep(POLL_S)
            known = await self.look(known)
        return cast("Fate", known.status), known
