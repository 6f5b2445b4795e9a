"""A recorded conversation stepped again: the same requests, at the time of then, on whichever version.

Nothing is stored, nobody outside is asked, no tool and no model: what they found is in the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal, cast

import orjson
from msgspec.structs import replace

from flow_engine.documents import content_hash
from flow_engine.errors import FlowEngineError, LookElsewhere
from flow_engine.json_values import as_object
from flow_engine.listening.mining import MiningResult, mining_request_of
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan, compile_flow
from flow_engine.runtime.memory import decode_previous_contact
from flow_engine.runtime.mining_state import MinedBy
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import JournalInput, LoadedConversation, ReplyTemplate
from flow_engine.task_types import BETWEEN_CONTACTS
from flow_engine.use_cases.background import reading
from flow_engine.use_cases.migrations import mapping_by_id, on_version
from flow_engine.use_cases.rebuilding import Rerun, World
from flow_engine.use_cases.recording_format import Heard, RecordedEntry, Recording
from flow_engine.use_cases.recordings import state_of
from flow_engine.use_cases.transitions import Decision, Transition
from flow_engine.use_cases.versions_in_use import StartableVersion, VersionChoice, VersionInUse
from flow_engine.values import JsonValue, ValueRejected, canonical
from flow_engine.variables import VariableSpec

TENANT = "replay"
_KEPT = 1
"""What a state that is stepped in memory says of its size in bytes: nothing of it is stored."""


class Compiled:
    """The versions of recordings, each compiled once."""

    def __init__(self) -> None:
        self._flows: dict[str, CompiledFlow] = {}

    def by_name(self, recording: Recording) -> Mapping[str, CompiledFlow]:
        """By version id and by content hash. Raises CorrectTheInput `document_invalid` for a version that
        this release cannot read."""
        named: dict[str, CompiledFlow] = {}
        for version in recording.versions:
            digest = content_hash(version.document)
            if digest not in self._flows:
                self._flows[digest] = compile_flow(version.document, digest)
            named |= dict.fromkeys((version.version_id, version.content_hash, digest), self._flows[digest])
        return named


@dataclass(frozen=True, slots=True)
class FixedVersions:
    """Implements `Versions` over some that are there, by version id and by content hash; `instead` is used
    whichever is asked for."""

    flows: Mapping[str, CompiledFlow]
    campaign_id: str
    instead: CompiledFlow | None = None

    async def to_start(self, tenant_id: str, choice: VersionChoice, subject: str = "") -> StartableVersion:
        return StartableVersion(VersionInUse(self._found(choice.version_id or ""), b""), self.campaign_id)

    async def pinned(self, tenant_id: str, version_id: str, wanted_hash: str) -> VersionInUse:
        return VersionInUse(self._found(wanted_hash, version_id), b"")

    async def keep_definition(self, tenant_id: str, version: VersionInUse) -> None:
        return

    def _found(self, *names: str) -> CompiledFlow:
        """Raises LookElsewhere `version_unknown` for a version that is not of the recording."""
        found = self.instead or next((self.flows[name] for name in names if name in self.flows), None)
        if found is None:
            raise LookElsewhere("version_unknown", f"version {names[-1]!r} is not in the recording")
        return found


@dataclass(frozen=True, slots=True)
class Moment:
    """A conversation after an entry was stepped. `code` is of a refusal or an error. `runner` is None where
    no conversation has begun."""

    runner: ConversationalFlowRunner | None
    code: str | None

    @property
    def task(self) -> TaskPlan | None:
        return None if self.runner is None else self.runner.task

    @property
    def flow(self) -> CompiledFlow | None:
        return None if self.runner is None else self.runner.flow

    @property
    def place(self) -> tuple[str | None, str | None]:
        """The part of a task that a human plays, and the state of the conversation."""
        if self.runner is None:
            return None, None
        return self.runner.status, self.runner.session.states.phase


class Side:
    """A recorded conversation as it is stepped, entry by entry: on the versions of the recording or, with
    `instead`, on another, from nothing on."""

    def __init__(
        self,
        recording: Recording,
        compiled: Compiled,
        platform: Platform,
        *,
        instead: CompiledFlow | None = None,
    ) -> None:
        start, versions = LoadedConversation(), FixedVersions({}, recording.campaign_id, instead)
        if instead is None:
            begun = recording.entries[0].at.astimezone(UTC)
            start = LoadedConversation() if recording.start is None else state_of(recording.start, begun)
            versions = FixedVersions(compiled.by_name(recording), recording.campaign_id)
        self.conversation = ConversationRef(TENANT, recording.conversation_id)
        self.world = World(recording.entries[0].at, start, {})
        self._rerun = Rerun.within(self.world, versions, platform)

    async def take(self, entry: RecordedEntry, request: Mapping[str, Any]) -> Moment:
        """Step an entry with the input `request`. What the step refuses is in the moment, and not raised."""
        world, code = self.world, None
        world.at, world.heard = entry.at.astimezone(UTC), entry.outcome
        world.state = replace(world.state, stored_bytes=_KEPT)
        try:
            code = await self._stepped(entry, request)
        except FlowEngineError as problem:
            code = problem.code
        return await self.now(code)

    async def now(self, code: str | None = None) -> Moment:
        """As it stands. Raises CallTheOperator for a state that does not fit its version."""
        if self.world.state.session is None:
            return Moment(None, code)
        return Moment(await self._rerun.transactor.resume(self.conversation, self.world.state), code)

    async def _stepped(self, entry: RecordedEntry, request: Mapping[str, Any]) -> str | None:
        heard = entry.heard or Heard()
        match entry.op:
            case "extraction":
                await self._hear(heard)
            case "conclusion" if heard.previous_contacts is not None:
                contacts = (decode_previous_contact(orjson.dumps(each)) for each in heard.previous_contacts)
                self.world.state = replace(self.world.state, previous_contacts=tuple(contacts))
            case "expiry" | "routing":
                await self._pass_time("expiry" if entry.op == "expiry" else "routing")
            case "migration":
                transactor = self._rerun.transactor
                runner = await transactor.resume(self.conversation, self.world.state)
                choice = VersionChoice(str(request.get("to")))
                flow = (await transactor.versions.to_start(TENANT, choice)).version.flow
                target = flow.task_named(str(entry.outcome.get("task"))) or flow.tasks.get(runner.task.id)
                if target is not None:
                    named = {task: str(to) for task, to in as_object(request.get("mapping")).items()}
                    runner.migrate_to(flow, target.id, mapping_by_id(named, runner.flow, flow))
                    self.world.state = on_version(self.world.state, runner)
            case _:
                reply = await self._rerun.ask(self.conversation, request)
                if reply and reply.startswith(b'{"result":false'):
                    return str(orjson.loads(reply)["code"])
        return None

    async def _pass_time(self, op: Literal["expiry", "routing"]) -> None:
        """What the clock brings about: taking it up ends a search, and a conversation whose time is over."""
        transactor = self._rerun.transactor

        async def decide(loaded: LoadedConversation) -> Decision[None]:
            runner = await transactor.resume(self.conversation, loaded)
            if op == "expiry" and runner.session.states.phase == BETWEEN_CONTACTS and runner.expired:
                runner.close_expired()
            request = JournalInput(op, {})
            return Decision(None, Transition(runner, ReplyTemplate(b""), request) if runner.changed else None)

        await transactor.apply(self.conversation, decide)

    async def _hear(self, heard: Heard) -> None:
        transactor = self._rerun.transactor

        async def decide(loaded: LoadedConversation) -> Decision[Any]:
            runner = await transactor.resume(self.conversation, loaded)
            request = mining_request_of(runner)
            if request is None:
                return Decision(None)
            values: dict[str, tuple[JsonValue, MinedBy]] = {
                spec.id: (cast("JsonValue", found.value), found.source)
                for id, found in heard.values.items()
                if (spec := runner.flow.variables.resolve(id)) and holds(spec, found.value)
            }
            result = MiningResult(
                values,
                checkpoints=heard.checkpoints,
                failed=heard.failed,
                confidence={
                    id: found.confidence for id, found in heard.values.items() if found.confidence is not None
                },
            )
            return reading(runner, request, result)

        await transactor.apply(self.conversation, decide)


def holds(spec: VariableSpec, value: object) -> bool:
    """Whether a variable takes the value, which is canonical already."""
    try:
        return canonical(spec, cast("JsonValue", value)) is not None
    except ValueRejected:
        return False


# --- the same request on another version --------------------------------------------------------


def adapted(
    entry: RecordedEntry, old: CompiledFlow | None, new: CompiledFlow, gone: set[str]
) -> Mapping[str, object] | None:
    """What the entry asks for in the words of another version; None where that leaves nothing. Variables that
    it lacks, or whose values it does not take, are left out and added to `gone`, by their ids in `old`."""
    request = entry.input
    if old is None:
        return request
    if entry.op == "change-task":
        task = old.task_named(str(request["task"]))
        target = None if task is None else new.counterpart(task)
        return request if target is None else {**request, "task": target.id}
    if entry.op == "migration":
        return {**request, "mapping": {}}  # it is there already
    if entry.op == "extraction":
        heard = entry.heard or Heard()
        gone.update(id for id, found in heard.values.items() if _lost(old, new, id, found.value))
    if entry.op != "memory":
        return request
    kept: list[Mapping[str, object]] = []
    for write in map(as_object, cast("Sequence[object]", request["writes"])):
        spec, name = old.variables.resolve(str(write["varId"])), str(write["varId"])
        known = name if spec is None else spec.id
        described = bool(write.get("descriptionForLLM"))
        if _lost(old, new, known, write["value"], described=described):
            gone.add(known)
        elif (now := _variable(old, new, known)) is not None:
            kept.append({**write, "varId": now.id})
    return {**request, "writes": kept} if kept else None


def _variable(old: CompiledFlow, new: CompiledFlow, id: str) -> VariableSpec | None:
    return new.variables.resolve(id) or new.variables.resolve(old.variables.name_of(id))


def _lost(old: CompiledFlow, new: CompiledFlow, id: str, value: object, *, described: bool = True) -> bool:
    """Whether a value that the variable had is none any more."""
    before, now = old.variables.resolve(id), _variable(old, new, id)
    if before is None or value is None or value == "":
        return False
    if now is None or (now.type == "custom" and not described):
        return True
    return not (before.type == now.type != "enum") and not holds(now, value)


def fitting(state: LoadedConversation, variables: Iterable[VariableSpec]) -> LoadedConversation:
    """The state without the values that these variables do not take."""
    unfit = {
        spec.id
        for spec in variables
        for part in (state.mined, state.tools)
        if (entry := part.get(spec.id)) and entry.value is not None and not holds(spec, entry.value)
    }
    return replace(
        state,
        mined={id: entry for id, entry in state.mined.items() if id not in unfit},
        tools={id: entry for id, entry in state.tools.items() if id not in unfit},
    )
