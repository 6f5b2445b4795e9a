"""Simulated users on request: a persona talks to a version, or to a document that is not published, and the
whole of it is the answer.

A simulation runs in stores of its own and ends with its request, so that nobody pays for a model that nobody
waits for. Only the reply to a request with a key is kept, beside the tenant's tries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from time import monotonic
from typing import Any, cast

import msgspec
import orjson
from typing_extensions import TypedDict

from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, ReloadAndDecide, pointer
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel, ModelFailed, NoModel
from flow_engine.ports.tries import KeptTry, TryStore
from flow_engine.testing import simulated_user, simulation, simulation_report
from flow_engine.testing.bench import InstalledFlow
from flow_engine.testing.trial import TryRecord
from flow_engine.testing.yaml_text import Mistake
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.submissions import Submission

Played = tuple[simulation.Run, simulation.RunVerdict]
Install = Callable[[Submission, str], AbstractAsyncContextManager[InstalledFlow]]
"""A checked version of the flow with that id, ready to be talked to."""

PlayRun = Callable[
    [simulation.Persona, InstalledFlow, int, simulation.Run | None, LanguageModel], Awaitable[Played]
]
"""One conversation, whose number counts from 1: as it was recorded, or by the model. Raises ModelFailed."""


async def play_in_text(
    persona: simulation.Persona,
    flow: InstalledFlow,
    number: int,
    run: simulation.Run | None,
    model: LanguageModel,
) -> Played:
    """Implements `PlayRun`."""
    if run is None:
        return await simulated_user.converse(persona, flow, model, number)
    return run, await simulation.play(persona, run, flow, number)


def run_of(number: int, recorded: Sequence[simulation.Run]) -> simulation.Run | None:
    """The recorded run for a number from 1: fewer runs than asked for are played again from the first. None
    where none is recorded."""
    return recorded[(number - 1) % len(recorded)] if recorded else None


MOST_RUNS = 20
"""Of one simulation."""


@dataclass(frozen=True, slots=True)
class SimulationLimits:
    """Simulations of a tenant at once in a process, and the seconds after which no further run is begun, and
    the present one is given up; replies that are kept for their keys, tries counted in, and how many seconds
    each."""

    at_once: int = 4
    within_s: float = 240.0
    kept: int = 100
    kept_s: float = 30 * 60.0


@dataclass(frozen=True, slots=True)
class SimulationOrder:
    """Who talks to what: a document, as JSON, or a saved version by id or tag, else the one that was saved
    last. A persona and a recording are what was read, or YAML. Without `runs`: as many as recorded, or 1;
    with 0 nothing is played."""

    persona: simulation.Persona | str
    recording: simulation.Recording | str | None = None
    runs: int | None = None
    by_voice: bool = False
    document: Mapping[str, object] | None = None
    version_id: str | None = None


class TaskReached(TypedDict):
    """`pointer` is an RFC 6901 pointer into the document."""

    taskId: str
    name: str
    pointer: str


class OpinionTold(TypedDict):
    reached: bool
    why: str


class RunTold(TypedDict):
    """`run` counts from 1, `turns` those of the user. `failures` are lines, empty for a run that passed.
    `opinion` is a model's and decides nothing. `task` is where it ended, null where it did not begin.
    `conversation` are the turns of a recording."""

    run: int
    passed: bool
    turns: int
    failures: Sequence[str]
    opinion: OpinionTold | None
    task: TaskReached | None
    conversation: Sequence[Mapping[str, Any]]


class SimulationReply(TypedDict):
    """`runs` were played, `left` of those that were asked for were not begun. `passK` is pass^k over all that
    were played, 0 or 1. `byModel`: a model played; `hasModel`: one is configured; `modelFailed` says why it
    played no further. `persona` is as it was read; `personaYaml` and `recordingYaml` are files for
    `flow-engine flow simulate`, the recording null where nothing was played."""

    flowId: str
    versionId: str
    channel: str
    byModel: bool
    hasModel: bool
    modelFailed: str | None
    runs: int
    left: int
    passed: int
    failed: int
    passK: float
    results: Sequence[RunTold]
    persona: Mapping[str, Any]
    personaYaml: str
    recordingYaml: str | None


@dataclass(frozen=True, slots=True)
class SimulationParts:
    """What simulations are made with; `by_voice` and `in_text` play a run."""

    designing: Designing
    install: Install
    in_text: PlayRun
    by_voice: PlayRun
    model: LanguageModel
    store: TryStore
    clock: Clock


@dataclass(slots=True)
class _Playing:
    """What came of a simulation so far."""

    played: list[Played] = field(default_factory=list[Played])
    failed: str | None = None


class Simulations:
    """Every method answers for one tenant: another's flow looks exactly like an unknown one."""

    def __init__(self, parts: SimulationParts, limits: SimulationLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._running: Counter[str] = Counter()

    async def answer(
        self,
        tenant_id: str,
        flow_id: str,
        order: SimulationOrder,
        *,
        author: str,
        idempotency: IdempotencyKey | None,
    ) -> FinalReply:
        """A `SimulationReply`; the same bytes to a request that comes again within half an hour. Raises as
        `simulate`, and CorrectTheInput `idempotency_key_reused`."""
        if idempotency is None:
            reply = orjson.dumps(await self.simulate(tenant_id, flow_id, order, author=author))
            return FinalReply(200, reply)
        store, now = self._parts.store, self._parts.clock.now()
        kept_id = f"simulation-{sha256(idempotency.key.encode()).hexdigest()[:32]}"
        kept = await store.load(tenant_id, kept_id)
        if kept is None or kept.expires_at <= now:
            reply = orjson.dumps(await self.simulate(tenant_id, flow_id, order, author=author))
            # A try of no flow: no route finds it but this one.
            request = TryRecord(flow_id="", campaign_id="", version_id=idempotency.fingerprint, author=author)
            until = now + timedelta(seconds=self._limits.kept_s)
            new = KeptTry(reply, msgspec.json.encode(request), 1, until)
            if await store.create(tenant_id, kept_id, new, now=now, most=self._limits.kept):
                return FinalReply(200, reply)
            kept = await store.load(tenant_id, kept_id)
            if kept is None or kept.expires_at <= now:
                return FinalReply(200, reply)
        fingerprint = msgspec.json.decode(kept.record, type=TryRecord).version_id
        return KeptReply(fingerprint, 200, kept.document).replay(idempotency)

    async def simulate(
        self, tenant_id: str, flow_id: str, order: SimulationOrder, *, author: str
    ) -> SimulationReply:
        """Returns when all runs are over, or time is. Raises CorrectTheInput `persona_invalid`,
        `recording_invalid`, `document_invalid`, each with every mistake, LookElsewhere `flow_unknown`,
        `version_unknown`, CallTheOperator `model_not_configured`, ReloadAndDecide `too_many_simulations`."""
        # What takes seconds is done in a thread: conversations go on meanwhile.
        persona, recording = await asyncio.to_thread(_read, simulation.Persona, order.persona), None
        if order.recording is not None:
            recording = await asyncio.to_thread(_read, simulation.Recording, order.recording)
        unplayable = [] if recording is None else _findings(recording.mistakes, order.recording, "recording")
        recorded = () if recording is None or recording.content is None else recording.content.runs
        wanted = (len(recorded) or 1) if order.runs is None else order.runs
        wanted = min(wanted, MOST_RUNS)
        try:
            _, submission = await self._parts.designing.submitted(
                tenant_id, flow_id, order.document, order.version_id, author=author
            )
        except CorrectTheInput:
            _refuse(_findings(persona.mistakes, order.persona, "persona"), unplayable)
            raise
        if wanted and recording is None and isinstance(self._parts.model, NoModel):
            raise CallTheOperator(
                "model_not_configured",
                "no model is configured to play the persona: set FLOW_ENGINE_LLM_MODEL, or send a recording",
            )
        with self._one_more(tenant_id):
            async with self._parts.install(submission, flow_id) as flow:
                mistakes = await asyncio.to_thread(simulation.mistakes_of, persona, flow.flow)
                _refuse(_findings(mistakes, order.persona, "persona"), unplayable)
                who = cast("simulation.Persona", persona.content)  # it has no mistakes
                done = await self._play(who, flow, recorded, wanted, order)
                return await asyncio.to_thread(self._reply, who, flow, done, wanted, order)

    @contextmanager
    def _one_more(self, tenant_id: str) -> Generator[None]:
        """Raises ReloadAndDecide `too_many_simulations`."""
        if self._running[tenant_id] >= self._limits.at_once:
            raise ReloadAndDecide(
                "too_many_simulations",
                f"{self._limits.at_once} simulations are running, the most that a tenant may have at once",
                accepted=("wait until one of them is over",),
            )
        self._running[tenant_id] += 1
        try:
            yield
        finally:
            self._running[tenant_id] -= 1
            self._running += Counter()  # of tenants that have none nothing is kept

    async def _play(
        self,
        persona: simulation.Persona,
        flow: InstalledFlow,
        recorded: Sequence[simulation.Run],
        wanted: int,
        order: SimulationOrder,
    ) -> _Playing:
        play = self._parts.by_voice if order.by_voice else self._parts.in_text
        done, until = _Playing(), monotonic() + self._limits.within_s
        for number in range(1, wanted + 1):
            try:
                async with asyncio.timeout(until - monotonic()):
                    run = run_of(number, recorded)
                    done.played.append(await play(persona, flow, number, run, self._parts.model))
                    await asyncio.sleep(0)  # between two runs others have their turn
            except TimeoutError:
                break
            except ModelFailed as failure:
                done.failed = str(failure)
                break
        return done

    def _reply(
        self,
        persona: simulation.Persona,
        flow: InstalledFlow,
        done: _Playing,
        wanted: int,
        order: SimulationOrder,
    ) -> SimulationReply:
        verdicts = [verdict for _, verdict in done.played]
        runs = tuple(run for run, _ in done.played)
        passed = sum(verdict.passed for verdict in verdicts)
        told = simulation_report.as_json(persona, verdicts)["results"]
        numbers = {task.id: at for at, task in enumerate(flow.flow.document.tasks)}
        results = [
            RunTold(
                **each,
                task=None
                if verdict.task_id is None
                else TaskReached(
                    taskId=verdict.task_id,
                    name=flow.flow.tasks[verdict.task_id].name,
                    pointer=pointer("tasks", numbers[verdict.task_id]),
                ),
                conversation=simulation.turns_as_json(run),
            )
            for each, run, verdict in zip(told, runs, verdicts, strict=True)
        ]
        return SimulationReply(
            flowId=flow.flow.flow_id,
            versionId=flow.flow.version_id,
            channel="voice" if order.by_voice else "text",
            byModel=order.recording is None and bool(runs),
            hasModel=not isinstance(self._parts.model, NoModel),
            modelFailed=done.failed,
            runs=len(runs),
            left=wanted - len(runs),
            passed=passed,
            failed=len(runs) - passed,
            passK=simulation_report.pass_k(verdicts),
            results=results,
            persona=simulation.persona_as_json(persona),
            personaYaml=simulation.write_persona(persona),
            recordingYaml=simulation.write_recording(simulation.Recording(runs=runs)) if runs else None,
        )


def _read(shape: type[simulation.Read], given: simulation.Read | str) -> simulation.Reading[simulation.Read]:
    if isinstance(given, str):
        return simulation.reading_of(shape, given.encode())
    return simulation.Reading(given)


def _refuse(persona: Sequence[Finding], recording: Sequence[Finding]) -> None:
    """Raises CorrectTheInput with all of these, if there are any: `persona_invalid`, or `recording_invalid`
    where the persona has none."""
    if persona:
        raise CorrectTheInput("persona_invalid", "the persona cannot be used", [*persona, *recording])
    if recording:
        raise CorrectTheInput("recording_invalid", "the recording cannot be read", recording)


def _findings(mistakes: Iterable[Mistake], given: object, what: str) -> list[Finding]:
    """In the request: what is inside of YAML has the pointer of its text before its own, and its line."""
    if not isinstance(given, str):
        return [Finding(f"/{what}{m.pointer}", m.code, m.message) for m in mistakes]
    return [Finding(f"/{what}Yaml{m.pointer}", m.code, f"line {m.line}: {m.message}") for m in mistakes]
