"""Journals followed while they grow: what stands first, then each entry as it is committed.

Whoever follows waits in the store for the journal itself to grow, so a commit does nothing for it, and any
process may make that commit. What was not taken yet is not read yet: nothing is buffered here.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from flow_engine.errors import LookElsewhere, RetryLater
from flow_engine.ports.dialogue import ConversationList, ConversationRef
from flow_engine.runtime.journal import ConversationJournal
from flow_engine.task_types import CLOSED
from flow_engine.use_cases.delivery import READ_WITHIN
from flow_engine.use_cases.history import History, JournalRow
from flow_engine.use_cases.listing import ConversationFilter, ConversationRow, list_conversations
from flow_engine.use_cases.transactor import Transactor

STREAMS_AT_ONCE = 64
"""Each may hold a connection to Redis."""
LOOKED_AGAIN_AFTER_S = 1.0
"""A wait for entries is this long; between two, whoever follows hears that there is nothing new."""
ROWS_AT_ONCE = 20
LIST_EXAMINED_AT_MOST = 400
"""Conversations that a followed list looks at, each time."""
QUIET_AFTER_CLOSE_S = 3.0
"""So long the last words of a closed conversation may take to be read and concluded."""

Ending = Literal["closed", "erased", "stopping"]


@dataclass(frozen=True, slots=True)
class Followed:
    """The next entries; none and no `ended` when there are none for now. `ended` is why nothing follows:
    `closed` and all told, `erased` (or forgotten by the store), `stopping` the process."""

    rows: Sequence[JournalRow] = ()
    ended: Ending | None = None


@dataclass(frozen=True, slots=True)
class ListFollowed:
    """Of a followed list, the rows that are new or have changed, and the ids of conversations that are not
    among its rows any more; the `first` has all, if there are any. `ended` as of `Followed`."""

    rows: Sequence[ConversationRow] = ()
    gone: Sequence[str] = ()
    first: bool = False
    ended: Ending | None = None


class JournalStreams:
    """At most `at_once` in this process."""

    def __init__(
        self,
        history: History,
        transactor: Transactor,
        journal: ConversationJournal,
        index: ConversationList,
        *,
        at_once: int = STREAMS_AT_ONCE,
    ) -> None:
        self._history = history
        self._memory = transactor.memory
        self._journal = journal
        self._index = index
        self._at_once = at_once
        self._stopping = False
        self.open = 0

    def stop(self) -> None:
        """End every stream, within a second, and refuse new ones."""
        self._stopping = True

    @contextmanager
    def counted(self) -> Generator[None]:
        """A stream is open within. Raises RetryLater `streams_full`."""
        if self._stopping or self.open >= self._at_once:
            raise RetryLater("streams_full", f"this process has {self.open} streams open", after_seconds=5)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def goes_on_after(self, conversation: ConversationRef, seq: int) -> int | None:
        """The entry behind which somebody goes on who has all up to `seq`: None where nothing will follow, 0
        where Redis has lost entries, or the conversation began anew. Raises LookElsewhere
        `conversation_unknown`."""
        # Nothing of it is shown, so nothing has to be masked.
        page = await self._history.journal(conversation, seq, limit=1, reveal=True)
        listed = await self._index.one(conversation)
        if listed.head is not None and listed.seq < seq:
            return 0
        closed = listed.head is None or listed.head.status == CLOSED
        return None if closed and not page["entries"] else seq

    async def follow(
        self, conversation: ConversationRef, after: int, *, reveal: bool
    ) -> AsyncGenerator[Followed]:
        """From behind the entry `after` on. It waits while the store is away, and goes on where it was.
        Sensitive values are masked unless `reveal`."""
        veil, last_sent, quiet_s = None, 0.0, 0.0
        while not self._stopping:
            try:
                entries = await self._journal.next(
                    conversation, after, at_most=ROWS_AT_ONCE, within_s=LOOKED_AGAIN_AFTER_S
                )
                if not entries:
                    quiet_s += LOOKED_AGAIN_AFTER_S
                    ended = await self._ended(conversation, last_sent, quiet_s)
                    yield Followed(ended=ended)
                    if ended is not None:
                        return
                    continue
                veil = None if reveal else await self._history.veil(conversation, veil)
                rows = self._history.rows(entries, veil, READ_WITHIN)
            except LookElsewhere:
                yield Followed(ended="erased")
                return
            except RetryLater:
                yield Followed()
                await asyncio.sleep(LOOKED_AGAIN_AFTER_S)
                continue
            yield Followed(rows)
            if rows:
                after = last_sent = rows[-1]["seq"]
                quiet_s = 0.0
            else:  # what somebody said is being read
                await asyncio.sleep(LOOKED_AGAIN_AFTER_S)
        yield Followed(ended="stopping")

    async def follow_list(
        self, tenant_id: str, wanted: ConversationFilter, *, limit: int
    ) -> AsyncGenerator[ListFollowed]:
        """The newest conversations that `wanted` takes, at most `limit` rows: first all, then what changes.
        It looks once a second, and goes on where it was when the store was away."""
        known: Mapping[str, ConversationRow] | None = None
        while not self._stopping:
            try:
                page = await list_conversations(
                    self._index, tenant_id, wanted, limit=limit, examined_at_most=LIST_EXAMINED_AT_MOST
                )
            except RetryLater:
                yield ListFollowed()
            else:
                listed = {row["conversationId"]: row for row in page["conversations"]}
                before = known or {}
                changed = [row for id, row in listed.items() if before.get(id) != row]
                gone = [id for id in before if id not in listed]
                yield ListFollowed(changed, gone, first=known is None)
                known = listed
            await asyncio.sleep(LOOKED_AGAIN_AFTER_S)
        yield ListFollowed(ended="stopping")

    async def _ended(self, conversation: ConversationRef, last_sent: float, quiet_s: float) -> Ending | None:
        """Why nothing will follow; `last_sent` numbers the last entry that was sent here, 0 for none."""
        listed = await self._index.one(conversation)
        if listed.head is not None and listed.seq < last_sent:
            return "erased"  # and perhaps begun anew
        if listed.head is None:  # one of a release before may have none
            if (await self._memory.load(conversation)).session is not None:
                return None
            return "closed" if await self._journal.newest(conversation) else "erased"
        return "closed" if listed.head.status == CLOSED and quiet_s >= QUIET_AFTER_CLOSE_S else None
