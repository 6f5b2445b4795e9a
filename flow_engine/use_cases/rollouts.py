"""A split at work: conversations are counted as their contacts end, and its guard is judged at once.

Counting is a part of the job that concludes an ended contact: it is done at least once, and what was counted
of a conversation is replaced, so it counts once. Whoever finds a side too bad ends the sharing out over the
flow's revision, so one of all processes does; the conversation at which it was noticed tells the event.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from typing_extensions import TypedDict

from flow_engine.errors import LookElsewhere
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationList, ConversationRef
from flow_engine.ports.flow_store import RolledBack, Split
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.ports.outcomes import CountedConversation, OutcomeCounts
from flow_engine.runtime.mining_state import Conclusion
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Session
from flow_engine.runtime.storage import ConversationMemory
from flow_engine.use_cases.delivery import Schedule
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.outcomes import VersionOutcomes, counts_of, outcomes_of, worse_side
from flow_engine.use_cases.publishing import find_tag
from flow_engine.values import utc_text

EXAMINED_AT_MOST = 1_000
"""Conversations looked at for one that tells a rollback."""
FINAL = 2**53 - 1
"""The order of what is counted of a conversation that was started anew: nothing comes later."""


class RolledBackReply(TypedDict):
    """`at` is RFC 3339 in UTC."""

    versionId: str
    metric: str
    at: str


class OutcomesReply(TypedDict):
    """`versions` are the sides in their order, the base first; none where the tag is not split."""

    tag: str
    versions: Sequence[VersionOutcomes]
    rolledBack: RolledBackReply | None


class Rollouts:
    """Raises RetryLater when a store is away."""

    def __init__(
        self,
        flow_service: FlowService,
        counts: OutcomeCounts,
        clock: Clock,
        memory: ConversationMemory,
        index: ConversationList,
        schedule: Schedule,
    ) -> None:
        self._flow_service = flow_service
        self._counts = counts
        self._clock = clock
        self._memory = memory
        self._index = index
        self._schedule = schedule

    async def outcomes(self, tenant_id: str, flow_id: str, tag: str) -> OutcomesReply:
        """Raises LookElsewhere `flow_unknown`, `tag_unknown`. Intervals are of 95 %."""
        split = find_tag(await self._flow_service.get_flow(tenant_id, flow_id), tag).split
        if split is None:
            return OutcomesReply(tag=tag, versions=(), rolledBack=None)
        sums = await self._counts.read(tenant_id, split.split_id)
        return OutcomesReply(
            tag=tag, versions=outcomes_of(split, sums), rolledBack=rolled_back_reply(split.rolled_back)
        )

    async def count(
        self,
        runner: ConversationalFlowRunner,
        conclusions: Mapping[str, Conclusion],
        *,
        final: bool = False,
    ) -> RolledBack | None:
        """Count a conversation as it stands, with its messages loaded, where it is on a side of a split.

        The rollback that this conversation is to tell, also when it was asked before; else None.
        """
        session, loaded = runner.session, runner.loaded
        rollout = loaded.mining.rollout
        if rollout is None:
            return None
        own = _digest(session)
        order = FINAL if final else loaded.revision + loaded.mining_revision
        counted = CountedConversation(
            rollout.split_id, session.version_id, own, order, counts_of(runner, conclusions)
        )
        await self._counts.put(session.tenant_id, counted)
        split = await self._running(session, rollout.tag, rollout.split_id)
        if split is None:
            return None
        if split.rolled_back is not None:
            return split.rolled_back if split.rolled_back.noticed_by == own else None
        guard = split.guard
        if guard is None:
            return None
        worse = worse_side(split, await self._counts.read(session.tenant_id, split.split_id))
        if worse is None:
            return None
        rolled_back = RolledBack(worse, guard.metric, self._clock.now(), own)
        done = await self._flow_service.roll_back(
            session.tenant_id, session.flow_id, rollout.tag, split.split_id, rolled_back
        )
        return rolled_back if done else None

    async def judge(self, tenant_id: str, flow_id: str, tag: str) -> None:
        """Judge what a guard that was set finds counted already. One of the split's conversations tells a
        rollback, if any is stored. Raises LookElsewhere `flow_unknown`, `tag_unknown`."""
        split = find_tag(await self._flow_service.get_flow(tenant_id, flow_id), tag).split
        if split is None or split.guard is None or split.rolled_back is not None:
            return
        worse = worse_side(split, await self._counts.read(tenant_id, split.split_id))
        if worse is None:
            return
        now, told_by = self._clock.now(), ""
        teller = await self._ended_on(tenant_id, tag, split)
        if teller is not None:  # before: whoever is first, it is noticed by the same conversation
            session, contact_id = teller
            told_by = _digest(session)
            conversation = ConversationRef(tenant_id, session.conversation_id)
            await self._schedule(DueJob(Job("conclude", conversation, contact_id), now))
        rolled_back = RolledBack(worse, split.guard.metric, now, told_by)
        await self._flow_service.roll_back(tenant_id, flow_id, tag, split.split_id, rolled_back)

    async def _ended_on(self, tenant_id: str, tag: str, split: Split) -> tuple[Session, str] | None:
        """A conversation of the split, among the tenant's newest, with the id of an ended contact of it."""
        versions = {side.version_id for side in split.sides}
        listed = await self._index.newest(tenant_id, until_ms=None, after=None, at_most=EXAMINED_AT_MOST)
        for each in listed.conversations:
            if each.head is None or each.head.tag != tag or each.head.version_id not in versions:
                continue
            loaded = await self._memory.load(ConversationRef(tenant_id, each.conversation_id))
            rollout, session = loaded.mining.rollout, loaded.session
            if session is not None and rollout is not None and rollout.split_id == split.split_id:
                ended = [id for id, own in session.own_contacts.items() if own.status != "active"]
                if ended:
                    return session, ended[-1]
        return None

    async def _running(self, session: Session, tag: str, split_id: str) -> Split | None:
        """The split, while its tag has it: a conversation outlives tags and flows."""
        try:
            split = find_tag(await self._flow_service.get_flow(session.tenant_id, session.flow_id), tag).split
        except LookElsewhere:
            return None
        return split if split is not None and split.split_id == split_id else None


def rolled_back_reply(rolled_back: RolledBack | None) -> RolledBackReply | None:
    if rolled_back is None:
        return None
    return RolledBackReply(
        versionId=rolled_back.version_id, metric=rolled_back.metric, at=utc_text(rolled_back.at)
    )


def _digest(session: Session) -> str:
    """Of a conversation, without telling its name."""
    whole = f"{session.tenant_id}\n{session.conversation_id}\n{session.started_at.isoformat()}"
    return sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]
