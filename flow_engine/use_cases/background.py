"""The background use cases: reading along, concluding ended contacts, ending expired conversations.

Each takes a conversation, does what is still to do, and may be run again at any time: what was done is
found done. Asking a model takes seconds and is done once per run, outside the commit; its answer is then
applied to whatever the state has become.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flow_engine.listening import conclusions, mining
from flow_engine.listening.effects import MiningEffects, mining_effects
from flow_engine.ports.dialogue import ActedOn, ConversationRef
from flow_engine.ports.extraction import Extractor
from flow_engine.ports.jobs import Job, TryJobAgain
from flow_engine.ports.models import LanguageModel, LLMAnswer, LLMRequest, ModelFailed, ask
from flow_engine.ports.telemetry import Observer
from flow_engine.runtime import storage
from flow_engine.runtime.events import checkpoint_event, system_event
from flow_engine.runtime.memory import MINER
from flow_engine.runtime.mining_state import Conclusion
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact
from flow_engine.task_types import BETWEEN_CONTACTS
from flow_engine.use_cases.rollouts import Rollouts
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.transitions import Decision, Transition

LAST_WORDS_WITHIN_S = 6.0
"""How long after a contact's end its last words may take to be read, before what was missed is told."""
_SILENT = storage.ReplyTemplate(b"")
_ROLLBACK = storage.JournalInput("rollback", {})
_EXPIRY, _ROUTING = storage.JournalInput("expiry", {}), storage.JournalInput("routing", {})


@dataclass(frozen=True, slots=True)
class BackgroundDependencies:
    """What the background work is wired with. `has_model` is False where none is configured."""

    extractor: Extractor
    model: LanguageModel
    has_model: bool
    observer: Observer
    rollouts: Rollouts


class BackgroundWork:
    """Handlers of jobs by their kind. Raises TryJobAgain when it may go better later. Model calls take
    seconds and are made outside of any commit. Raises RetryLater while a store is away."""

    def __init__(self, transactor: Transactor, dependencies: BackgroundDependencies) -> None:
        self._transactor = transactor
        self._dependencies = dependencies

    async def mine(self, job: Job) -> None:
        """Read the last user turns of a conversation, if nobody has yet, those after its end too (F37). Rules
        take milliseconds, the model seconds. Raises TryJobAgain when the model failed, and for what was read
        by another version than the conversation is on by now."""
        loaded = await self._transactor.memory.load(job.conversation, with_turns=True)
        if loaded.session is None:
            return
        runner = await self._transactor.resume(job.conversation, loaded)
        request = mining.mining_request_of(runner)
        if request is None:
            return
        result = await self._read(job.conversation, runner, request)
        read_on = runner.session

        async def decide(fresh: storage.LoadedConversation) -> Decision[MiningEffects | None]:
            if fresh.session is None or fresh.session.started_at != read_on.started_at:
                return Decision(None)
            if fresh.session.content_hash != read_on.content_hash:
                raise TryJobAgain("the conversation has moved to another version meanwhile")
            return reading(await self._transactor.resume(job.conversation, fresh), request, result)

        miner = ActedOn(*job.conversation, MINER)
        effects = (await self._transactor.apply(miner, decide)).result
        if effects is not None:
            count = self._dependencies.observer.count
            for reason, number in result.dropped.items():
                count("mined_values_dropped", number, reason=reason)
            for var_id in effects.entries:
                count("values_mined", source=result.values[var_id][1])
            for _ in effects.checkpoints:
                count("checkpoints_reached")
            for _ in effects.stalled:
                count("tasks_stalled")
        if result.failed:
            raise TryJobAgain("the model gave no usable answer")

    async def _read(
        self, conversation: ConversationRef, runner: ConversationalFlowRunner, request: mining.MiningRequest
    ) -> mining.MiningResult:
        """Rules first, in a thread: they compute for milliseconds, and other requests go on meanwhile."""
        by_rules = await asyncio.to_thread(mining.read_by_rules, self._dependencies.extractor, request)
        if not self._dependencies.has_model:
            return by_rules
        sections = runner.platform.prompt_sections(runner.flow, runner.session.latest_contact.channel)
        call = mining.model_call(request, by_rules.values, sections)
        if call is None:
            return by_rules
        try:
            answer = await self._ask(call, conversation)
        except ModelFailed as failure:
            self._dependencies.observer.count(
                "model_calls_failed", purpose=call.purpose, reason=failure.reason
            )
            return replace(by_rules, failed=True)
        return mining.together(by_rules, mining.read_answer(request, answer.data, runner))

    async def _ask(self, request: LLMRequest, conversation: ConversationRef) -> LLMAnswer:
        """On behalf of the conversation, for the record and its tenant's share. Raises ModelFailed."""
        return await ask(self._dependencies.model, replace(request, conversation=conversation))

    async def conclude(self, job: Job) -> None:
        """Classify an ended contact, tell what was missed, improve its summary; first those of conversations
        that were started anew meanwhile (F30, F39). The model takes seconds. Raises TryJobAgain when it
        failed."""
        loaded = await self._transactor.memory.load(job.conversation, with_turns=True)
        if loaded.session is None:
            return
        for former in loaded.former:
            await self._conclude_former(job.conversation, former)
        runner = await self._transactor.resume(job.conversation, loaded)
        contact = runner.session.own_contacts.get(job.subject)
        if contact is None or contact.status == "active":
            return
        await self._count(job.conversation, runner)
        if not await self._report_missed(job, contact):
            return
        if not self._dependencies.has_model or job.subject in loaded.mining.conclusions:
            return
        conclusion = await self._conclusion(job.conversation, runner, job.subject)
        summary = await self._summary(job.conversation, runner, job.subject)

        async def decide(fresh: storage.LoadedConversation) -> Decision[None]:
            state = fresh.mining
            if fresh.session is None or job.subject not in fresh.session.own_contacts:
                return Decision(None)
            if job.subject in state.conclusions:
                return Decision(None)
            now = await self._transactor.resume(job.conversation, fresh)
            # Of a contact that is forgotten nobody asks any more; this state is written at every reading.
            known = {id: each for id, each in state.conclusions.items() if id in fresh.session.contacts}
            summed_up = conclusions.with_summary(fresh.previous_contacts, contact, summary)
            if summed_up is not None:
                now.previous_contacts = summed_up
            return Decision(
                None,
                Transition(
                    now,
                    _SILENT,
                    storage.JournalInput("conclusion", {"contactId": job.subject}),
                    mining=state.model_copy(update={"conclusions": {**known, job.subject: conclusion}}),
                    events=conclusions.conclusion_events(now, job.subject, conclusion),
                    rewrite_previous_contacts=summed_up is not None,
                ),
            )

        await self._transactor.apply(job.conversation, decide)
        if loaded.mining.rollout is not None:  # with its result
            after = await self._transactor.memory.load(job.conversation, with_turns=True)
            await self._count(job.conversation, await self._transactor.resume(job.conversation, after))

    async def _count(
        self,
        conversation: ConversationRef,
        runner: ConversationalFlowRunner,
        former: Mapping[str, Conclusion] | None = None,
    ) -> None:
        """Count it among the outcomes of its split, if it has one, and tell a rollback that was noticed by
        that. `former` are the conclusions of a conversation that was started anew."""
        conclusions = runner.loaded.mining.conclusions if former is None else former
        rollouts = self._dependencies.rollouts
        rolled_back = await rollouts.count(runner, conclusions, final=former is not None)
        rollout = runner.loaded.mining.rollout
        if rolled_back is None or rollout is None:
            return
        flow_id = runner.session.flow_id

        async def decide(fresh: storage.LoadedConversation) -> Decision[None]:
            if fresh.session is None or fresh.mining.rollback_told == rollout.split_id:
                return Decision(None)
            now = await self._transactor.resume(conversation, fresh)
            told = fresh.mining.model_copy(update={"rollback_told": rollout.split_id})
            event = system_event(
                *(now.flow, now.session, f"rollback:{rollout.split_id}"),
                *(now.session.latest_contact_id, now.now),
                "rollout_rolled_back",
                flowId=flow_id,
                tag=rollout.tag,
                versionId=rolled_back.version_id,
                metric=rolled_back.metric,
            )
            return Decision(None, Transition(now, _SILENT, _ROLLBACK, mining=told, events=(event,)))

        await self._transactor.apply(conversation, decide)

    async def _report_missed(self, job: Job, contact: Contact) -> bool:
        """Of a conversation that is over, once. False while its last words may still be read: the job comes
        again then."""
        asked = storage.JournalInput("conclusion", {"contactId": job.subject})

        async def decide(loaded: storage.LoadedConversation) -> Decision[bool]:
            state = loaded.mining
            if loaded.session is None or not loaded.session.closed or state.missed_reported:
                return Decision(True)
            runner = await self._transactor.resume(job.conversation, loaded)
            waited = (runner.now - (contact.ended_at or runner.now)).total_seconds()
            if self._dependencies.has_model and mining.is_unread(runner) and waited < LAST_WORDS_WITHIN_S:
                again = runner.due("conclude", subject=job.subject, after_s=1.0)
                return Decision(False, Transition(runner, _SILENT, asked, jobs=(again,)))
            return Decision(
                True,
                Transition(
                    runner,
                    _SILENT,
                    asked,
                    mining=state.model_copy(update={"missed_reported": True}),
                    events=conclusions.missed_events(
                        runner, job.subject, judged=self._dependencies.has_model
                    ),
                ),
            )

        return (await self._transactor.apply(job.conversation, decide)).result

    async def _conclude_former(
        self, conversation: ConversationRef, former: storage.FormerConversation
    ) -> None:
        """What a conversation left behind when it was started anew under its id."""
        left = storage.LoadedConversation(session=former.session, mining=former.mining, turns=former.turns)
        before = await self._transactor.resume(conversation, left)
        own = former.session.own_contacts
        events: list[bytes] = []
        concluded = dict(former.mining.conclusions)
        if not former.mining.missed_reported:
            latest = former.session.latest_contact_id
            events += conclusions.missed_events(before, latest, judged=self._dependencies.has_model)
        for contact_id in own:
            if self._dependencies.has_model and contact_id not in former.mining.conclusions:
                concluded[contact_id] = conclusion = await self._conclusion(conversation, before, contact_id)
                events += conclusions.conclusion_events(before, contact_id, conclusion)

        await self._count(conversation, before, concluded)

        async def decide(loaded: storage.LoadedConversation) -> Decision[None]:
            if former.name not in [other.name for other in loaded.former]:
                return Decision(None)
            runner = await self._transactor.resume(conversation, loaded)
            return Decision(
                None,
                Transition(
                    runner,
                    _SILENT,
                    storage.JournalInput("conclusion", {}),
                    events=tuple(events),
                    forget_former=former.name,
                ),
            )

        await self._transactor.apply(conversation, decide, with_turns=True)

    async def _conclusion(
        self, conversation: ConversationRef, runner: ConversationalFlowRunner, contact_id: str
    ) -> Conclusion:
        """Raises TryJobAgain when the model gives no usable answer."""
        turns = runner.shown_turns(storage.turns_of_contact(runner.loaded.turns, contact_id))
        sections = runner.platform.prompt_sections(runner.flow, runner.session.contacts[contact_id].channel)
        request = conclusions.conclusion_call(runner, turns, sections)
        if request is None:
            return Conclusion()
        return conclusions.read_conclusion(runner, (await self._concluding(request, conversation)).data)

    async def _summary(
        self, conversation: ConversationRef, runner: ConversationalFlowRunner, contact_id: str
    ) -> str:
        """Empty where there is nothing to sum up, or no later contact to tell it. Raises TryJobAgain."""
        contact = runner.session.contacts[contact_id]
        turns = runner.shown_turns(storage.turns_of_contact(runner.loaded.turns, contact_id))
        sections = runner.platform.prompt_sections(runner.flow, contact.channel)
        request = conclusions.summary_call(turns, contact, sections)
        if request is None or runner.remembered(contact) is None:
            return ""
        return (await self._concluding(request, conversation)).text

    async def _concluding(self, request: LLMRequest, conversation: ConversationRef) -> LLMAnswer:
        try:
            return await self._ask(request, conversation)
        except ModelFailed as failure:
            self._dependencies.observer.count(
                "model_calls_failed", purpose="conclusion", reason=failure.reason
            )
            raise TryJobAgain("the model gave no usable answer") from failure

    async def expire(self, job: Job) -> None:
        """Close a conversation whose time is over, unless somebody is talking: then its end closes it. A job
        that comes some seconds too early is put off. Raises RetryLater."""

        async def decide(loaded: storage.LoadedConversation) -> Decision[None]:
            if loaded.session is None or loaded.session.states.phase != BETWEEN_CONTACTS:
                return Decision(None)
            runner = await self._transactor.resume(job.conversation, loaded)
            if runner.expired:
                runner.close_expired()
                return Decision(None, Transition(runner, _SILENT, _EXPIRY))
            deadline = runner.session.deadline
            if deadline is None:
                return Decision(None)
            # Due too early: the clocks of two machines differ, or an older release wrote it down.
            again = runner.due("expire", after_s=(deadline - runner.now).total_seconds())
            return Decision(None, Transition(runner, _SILENT, _EXPIRY, jobs=(again,)))

        await self._transactor.apply(job.conversation, decide)

    async def routing(self, job: Job) -> None:
        """Fail a transfer that found nobody in time (F34): resuming the conversation does it. Put off where
        its deadline (UTC) is later than the job."""

        async def decide(loaded: storage.LoadedConversation) -> Decision[None]:
            if loaded.session is None:
                return Decision(None)
            runner = await self._transactor.resume(job.conversation, loaded)
            if runner.changed:
                return Decision(None, Transition(runner, _SILENT, _ROUTING))
            deadline = runner.session.task.routing_deadline
            if deadline is None or runner.session.active_contact is None:
                return Decision(None)
            again = runner.due("routing", after_s=max(0.0, (deadline - runner.now).total_seconds()))
            return Decision(None, Transition(runner, _SILENT, _ROUTING, jobs=(again,)))

        await self._transactor.apply(job.conversation, decide)


def reading(
    runner: ConversationalFlowRunner, request: mining.MiningRequest, result: mining.MiningResult
) -> Decision[MiningEffects | None]:
    """What a reading comes to on the state as it is now; nothing when somebody else was faster."""
    state, turn = runner.loaded.mining, request.turn
    # Somebody has read since, and there is a later turn: this reading may be older than what is known.
    overtaken = state.mined_through != request.read_through and not mining.is_last_turn(turn, runner.loaded)
    if mining.was_read(turn, state) or overtaken:
        return Decision(None)
    effects = mining_effects(runner, request, result, runner.now)
    events = [
        checkpoint_event(
            runner.flow, runner.session, point, effects.state.checkpoints[point.id], turn.contact_id
        )
        for point in effects.checkpoints
    ]
    for task, turns in effects.stalled:
        name = f"stalled:{turn.name}:{len(events)}"
        details = {"task": task, "turns": turns}
        events.append(
            system_event(
                runner.flow, runner.session, name, turn.contact_id, runner.now, "task_stalled", **details
            )
        )
    runner.take_values(effects.entries, {})
    return Decision(
        effects,
        Transition(
            runner,
            _SILENT,
            storage.JournalInput("extraction", {"messageId": turn.message_id, "contactId": turn.contact_id}),
            guards_memory=runner.flow.moves_by_itself or bool(runner.flow.contested),
            set_mined=effects.entries,
            mining=effects.state,
            events=tuple(events),
            jobs=(runner.due("relay"),) if runner.flow.hears else (),  # for what has waited for this
        ),
    )
