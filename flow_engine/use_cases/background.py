"""The background use cases: reading along, concluding ended contacts, ending expired conversations.

Each takes a conversation, does what is still to do, and may be run again at any time: what was done is
found done. Asking a model takes seconds and is done once per run, outside the commit; its answer is then
applied to whatever the state has become.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from flow_engine.errors import LookElsewhere
from flow_engine.listening.conclusions import (
    conclusion_call,
    missed_checkpoints,
    read_conclusion,
    summary_call,
    with_summary,
)
from flow_engine.listening.mining import (
    MiningEffects,
    MiningRequest,
    MiningResult,
    extraction_requests,
    mining_effects,
    mining_request_of,
    model_call,
    read_answer,
)
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.extraction import Extractor
from flow_engine.ports.jobs import Job, TryJobAgain
from flow_engine.ports.models import LanguageModel, LLMAnswer, LLMRequest, ModelFailed, ask
from flow_engine.ports.telemetry import Observer
from flow_engine.runtime.events import checkpoint_event, system_event
from flow_engine.runtime.mining_state import Conclusion, MinedBy
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import LoadedConversation, ReplyTemplate, turns_of_contact
from flow_engine.use_cases.transactor import Transactor, Transition
from flow_engine.values import JsonValue

_SILENT = ReplyTemplate(b"")


class _NothingToDo(Exception):
    """Somebody was here before, or the conversation has gone."""


@dataclass(frozen=True, slots=True)
class BackgroundDependencies:
    """What the background work is wired with. `has_model` is False where none is configured."""

    extractor: Extractor
    model: LanguageModel
    has_model: bool
    observer: Observer


class BackgroundWork:
    """Handlers of jobs by their kind. Raises TryJobAgain when a model failed."""

    def __init__(self, transactor: Transactor, dependencies: BackgroundDependencies) -> None:
        self._transactor = transactor
        self._dependencies = dependencies

    async def mine(self, job: Job) -> None:
        """Read the last user turn of a conversation, if nobody has yet (F37)."""
        runner = await self._runner(job.conversation)
        request = None if runner is None or runner.session.closed else mining_request_of(runner)
        if runner is None or request is None:
            return
        result = await self._read(job.conversation, runner, request)
        started_at = runner.session.started_at
        effects: list[MiningEffects] = []

        async def decide(loaded: LoadedConversation) -> Transition:
            transition, consequence = await self._apply_reading(
                job.conversation, loaded, request, result, started_at
            )
            effects[:] = [consequence]
            return transition

        if await self._commit(job.conversation, decide):
            self._count(result, effects[0])
        if result.failed:
            raise TryJobAgain("the model gave no usable answer")

    def _count(self, result: MiningResult, effects: MiningEffects) -> None:
        count = self._dependencies.observer.count
        for reason, number in result.dropped.items():
            count("mined_values_dropped", number, reason=reason)
        for var_id in effects.entries:
            count("values_mined", source=result.values[var_id][1])
        for _ in effects.checkpoints:
            count("checkpoints_reached")
        for _ in effects.stalled:
            count("tasks_stalled")

    async def _read(
        self, conversation: ConversationRef, runner: ConversationalFlowRunner, request: MiningRequest
    ) -> MiningResult:
        """Rules first, in a thread: they compute for milliseconds, and other requests go on meanwhile."""
        by_rules = await asyncio.to_thread(self._by_rules, request)
        if not self._dependencies.has_model:
            return by_rules
        sections = runner.platform.prompt_sections(runner.flow, runner.session.latest_contact.channel)
        call = model_call(request, by_rules.values, sections)
        if call is None:
            return by_rules
        try:
            answer = await self._ask(call, conversation)
        except ModelFailed as failure:
            self._dependencies.observer.count(
                "model_calls_failed", purpose=call.purpose, reason=failure.reason
            )
            return replace(by_rules, failed=True)
        result = read_answer(request, answer.data, runner)
        values = {**result.values, **by_rules.values}
        return replace(result, values=values, said_in=by_rules.said_in)

    async def _ask(self, request: LLMRequest, conversation: ConversationRef) -> LLMAnswer:
        """On behalf of the conversation, for the record and its tenant's share. Raises ModelFailed."""
        return await ask(self._dependencies.model, replace(request, conversation=conversation))

    def _by_rules(self, request: MiningRequest) -> MiningResult:
        """What was said later counts."""
        values: dict[str, tuple[JsonValue, MinedBy]] = {}
        said_in: dict[str, str] = {}
        for message_id, extraction in extraction_requests(request):
            found = self._dependencies.extractor.extract(extraction)
            values |= {var_id: (value, "rules") for var_id, value in found.items()}
            said_in |= dict.fromkeys(found, message_id)
        return MiningResult(values, said_in)

    async def _apply_reading(
        self,
        conversation: ConversationRef,
        loaded: LoadedConversation,
        request: MiningRequest,
        result: MiningResult,
        started_at: datetime,
    ) -> tuple[Transition, MiningEffects]:
        runner = await self._transactor.resume(conversation, loaded)
        state = loaded.mining
        turn_id = request.turn.message_id
        # Somebody has read since, and there is a later turn: this reading may be older than what is known.
        overtaken = state.mined_through != request.read_through and loaded.last_user_turn != turn_id
        if runner.session.started_at != started_at or state.mined_through == turn_id or overtaken:
            raise _NothingToDo
        effects = mining_effects(runner, request, result, runner.now)
        contact_id = request.turn.contact_id
        events = [
            checkpoint_event(
                runner.flow, runner.session, checkpoint, effects.state.checkpoints[checkpoint.id], contact_id
            )
            for checkpoint in effects.checkpoints
        ]
        for task, turns in effects.stalled:
            number = f"stalled:{request.turn.message_id}:{len(events)}"
            events.append(
                system_event(
                    runner.flow, runner.session, number, contact_id, runner.now, "task_stalled",
                    task=task, turns=turns,
                )
            )  # fmt: skip
        transition = Transition(
            runner, _SILENT, set_mined=effects.entries, mining=effects.state, events=tuple(events)
        )
        return transition, effects

    async def conclude(self, job: Job) -> None:
        """Classify an ended contact, report what was missed, and improve its summary (F30, F39)."""
        loaded = await self._transactor.memory.load(job.conversation, with_turns=True)
        if loaded.session is None or not self._dependencies.has_model:
            return
        runner = await self._transactor.resume(job.conversation, loaded)
        contact = runner.session.contacts.get(job.subject)
        if contact is None or job.subject in loaded.mining.conclusions:
            return
        turns = turns_of_contact(loaded.turns, job.subject)
        sections = runner.platform.prompt_sections(runner.flow, contact.channel)
        conclusion = Conclusion()
        try:
            call = conclusion_call(runner, turns, sections)
            if call is not None:
                conclusion = read_conclusion(runner, (await self._ask(call, job.conversation)).data)
            request = summary_call(turns, contact, sections)
            has_entry = any(c.date == contact.started_at for c in loaded.previous_contacts)
            summary = (await self._ask(request, job.conversation)).text if request and has_entry else ""
        except ModelFailed as failure:
            self._dependencies.observer.count(
                "model_calls_failed", purpose="conclusion", reason=failure.reason
            )
            raise TryJobAgain("the model gave no usable answer") from failure

        async def decide(fresh: LoadedConversation) -> Transition:
            return await self._apply_conclusion(job, fresh, conclusion, summary)

        await self._commit(job.conversation, decide)

    async def _apply_conclusion(
        self, job: Job, loaded: LoadedConversation, conclusion: Conclusion, summary: str
    ) -> Transition:
        runner = await self._transactor.resume(job.conversation, loaded)
        contact = runner.session.contacts.get(job.subject)
        state = loaded.mining
        if contact is None or job.subject in state.conclusions:
            raise _NothingToDo
        told: list[tuple[str, Mapping[str, object]]] = []
        if conclusion.reason_of_contact is not None:
            told.append(("reason_of_contact", {"name": conclusion.reason_of_contact, "why": conclusion.why}))
        if conclusion.result is not None:
            told.append(("result", {"name": conclusion.result, "why": conclusion.why}))
        if runner.session.closed:
            told += [
                ("checkpoint_missed", {"checkpointId": c.id, "name": c.name})
                for c in missed_checkpoints(runner, state)
            ]
        events = tuple(
            system_event(
                runner.flow, runner.session, f"concluded:{job.subject}:{number}", job.subject, runner.now,
                subtype, **details,
            )
            for number, (subtype, details) in enumerate(told)
        )  # fmt: skip
        summed_up = with_summary(loaded.previous_contacts, contact, summary)
        if summed_up is not None:
            runner.previous_contacts = summed_up
        concluded = state.model_copy(update={"conclusions": {**state.conclusions, job.subject: conclusion}})
        return Transition(
            runner, _SILENT, mining=concluded, events=events, rewrite_previous_contacts=summed_up is not None
        )

    async def expire(self, job: Job) -> None:
        """Close a conversation whose time is over, unless somebody is talking: then its end closes it."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(job.conversation, loaded)
            if not runner.expired or runner.session.states.phase != "between_contacts":
                raise _NothingToDo
            runner.close_expired()
            return Transition(runner, _SILENT)

        await self._commit(job.conversation, decide)

    async def _runner(self, conversation: ConversationRef) -> ConversationalFlowRunner | None:
        loaded = await self._transactor.memory.load(conversation, with_turns=True)
        return None if loaded.session is None else await self._transactor.resume(conversation, loaded)

    async def _commit(
        self, conversation: ConversationRef, decide: Callable[[LoadedConversation], Awaitable[Transition]]
    ) -> bool:
        """False when there was nothing to do any more."""
        try:
            await self._transactor.run(conversation, None, decide)
        except (_NothingToDo, LookElsewhere):
            return False
        return True
