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
    Consequences,
    Question,
    Reading,
    consequences,
    extraction_requests,
    model_call,
    question_of,
    read_answer,
)
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.extraction import Extractor
from flow_engine.ports.jobs import Job, TryJobAgain
from flow_engine.ports.models import Model, ModelFailed
from flow_engine.ports.observing import Observer
from flow_engine.runtime.events import checkpoint_event, system_event
from flow_engine.runtime.mining_state import Conclusion, MinedBy
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import Loaded, Reply, turns_of_contact
from flow_engine.use_cases.transactor import Step, Stepper
from flow_engine.values import JsonValue

_SILENT = Reply(b"")


class _NothingToDo(Exception):
    """Somebody was here before, or the conversation has gone."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the background work is wired with. `has_model` is False where none is configured."""

    extractor: Extractor
    model: Model
    has_model: bool
    observer: Observer


class BackgroundWork:
    """Handlers of jobs by their kind. Raises TryJobAgain when a model failed."""

    def __init__(self, stepper: Stepper, helpers: Helpers) -> None:
        self._stepper = stepper
        self._helpers = helpers

    async def mine(self, job: Job) -> None:
        """Read the last user turn of a conversation, if nobody has yet (F37)."""
        runner = await self._runner(job.conversation)
        question = None if runner is None or runner.session.closed else question_of(runner)
        if runner is None or question is None:
            return
        reading = await self._read(runner, question)
        started_at = runner.session.started_at
        effects: list[Consequences] = []

        async def step(loaded: Loaded) -> Step:
            taken, consequence = await self._read_step(
                job.conversation, loaded, question, reading, started_at
            )
            effects[:] = [consequence]
            return taken

        if await self._commit(job.conversation, step):
            self._count(reading, effects[0])
        if reading.failed:
            raise TryJobAgain("the model gave no usable answer")

    def _count(self, reading: Reading, effects: Consequences) -> None:
        count = self._helpers.observer.count
        for reason, number in reading.dropped.items():
            count("mined_values_dropped", number, reason=reason)
        for var_id in effects.entries:
            count("values_mined", source=reading.values[var_id][1])
        for _ in effects.checkpoints:
            count("checkpoints_reached")
        for _ in effects.stalled:
            count("tasks_stalled")

    async def _read(self, runner: ConversationalFlowRunner, question: Question) -> Reading:
        """Rules first, in a thread: they compute for milliseconds, and other requests go on meanwhile."""
        by_rules = await asyncio.to_thread(self._by_rules, question)
        if not self._helpers.has_model:
            return by_rules
        pieces = runner.platform.pieces(runner.flow, runner.session.latest_contact.channel)
        call = model_call(question, by_rules.values, pieces)
        if call is None:
            return by_rules
        try:
            answer = await self._helpers.model.ask(call)
        except ModelFailed as failure:
            self._helpers.observer.count("model_calls_failed", purpose=call.purpose, reason=failure.reason)
            return replace(by_rules, failed=True)
        reading = read_answer(question, answer.data, runner)
        values = {**reading.values, **by_rules.values}
        return replace(reading, values=values, said_in=by_rules.said_in)

    def _by_rules(self, question: Question) -> Reading:
        """What was said later counts."""
        values: dict[str, tuple[JsonValue, MinedBy]] = {}
        said_in: dict[str, str] = {}
        for message_id, request in extraction_requests(question):
            found = self._helpers.extractor.extract(request)
            values |= {var_id: (value, "rules") for var_id, value in found.items()}
            said_in |= dict.fromkeys(found, message_id)
        return Reading(values, said_in)

    async def _read_step(
        self,
        conversation: ConversationRef,
        loaded: Loaded,
        question: Question,
        reading: Reading,
        started_at: datetime,
    ) -> tuple[Step, Consequences]:
        runner = await self._stepper.resume(conversation, loaded)
        state = loaded.mining
        turn_id = question.turn.message_id
        # Somebody has read since, and there is a later turn: this reading may be older than what is known.
        overtaken = state.mined_through != question.read_through and loaded.last_user_turn != turn_id
        if runner.session.started_at != started_at or state.mined_through == turn_id or overtaken:
            raise _NothingToDo
        effects = consequences(runner, question, reading, runner.now)
        contact_id = question.turn.contact_id
        events = [
            checkpoint_event(
                runner.flow, runner.session, checkpoint, effects.state.checkpoints[checkpoint.id], contact_id
            )
            for checkpoint in effects.checkpoints
        ]
        for task, turns in effects.stalled:
            number = f"stalled:{question.turn.message_id}:{len(events)}"
            events.append(
                system_event(
                    runner.flow, runner.session, number, contact_id, runner.now, "task_stalled",
                    task=task, turns=turns,
                )
            )  # fmt: skip
        taken = Step(runner, _SILENT, set_mined=effects.entries, mining=effects.state, events=tuple(events))
        return taken, effects

    async def conclude(self, job: Job) -> None:
        """Classify an ended contact, report what was missed, and improve its summary (F30, F39)."""
        loaded = await self._stepper.memory.load(job.conversation, with_turns=True)
        if loaded.session is None or not self._helpers.has_model:
            return
        runner = await self._stepper.resume(job.conversation, loaded)
        contact = runner.session.contacts.get(job.subject)
        if contact is None or job.subject in loaded.mining.conclusions:
            return
        turns = turns_of_contact(loaded.turns, job.subject)
        pieces = runner.platform.pieces(runner.flow, contact.channel)
        conclusion = Conclusion()
        try:
            call = conclusion_call(runner, turns, pieces)
            if call is not None:
                conclusion = read_conclusion(runner, (await self._helpers.model.ask(call)).data)
            question = summary_call(turns, contact, pieces)
            has_entry = any(c.date == contact.started_at for c in loaded.previous_contacts)
            summary = (
                (await self._helpers.model.ask(question)).text if question is not None and has_entry else ""
            )
        except ModelFailed as failure:
            self._helpers.observer.count("model_calls_failed", purpose="conclusion", reason=failure.reason)
            raise TryJobAgain("the model gave no usable answer") from failure

        async def step(fresh: Loaded) -> Step:
            return await self._conclude_step(job, fresh, conclusion, summary)

        await self._commit(job.conversation, step)

    async def _conclude_step(self, job: Job, loaded: Loaded, conclusion: Conclusion, summary: str) -> Step:
        runner = await self._stepper.resume(job.conversation, loaded)
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
        return Step(
            runner, _SILENT, mining=concluded, events=events, rewrite_previous_contacts=summed_up is not None
        )

    async def expire(self, job: Job) -> None:
        """Close a conversation whose time is over, unless somebody is talking: then its end closes it."""

        async def step(loaded: Loaded) -> Step:
            runner = await self._stepper.resume(job.conversation, loaded)
            if not runner.expired or runner.session.position.phase != "between_contacts":
                raise _NothingToDo
            runner.close_expired()
            return Step(runner, _SILENT)

        await self._commit(job.conversation, step)

    async def _runner(self, conversation: ConversationRef) -> ConversationalFlowRunner | None:
        loaded = await self._stepper.memory.load(conversation, with_turns=True)
        return None if loaded.session is None else await self._stepper.resume(conversation, loaded)

    async def _commit(self, conversation: ConversationRef, step: Callable[[Loaded], Awaitable[Step]]) -> bool:
        """False when there was nothing to do any more."""
        try:
            await self._stepper.run(conversation, None, step)
        except (_NothingToDo, LookElsewhere):
            return False
        return True
