"""Plays scenarios, and tells how much of a flow they walk through.

Every step is a call of the use cases that the API calls. A step that is refused, or that ends in an error,
fails its scenario unless the expectations right after it take note of that. The first step that fails ends
its scenario.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from flow_engine.documents import normalise_name
from flow_engine.errors import FlowEngineError, LookElsewhere
from flow_engine.idempotency import FinalReply
from flow_engine.json_paths import description_of, mapped_values
from flow_engine.runtime import commands, compiled, memory
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.testing import format
from flow_engine.testing.bench import InstalledFlow, Stage
from flow_engine.testing.expectations import Outcome, differences, unexpected
from flow_engine.testing.parsing import Suite
from flow_engine.use_cases.dialogue import Utterance
from flow_engine.use_cases.versions_in_use import VersionChoice
from flow_engine.values import JsonValue

NOBODY = "contact-0"
"""The contact of steps that come when none could be opened: unknown to every conversation."""

READING_S = 0.001
"""What is read comes after what was written before it by the clock too: the `latest` value is that of the
later moment."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`step` counts from 0; None is the contact that is opened without a step of its own."""

    step: int | None
    kind: str
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario that was run, in `seconds`. `failure` is None when all held; `entered` are ids of tasks,
    `taken` pairs of them."""

    name: str
    seconds: float
    failure: Failure | None
    entered: frozenset[str]
    taken: frozenset[tuple[str, str]]


async def play(scenario: format.Scenario, flow: InstalledFlow, stopwatch: Callable[[], float]) -> Played:
    """`stopwatch` counts seconds from any beginning."""
    started = stopwatch()
    player = Player(scenario, flow.stage(scenario.start))
    failure = await player.play()
    seconds = stopwatch() - started
    return Played(scenario.name, seconds, failure, frozenset(player.entered), frozenset(player.taken))


async def play_all(
    suite: Suite,
    flow: InstalledFlow,
    stopwatch: Callable[[], float],
    chosen: Callable[[str], bool] = lambda name: True,
) -> list[tuple[int, Played]]:
    """The scenarios whose names are chosen, with their numbers in the file. Failures are in what was played:
    nothing of a scenario is raised."""
    return [
        (number, await play(scenario, flow, stopwatch))
        for number, scenario in enumerate(suite.file.scenarios)
        if chosen(scenario.name)
    ]


@dataclass
class Player:
    scenario: format.Scenario
    stage: Stage
    contact_id: str = NOBODY
    task_id: str = ""
    opened: int = 0
    utterances: int = 0
    entered: set[str] = field(default_factory=set[str])
    taken: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    async def play(self) -> Failure | None:
        steps: Sequence[format.Step] = self.scenario.steps
        outcome = Outcome(kind="contact")
        if not isinstance(steps[0], format.OpenContact):
            opening = format.OpenContact(contact=format.NewContactBody())
            outcome = await self.act(opening)
            complaints = _complaints(outcome, steps)
            if complaints:
                return Failure(None, "contact", complaints)
        for number, step in enumerate(steps):
            if isinstance(step, format.Expect):
                complaints = tuple(await self.missed(step.expect, outcome))
            else:
                outcome = await self.act(step)
                complaints = _complaints(outcome, steps[number + 1 :])
            if complaints:
                return Failure(number, format.kind_of(step), complaints)
        return None

    async def missed(self, expected: format.ExpectBody, outcome: Outcome) -> Sequence[str]:
        """What does not hold now, after this outcome. Lines."""
        await _turn_of_others()
        return list(differences(expected, outcome, await self.now()))

    async def now(self) -> ConversationalFlowRunner | None:
        """The conversation as the next request would find it, None before it begins; nothing is written."""
        transactor, conversation = self.stage.transactor, self.stage.conversation
        loaded = await transactor.memory.load(conversation)
        return None if loaded.session is None else await transactor.resume(conversation, loaded)

    async def act(self, step: format.Step) -> Outcome:
        await _turn_of_others()
        stage, kind = self.stage, format.kind_of(step)
        outcome = Outcome(kind=kind)
        try:
            match step:
                case format.OpenContact():
                    outcome = await self.open(step.contact)
                case format.Say():
                    said = self.utterance(step.utterance)
                    outcome = await self.done(kind, await stage.dialogue.utterance(stage.conversation, said))
                case format.Speak():
                    said = self.utterance(
                        format.UtteranceBody(body=step.say.body, language=step.say.language)
                    )
                    await stage.dialogue.utterance(stage.conversation, said)
                    outcome = await self.read(kind, step.say.model)
                case format.Read():
                    outcome = await self.read(kind, step.read)
                case format.Remember():
                    writes = [self.memory_write(entry) for entry in step.memory]
                    outcome = await self.done(
                        kind, await stage.dialogue.put_memory(stage.conversation, writes)
                    )
                case format.RunTool():
                    outcome = await self.run_tool(step.tool)
                case format.ChangeTask():
                    outcome = await self.change_task(step.change_task)
                case format.HumanTask():
                    human = step.human_task
                    report = HumanReport(human.outcome, human.reason, human.text)
                    answer = await stage.conversations.human_task(stage.conversation, self.contact_id, report)
                    outcome = await self.done(kind, answer)
                case format.EndContact():
                    outcome = await self.end(step.end_contact)
                case format.Wait():
                    stage.clock.advance(step.wait)
                case format.Expect():
                    raise TypeError("an expectation is not an action")
        except FlowEngineError as problem:
            return Outcome(kind=kind, problem=problem)
        return outcome

    async def open(self, body: format.NewContactBody) -> Outcome:
        scenario, flow = self.scenario, self.stage.flow
        self.opened += 1
        contact = commands.NewContact(
            contact_id=body.id or f"contact-{self.opened}",
            channel=body.channel or scenario.channel or flow.document.channels[0],
            tenant=scenario.tenant,
            data=scenario.contact if body.data is None else body.data,
            language=body.language or scenario.language,
        )
        answer = await self.stage.conversations.new_contact(
            self.stage.conversation, contact, VersionChoice(flow.version_id)
        )
        self.contact_id, self.task_id = contact.contact_id, self.asked_for(_reply(answer))
        self.entered.add(self.task_id)
        return await self.done("contact", answer)

    async def change_task(self, name: str) -> Outcome:
        answer = await self.stage.conversations.change_task(self.stage.conversation, self.contact_id, name)
        reply = _reply(answer)
        if reply["result"]:
            self.enter(self.asked_for(reply))
        return await self.done("change_task", answer)

    def asked_for(self, reply: Mapping[str, Any]) -> str:
        """The id of the task that was entered first: the conversation may have gone on from it by itself."""
        asked = self.stage.flow.task_named(reply["advanced"]["from"]) if "advanced" in reply else None
        return reply["taskId"] if asked is None else asked.id

    async def run_tool(self, body: format.ToolBody) -> Outcome:
        """Store what the tool's mapping finds in its result, as an agent does. Raises LookElsewhere
        `tool_unknown` for a tool that the task does not offer now, `result_not_mapped` where nothing is
        found."""
        stage = self.stage
        runner = await stage.runner()
        chosen = [t for s in runner.task.document.mcp_tool_selection for t in s.selected_tools]
        offered = {tool.tool_name: tool for tool in chosen if runner.holds(tool.when)}
        if body.name not in offered:
            unmet = " or ".join(t.when for t in chosen if t.tool_name == body.name and t.when)
            closed = f"; {body.name!r} is offered when {unmet}" if unmet else ""
            raise LookElsewhere("tool_unknown", f"the task offers {', '.join(offered) or 'no tool'}{closed}")
        mapping = offered[body.name].result_mapping
        values = mapped_values(mapping, cast("JsonValue", body.result))
        if not values:
            paths = ", ".join(f"{name}: {path}" for name, path in mapping.items())
            told = f"finds nothing in this result: {paths}" if paths else "is empty: a step `memory` writes"
            raise LookElsewhere("result_not_mapped", f"the tool's resultMapping {told}")
        written = (
            format.MemoryEntryBody(varId=var_id, value=value, updatedBy=body.name)
            for var_id, value in values.items()
        )
        writes = [self.memory_write(self._described(entry)) for entry in written]
        return await self.done("tool", await stage.dialogue.put_memory(stage.conversation, writes))

    def enter(self, task_id: str) -> None:
        self.taken.add((self.task_id, task_id))
        self.task_id = task_id
        self.entered.add(task_id)

    async def done(self, kind: str, answer: FinalReply) -> Outcome:
        """Of an action that was answered; tasks that the conversation passed by itself count as entered."""
        reply = _reply(answer)
        advanced = await self.moved() if "advanced" in reply else None
        refusal = reply if reply.get("result") is False else None
        return Outcome(kind=kind, command=reply.get("command"), advanced=advanced, refusal=refusal)

    async def read(self, kind: str, answer: format.ModelAnswer | None) -> Outcome:
        self.stage.clock.advance(READING_S)
        await self.stage.read(answer)
        return Outcome(kind=kind, advanced=await self.moved())

    async def moved(self) -> compiled.TaskPlan | None:
        """The last of the tasks that the conversation has entered by itself, None where it has not."""
        stage = self.stage
        session = (await stage.transactor.memory.load(stage.conversation)).session
        advanced: compiled.TaskPlan | None = None
        if session is not None and session.task.task_id != self.task_id:
            passed, left = session.latest_contact.tasks, stage.flow.tasks[self.task_id].name
            for name in passed[len(passed) - passed[::-1].index(left) :]:
                advanced = stage.flow.task_named(name)
                self.enter(stage.flow.names[normalise_name(name)])
        return advanced

    async def end(self, body: format.EndContactBody) -> Outcome:
        handler = self.stage.handler
        handler.verdict = False if body.closes is None else body.closes
        requests_before = handler.requests
        await self.stage.conversations.end_contact(self.stage.conversation, self.contact_id, body.reason)
        unasked = body.closes is not None and handler.requests == requests_before
        return Outcome(kind="end_contact", handler_unasked=unasked)

    def utterance(self, body: format.UtteranceBody) -> Utterance:
        self.utterances += 1
        return Utterance(
            contact_id=self.contact_id,
            message_id=f"message-{self.utterances}",
            ts=self.stage.clock.now(),
            type="message",
            src=body.src,
            body=body.body,
            language=body.language,
        )

    def described(self, step: format.Remember) -> format.Remember:
        """The step, where a custom value without a description gets one of its own members."""
        return format.Remember.model_construct(memory=tuple(map(self._described, step.memory)))

    def _described(self, write: format.MemoryEntryBody) -> format.MemoryEntryBody:
        spec = self.stage.flow.variables.resolve(write.var_id)
        plain = write.description_for_llm is None and write.value is not None
        if spec is None or spec.type != "custom" or not plain:
            return write
        parts = description_of(cast("JsonValue", write.value))
        return write.model_copy(
            update={"description_for_llm": tuple(format.DescriptionBody(**part) for part in parts)}
        )

    def memory_write(self, entry: format.MemoryEntryBody) -> memory.MemoryWrite:
        described = entry.description_for_llm
        return memory.MemoryWrite(
            var=entry.var_id,
            value=cast("JsonValue", entry.value),
            contact_id=entry.contact_id or self.contact_id,
            updated_by=entry.updated_by,
            description_for_llm=None
            if described is None
            else tuple(memory.ValueDescription(part.name, part.value) for part in described),
        )


async def _turn_of_others() -> None:
    """Ends whoever was cancelled too: where a store answers at once, the `wait_for` of its client loses a
    cancellation."""
    await asyncio.sleep(0)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _reply(answer: FinalReply) -> dict[str, Any]:
    return orjson.loads(answer.body)


def _complaints(outcome: Outcome, following: Sequence[format.Step]) -> tuple[str, ...]:
    """What is wrong with an action, unless the expectations right after it take note of that."""
    for step in following:
        if not isinstance(step, format.Expect):
            break
        if step.expect.takes_note_of_refusals:
            return ()
    return tuple(unexpected(outcome))


# --- coverage -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """`left_out` are the names of what was not reached, in the flow's order."""

    total: int
    left_out: tuple[str, ...]

    @property
    def reached(self) -> int:
        return self.total - len(self.left_out)

    @property
    def percent(self) -> float:
        """A flow that has none of something leaves nothing out."""
        return 100.0 * self.reached / self.total if self.total else 100.0


@dataclass(frozen=True, slots=True)
class Coverage:
    tasks: Share
    transitions: Share


def measure(flow: compiled.CompiledFlow, played: Iterable[Played]) -> Coverage:
    """Shares in percent. A connection of a task with itself leads nowhere and does not count."""
    scenarios = list(played)
    entered = frozenset[str]().union(*(scenario.entered for scenario in scenarios))
    taken = frozenset[tuple[str, str]]().union(*(scenario.taken for scenario in scenarios))
    arcs = [
        (plan.id, target) for plan in flow.tasks.values() for target in plan.connected if target != plan.id
    ]
    names = {task_id: plan.name for task_id, plan in flow.tasks.items()}
    return Coverage(
        tasks=Share(len(names), tuple(name for task_id, name in names.items() if task_id not in entered)),
        transitions=Share(
            len(arcs),
            tuple(
                f"{names[source]} → {names[target]}"
                for source, target in arcs
                if (source, target) not in taken
            ),
        ),
    )
