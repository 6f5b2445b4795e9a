"""Simulated users: who they are, what was said in a run of one, and whether the flow did what it should.

A run is judged by the chart: what the persona's `expect` says of task, values and refusals at its end, and
that nothing was refused on the way but what the recording marks. A recording is played as it was said, by the
use cases that the API calls, so that it needs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

import pydantic
import yaml
from pydantic import ValidationError

from flow_engine.documents.findings import finding_of, first_problems
from flow_engine.errors import pointer
from flow_engine.json_values import as_object
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing import format
from flow_engine.testing.bench import InstalledFlow
from flow_engine.testing.expectations import Outcome, unexpected
from flow_engine.testing.parsing import looking_for_unknown, sound_part
from flow_engine.testing.running import Player
from flow_engine.testing.yaml_text import MOST_MISTAKES, FileRejected, Mistake, Node, by_line, read_yaml
from flow_engine.vocabulary import Channel

MOST_TURNS = 100
LONGEST = 4_000
"""Characters of what one says in a turn."""
MOST_RUNS = 1_000

Read = TypeVar("Read", bound=format.Shape)
_Name = Annotated[str, pydantic.Field(min_length=1, max_length=200)]
_Words = Annotated[str, pydantic.Field(min_length=1, max_length=LONGEST)]


class OnThePhone(format.Shape):
    """How somebody behaves in a call: speaks into the agent's words after so many milliseconds of them; hangs
    up in the midst of the answer to that turn, counted from 1."""

    interrupts_after_ms: Annotated[int, pydantic.Field(ge=0, le=60_000)] | None = pydantic.Field(
        default=None, alias="interruptsAfterMs"
    )
    hangs_up_after_turns: Annotated[int, pydantic.Field(ge=1, le=MOST_TURNS)] | None = pydantic.Field(
        default=None, alias="hangsUpAfterTurns"
    )


class Persona(format.Shape):
    """Who talks to the flow, what for, and what has come of it when all went well. `language` is BCP 47,
    `contact` and `tenant` what the agent's program would send of them. `phone` counts in calls alone."""

    name: _Name
    goal: _Words
    mood: _Words
    language: _Name
    channel: Channel | None = None
    knowledge: Mapping[str, object] = pydantic.Field(default_factory=dict[str, object])
    contact: Mapping[str, object] = pydantic.Field(default_factory=dict[str, object])
    tenant: Mapping[str, object] = pydantic.Field(default_factory=dict[str, object])
    phone: OnThePhone = OnThePhone()
    expect: format.ExpectBody
    max_turns: Annotated[int, pydantic.Field(alias="maxTurns", ge=1, le=MOST_TURNS)] = 12


def _by_a_person(decision: format.HumanTaskBody) -> format.HumanTaskBody:
    if decision.outcome not in ("approved", "edited", "rejected"):
        raise format.refused("accepted is one of 'approved', 'edited' and 'rejected'")
    return decision


_Decision = Annotated[
    format.HumanTaskBody, format.short_for("outcome"), pydantic.AfterValidator(_by_a_person)
]


class AgentAction(format.Shape):
    """One thing that the agent did. `refused` is the code that it was refused with when it was recorded.
    `decision` is a person's, on what it says in a task with approval; left out, it is approved."""

    change_task: str | None = None
    memory: Annotated[tuple[format.MemoryEntryBody, ...], pydantic.BeforeValidator(format.entries)] | None = (
        None
    )
    say: _Words | None = None
    decision: _Decision | None = None
    refused: str | None = None

    @pydantic.model_validator(mode="after")
    def _one_thing(self) -> AgentAction:
        done = [name for name in ("change_task", "memory", "say") if getattr(self, name) is not None]
        if len(done) != 1:
            raise format.refused("accepted is exactly one of 'change_task', 'memory' and 'say'")
        if self.decision is not None and self.say is None:
            raise format.refused("accepted is 'decision' beside 'say' alone")
        return self


class Turn(format.Shape):
    """What the user said, and what the agent did about it; without `user` the agent begins."""

    user: _Words | None = None
    agent: tuple[AgentAction, ...] = ()


class Run(format.Shape):
    # One more than a user has: the agent may begin.
    turns: Annotated[
        tuple[Turn, ...], pydantic.Field(max_length=MOST_TURNS + 1), pydantic.AfterValidator(format.not_empty)
    ]


class Recording(format.Shape):
    """Runs as they were said: `{runs: [{turns: [{user, agent: […]}]}]}`, YAML in UTF-8."""

    runs: Annotated[
        tuple[Run, ...], pydantic.Field(max_length=MOST_RUNS), pydantic.AfterValidator(format.not_empty)
    ]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a model thinks of a run. It never decides."""

    reached: bool
    why: str


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`failures` are lines, empty for a run that passed; `number` counts from 1. `task_id` is where it ended,
    None where it did not begin."""

    number: int
    turns: int
    failures: tuple[str, ...]
    opinion: Opinion | None = None
    task_id: str | None = field(default=None, compare=False)

    @property
    def passed(self) -> bool:
        return not self.failures


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading(Generic[Read]):
    """What was read of a file, sound or not: `content` is None where it has mistakes, `root` where its text
    could not be read to its end, or nobody wrote one."""

    content: Read | None
    root: Node | None = None
    mistakes: Sequence[Mistake] = ()


def reading_of(shape: type[Read], text: bytes) -> Reading[Read]:
    """A persona or a recording. YAML in UTF-8, at most 512 KiB."""
    try:
        root, mistakes = read_yaml(text)
    except FileRejected as rejected:
        return Reading(None, mistakes=rejected.mistakes)
    read = None
    try:
        read = shape.model_validate(root.value)
    except ValidationError as error:
        for found in first_problems(error, MOST_MISTAKES):
            told = finding_of(found, shape, root.value).message
            mistakes.append(Mistake(root.line_of(found.place), pointer(*found.place), found.kind, told))
    return Reading(None if mistakes else read, root, by_line(mistakes))


def read_file(shape: type[Read], text: bytes) -> Read:
    """A persona or a recording. Raises FileRejected with every mistake. YAML in UTF-8, at most 512 KiB."""
    reading = reading_of(shape, text)
    if reading.content is None:
        raise FileRejected(reading.mistakes)
    return reading.content


def persona_schema() -> dict[str, Any]:
    """The JSON Schema of a persona, with a field for each of its properties."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Persona.model_json_schema()}


def mistakes_of(persona: Reading[Persona], flow: CompiledFlow) -> Sequence[Mistake]:
    """All of a persona, by line: of its text, of its shape, and the tasks, variables and tools that it names
    in what it expects and the flow does not have. Where nobody wrote a text the lines mean nothing."""
    root = persona.root
    if persona.content is not None:
        expected = persona.content.expect
    else:
        expected = sound_part(None if root is None else as_object(root.value).get("expect"))
    unknown = (
        Mistake(
            1 if root is None else root.line_of(("expect", key)),
            pointer("expect", key),
            "unknown_name",
            message,
        )
        for key, _, message in looking_for_unknown(flow)(expected)
    )
    return by_line([*persona.mistakes, *islice(unknown, MOST_MISTAKES)])


def turns_as_json(run: Run) -> Sequence[Mapping[str, Any]]:
    """JSON values: `{user?, agent: […]}` for each turn."""
    turns: list[dict[str, Any]] = []
    for turn in run.turns:
        said = {} if turn.user is None else {"user": turn.user}
        actions = [
            action.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
            for action in turn.agent
        ]
        turns.append({**said, "agent": actions})
    return turns


def write_recording(recording: Recording) -> str:
    """YAML, as `read_file` reads it."""
    return _yaml({"runs": [{"turns": turns_as_json(run)} for run in recording.runs]})


def persona_as_json(persona: Persona) -> Mapping[str, Any]:
    """JSON values, as they were sent."""
    return persona.model_dump(mode="json", by_alias=True, exclude_unset=True)


def write_persona(persona: Persona) -> str:
    """YAML, as `read_file` reads it."""
    return _yaml(persona_as_json(persona))


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False, width=110)


# --- playing ------------------------------------------------------------------------------------


class Simulation:
    """One conversation of a persona with a flow, step by step."""

    def __init__(self, persona: Persona, flow: InstalledFlow) -> None:
        scenario = format.Scenario.model_construct(
            name=persona.name,
            channel=persona.channel,
            language=persona.language,
            tenant=persona.tenant,
            contact=persona.contact,
            steps=(),
        )
        self.persona = persona
        self.player = Player(scenario, flow.stage())
        self.last = Outcome(kind="contact")
        self.failures: list[str] = []

    async def open(self) -> None:
        self.saw("the contact", await self.player.act(format.OpenContact(contact=format.NewContactBody())))

    async def hear(self, words: str) -> None:
        """The user's turn, read by the rules as in a service without a model."""
        self.saw(f"user: {words!r}", await self.player.act(format.Speak(say=format.SayBody(body=words))))

    async def do(self, action: AgentAction) -> Outcome:
        """The agent's: what is refused and not marked so is a failure."""
        step = step_of(action)
        match step:
            case format.Remember():
                step = self.player.described(step)
                shown = f"memory: {', '.join(entry.var_id for entry in step.memory)}"
            case format.ChangeTask():
                shown = f"change_task: {step.change_task}"
            case format.Say():
                shown = f"say: {step.utterance.body!r}"
        runner = await self.player.now() if action.say is not None else None
        held = action.decision is not None or (runner is not None and runner.is_read_first)
        self.saw(shown, await (self._read_first(action) if held else self.player.act(step)), action.refused)
        return self.last

    async def _read_first(self, action: AgentAction) -> Outcome:
        """What is said is put before a person, who decides, and goes out unless it is rejected."""
        decision = action.decision or format.HumanTaskBody(outcome="approved")
        waiting = format.HumanTaskBody(outcome="waiting", text=action.say)
        for body in (waiting, decision):
            outcome = await self.player.act(format.HumanTask(human_task=body))
            if refusal_of(outcome) is not None or body.outcome == "rejected":
                return outcome
        return await self.player.act(step_of(action.model_copy(update={"say": decision.text or action.say})))

    async def verdict(self, number: int, turns: int, opinion: Opinion | None = None) -> RunVerdict:
        missed = await self.missed()
        return RunVerdict(number, turns, (*self.failures, *missed), opinion, self.player.task_id or None)

    async def missed(self) -> Sequence[str]:
        """What is expected at the end and does not hold now. Lines."""
        missed = await self.player.missed(self.persona.expect, self.last)
        return [f"at the end, {line}" for line in missed]

    def saw(self, shown: str, outcome: Outcome, marked: str | None = None) -> None:
        """What became of a step that is shown so; a refusal whose code is not `marked` is a failure."""
        self.last, code = outcome, refusal_of(outcome)
        if code is not None and code != marked:
            is_contact = outcome.kind == "contact"
            foreseen = "another persona" if is_contact else "`refused: {code}` beside it in a recording"
            told = unexpected(outcome, foreseen=foreseen)
            self.failures += (f"{shown}: {line}" for line in told)


def step_of(action: AgentAction) -> format.ChangeTask | format.Remember | format.Say:
    """The step of a flow test that an agent's action is; what it says has at most 4,000 characters."""
    if action.change_task is not None:
        return format.ChangeTask(change_task=action.change_task)
    if action.memory is not None:
        return format.Remember(memory=action.memory)
    return format.Say(utterance=format.UtteranceBody(body=action.say or "", src="bot"))


def refusal_of(outcome: Outcome) -> str | None:
    """The code of what was refused, or of the problem; None when it went through."""
    if outcome.refusal is not None:
        return str(outcome.refusal["code"])
    return None if outcome.problem is None else outcome.problem.code


async def play(persona: Persona, run: Run, flow: InstalledFlow, number: int) -> RunVerdict:
    """A recorded run, as it was said. Nothing of it is raised."""
    simulation = Simulation(persona, flow)
    await simulation.open()
    for turn in run.turns if refusal_of(simulation.last) is None else ():  # nobody talks without a contact
        if turn.user is not None:
            await simulation.hear(turn.user)
        for action in turn.agent:
            await simulation.do(action)
    return await simulation.verdict(number, len(run.turns))
