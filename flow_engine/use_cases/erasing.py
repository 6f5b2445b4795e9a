"""Erasing a conversation: as a request, and as the job that finishes one that was cut off (contract 18)."""

from contextlib import suppress

import orjson

from flow_engine.errors import CallTheOperator, unknown_conversation
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.runtime.events import erasure_event
from flow_engine.runtime.replies import ErasureReply
from flow_engine.runtime.storage import Erasure
from flow_engine.use_cases.archiving import KeptJournal
from flow_engine.use_cases.transactor import Transactor
from flow_engine.values import utc_text


class Erasures:
    """Raises RetryLater while a store is away."""

    def __init__(self, transactor: Transactor, archive: KeptJournal) -> None:
        self._memory = transactor.memory
        self._clock = transactor.clock
        self._archive = archive

    async def erase(
        self, conversation: ConversationRef, idempotency: IdempotencyKey | None = None
    ) -> FinalReply:
        """Remove all that is stored of a conversation; a system event of it is all that is left.

        Raises LookElsewhere `conversation_unknown`, also for one that is erased already. The receipt is JSON.
        """
        now, stored, replay = self._clock.now(), True, None
        with suppress(CallTheOperator):  # what cannot be read, or is partly gone, is erased too
            loaded = await self._memory.load(conversation, idempotency=idempotency)
            stored, replay = loaded.session is not None, loaded.replay
        if not stored:  # erased before perhaps, and not to the end
            await self._memory.finish_erasure(conversation, now, self._archive.remove)
        if idempotency is not None and replay is not None:
            return replay.replay(idempotency)
        unknown = unknown_conversation(conversation.conversation_id)
        archived = not stored and await self._archive.has(conversation)
        if not stored and not archived:
            raise unknown
        receipt = ErasureReply(conversationId=conversation.conversation_id, erasedAt=utc_text(now))
        event = erasure_event(conversation, now)
        body, elsewhere = orjson.dumps(receipt), self._archive.remove
        await elsewhere(conversation)  # nothing is erased while the archive is away
        if not await self._memory.erase(
            conversation, Erasure(event, body, now, idempotency, archived, elsewhere)
        ):
            raise unknown
        return FinalReply(200, body)

    async def finish(self, job: Job) -> None:
        """Handler of `erase` jobs."""
        await self._memory.finish_erasure(job.conversation, self._clock.now(), self._archive.remove)
