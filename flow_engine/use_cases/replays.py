"""What another version would have made of recorded conversations.

1. Both sides are stepped side by side with the same inputs, and compared after every one: so what differs
   is the version, never the clock.
2. The path is where the conversation stands after each commit: task, the part of it that a human plays, and
   whether it is active. Tasks are the same by their id, else by their name.
3. After a fork the dialogue would have been another one. What is left is replayed from where the recorded
   conversation stood, so that every refusal is the version's own and none follows from an earlier one.
4. Prompts are compared where both sides stand in the same task and a model may ask for them.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import Literal

import orjson
from typing_extensions import TypedDict

from flow_engine.documents import content_hash
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.agent_data import compose_prompt
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan, compile_flow
from flow_engine.runtime.conversation_state import memory_of
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.task_types import ACTIVE
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.migrations import judge, on_version
from flow_engine.use_cases.recording_format import RecordedEntry, Recording
from flow_engine.use_cases.recordings import Recordings
from flow_engine.use_cases.replaying import Compiled, Moment, Side, adapted, fitting

ALIKE = 0.6
"""From 0 to 1: how alike two tasks' names or texts must be for one to be suggested for the other."""
COMPARED_CHARACTERS, COMPARED_TASKS = 300, 40
"""Of a task's text, and of the tasks on each side: comparing texts takes long."""


class PathStep(TypedDict):
    """Where a side stands after an entry: a task's name, `taskStatus` of its human part, `status` of the
    conversation. `code` is of a refusal or an error, null where there was none."""

    task: str | None
    taskStatus: str | None
    status: str | None
    result: bool
    code: str | None


class ForkReport(TypedDict):
    seq: int
    recorded: PathStep
    replayed: PathStep


class NewRefusal(TypedDict):
    """What was accepted then and is refused now. `task` is the task that was asked for, else the one that the
    conversation was in."""

    seq: int
    task: str
    code: str


class ReplayRow(TypedDict):
    """One conversation. `variablesGone` are ids of variables that had values which the version has no place
    for, `checkpointsLost` ids of checkpoints that are not reached any more. `notReplayed`: there was nowhere
    to go on; `notReproduced`: stepping it on its own version made something else than is recorded."""

    conversationId: str
    path: Literal["same", "other"]
    firstFork: ForkReport | None
    newRefusals: Sequence[NewRefusal]
    variablesGone: Sequence[str]
    promptsDiffer: Sequence[int]
    checkpointsLost: Sequence[str]
    notReplayed: Sequence[int]
    notReproduced: Sequence[int]


class ReplaySummary(TypedDict):
    """Conversations: all, and those with any of each."""

    conversations: int
    samePath: int
    otherPath: int
    newRefusals: int
    variablesGone: int
    promptsDiffer: int


class SuggestedMigration(TypedDict):
    """What to send as `mapping` to move conversations of that version: tasks that the new version has under
    another id and name. `unmapped` are those that it has nothing like. Tasks are ids."""

    fromVersionId: str
    conversations: int
    mapping: Mapping[str, str]
    unmapped: Sequence[str]


class ReplayReply(TypedDict):
    summary: ReplaySummary
    conversations: Sequence[ReplayRow]
    checkpointsLost: int
    migrations: Sequence[SuggestedMigration]


@dataclass(slots=True)
class PromptChange:
    """The first of the prompts of a task that differ, and in how many conversations one does."""

    task: str
    conversation_id: str
    seq: int
    recorded: str
    replayed: str
    conversations: int = 1


class Replay:
    """Recorded conversations on another version, one after the other."""

    def __init__(self, flow: CompiledFlow, platform: Platform) -> None:
        self._flow = flow
        self._platform = platform
        self._compiled = Compiled()
        self._migrations: dict[str, SuggestedMigration] = {}
        self.rows: list[ReplayRow] = []
        self.prompt_changes: dict[str, PromptChange] = {}

    async def add(self, recording: Recording) -> None:
        """Some milliseconds of CPU. Raises CorrectTheInput `document_invalid` and CallTheOperator for a
        recording that this release cannot step."""
        pair = _Pair(recording, self._flow, self._compiled, self._platform)
        for entry in recording.entries:
            await pair.take(entry)
        self.rows.append(pair.row())
        for id, change in pair.prompt_changes.items():
            known = self.prompt_changes.get(id)
            if known is None:
                self.prompt_changes[id] = change
            else:
                known.conversations += 1
        version = recording.versions[-1].version_id
        if version not in self._migrations:
            old = self._compiled.by_name(recording)[version]
            # For the tasks that a migration does not find by itself, the most alike first.
            lost = [task for task in old.tasks.values() if self._flow.counterpart(task) is None]
            kept = {
                found.id for task in old.tasks.values() if (found := self._flow.counterpart(task)) is not None
            }
            fresh = [task for task in self._flow.tasks.values() if task.id not in kept]
            mapping: dict[str, str] = {}
            for _, task_id, target_id in sorted(_likenesses(lost, fresh), reverse=True):
                if task_id not in mapping and target_id not in mapping.values():
                    mapping[task_id] = target_id
            self._migrations[version] = SuggestedMigration(
                fromVersionId=old.version_id,
                conversations=0,
                mapping=mapping,
                unmapped=[task.id for task in lost if task.id not in mapping],
            )
        self._migrations[version]["conversations"] += 1

    def report(self) -> ReplayReply:
        """JSON values."""
        rows = self.rows
        same = sum(row["path"] == "same" for row in rows)
        summary = ReplaySummary(
            conversations=len(rows),
            samePath=same,
            otherPath=len(rows) - same,
            newRefusals=sum(bool(row["newRefusals"]) for row in rows),
            variablesGone=sum(bool(row["variablesGone"]) for row in rows),
            promptsDiffer=sum(bool(row["promptsDiffer"]) for row in rows),
        )
        return ReplayReply(
            summary=summary,
            conversations=rows,
            checkpointsLost=sum(bool(row["checkpointsLost"]) for row in rows),
            migrations=[*self._migrations.values()],
        )


@dataclass(slots=True)
class _Found:
    fork: ForkReport | None = None
    refusals: list[NewRefusal] = field(default_factory=list[NewRefusal])
    gone: set[str] = field(default_factory=set[str])
    prompts: list[int] = field(default_factory=list[int])
    not_replayed: list[int] = field(default_factory=list[int])
    not_reproduced: list[int] = field(default_factory=list[int])
    reached: set[str] = field(default_factory=set[str])
    reached_again: set[str] = field(default_factory=set[str])


class _Pair:
    """A recorded conversation on its own version and on the other one."""

    def __init__(
        self, recording: Recording, flow: CompiledFlow, compiled: Compiled, platform: Platform
    ) -> None:
        self.old = Side(recording, compiled, platform)
        self.new = Side(recording, compiled, platform, instead=flow)
        self.flow = flow
        self.found = _Found()
        self.prompt_changes: dict[str, PromptChange] = {}
        self._id = recording.conversation_id
        self._together = recording.start is None
        self._comparable = True

    async def take(self, entry: RecordedEntry) -> None:
        if not self._together and self.old.world.state.session is not None:
            self._together = await self._follow()
        before = self.old.world.state
        old_flow = (await self.old.now()).flow
        recorded = await self.old.take(entry, entry.input)
        task = entry.outcome.get("task")
        if entry.outcome.get("code") != recorded.code or (
            task is not None and task != (recorded.task and recorded.task.name)
        ):
            self.found.not_reproduced.append(entry.seq)
        self.found.reached |= self.old.world.state.mining.checkpoints.keys()
        session = self.old.world.state.session
        begun = before.session and before.session.started_at
        if not self._together and session is not None and session.started_at != begun:
            self.new.world.state, self._together = LoadedConversation(), True
        asked = adapted(entry, old_flow, self.flow, self.found.gone)
        if not self._together:
            self.found.not_replayed.append(entry.seq)
            return
        self.new.world.at = self.old.world.at  # time passes, whatever is left of the request
        replayed = await (self.new.now() if asked is None else self.new.take(entry, asked))
        self.found.reached_again |= self.new.world.state.mining.checkpoints.keys()
        refused_then = recorded.code is not None or entry.outcome.get("result") is False
        if replayed.code is not None and not refused_then:
            place = recorded.task if entry.op == "change-task" else replayed.task or recorded.task
            name = "" if place is None else place.name
            self.found.refusals.append(NewRefusal(seq=entry.seq, task=name, code=replayed.code))
        there = None if recorded.task is None else self.flow.counterpart(recorded.task)
        neither = recorded.task is replayed.task is None
        if neither or (there is not None and there is replayed.task and recorded.place == replayed.place):
            self._compare_prompts(entry, recorded, replayed)
            return
        if self.found.fork is None:
            self.found.fork = ForkReport(seq=entry.seq, recorded=_step(recorded), replayed=_step(replayed))
        self._together = await self._follow()
        self._comparable = False
        if self._together:
            self._compare_prompts(entry, recorded, await self.new.now())

    async def _follow(self) -> bool:
        """Put the other side to where the recorded one stands; False where its version has no such place."""
        recorded = (await self.old.now()).runner
        if recorded is None:
            return False
        state = fitting(self.old.world.state, self.flow.variables)
        recorded.memory = memory_of(recorded.flow, state)
        target = judge(recorded, self.flow, {}).to_task
        if target is None:
            return False
        recorded.migrate_to(self.flow, target.id, {})
        self.new.world.state = on_version(state, recorded)
        return True

    def _compare_prompts(self, entry: RecordedEntry, recorded: Moment, replayed: Moment) -> None:
        one, other = recorded.runner, replayed.runner
        if one is None or other is None or one.session.states.phase != ACTIVE:
            return
        # A task's texts are rendered where it is entered; who was put into it later has others.
        self._comparable = self._comparable or one.session.task.entered_at == one.now
        if not self._comparable:
            return
        before, after = compose_prompt(one), compose_prompt(other)
        if before.volatile != after.volatile or before.prefix != after.prefix:
            self.found.prompts.append(entry.seq)
            self.prompt_changes.setdefault(
                one.task.id, PromptChange(one.task.name, self._id, entry.seq, before.text, after.text)
            )

    def row(self) -> ReplayRow:
        found = self.found
        return ReplayRow(
            conversationId=self._id,
            path="same" if found.fork is None else "other",
            firstFork=found.fork,
            newRefusals=found.refusals,
            variablesGone=sorted(found.gone),
            promptsDiffer=found.prompts,
            checkpointsLost=sorted(found.reached - found.reached_again),
            notReplayed=found.not_replayed,
            notReproduced=found.not_reproduced,
        )


def _step(moment: Moment) -> PathStep:
    status, phase = moment.place
    return PathStep(
        task=None if moment.task is None else moment.task.name,
        taskStatus=status,
        status=phase,
        result=moment.code is None,
        code=moment.code,
    )


# --- of stored conversations, on a stored version ------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """Which conversations: by their ids, or the `last` ones of a `tag`."""

    conversations: Sequence[str] = ()
    tag: str | None = None
    last: int = 0


class Replays:
    """Replays for one tenant: another's flow, version or conversation looks exactly like an unknown one."""

    def __init__(self, designing: Designing, recordings: Recordings, platform: Platform) -> None:
        self._designing = designing
        self._recordings = recordings
        self._platform = platform

    async def replay(self, tenant_id: str, flow_id: str, version_id: str, order: ReplayOrder) -> ReplayReply:
        """On a version, drafts included. Computes for some 10 ms a conversation, in a thread. Raises
        LookElsewhere `flow_unknown`, `version_unknown`, `conversation_unknown`, CorrectTheInput
        `document_invalid` for a draft that cannot run, `conversation_of_other_flow`, RetryLater."""
        document = await self._designing.flows.get_version_document(tenant_id, flow_id, version_id)
        raw = as_object(orjson.loads(document))
        if raw.get("draft") is True:  # nobody has checked more of it than its shape
            raw = {**raw, "draft": False}
            await self._designing.check(flow_id, orjson.dumps(raw), author="replay")
        flow = await asyncio.to_thread(lambda: compile_flow(raw, content_hash(raw)))
        if order.tag is None:
            chosen = [ConversationRef(tenant_id, id) for id in dict.fromkeys(order.conversations)]
        else:
            chosen = await self._recordings.newest(
                tenant_id, flow_id=flow_id, tag=order.tag, at_most=order.last
            )
        replay, foreign = Replay(flow, self._platform.for_another_thread()), list[Finding]()
        for conversation in chosen:
            recording = await self._recordings.recording(conversation, in_clear=True)
            if recording.flow_id != flow_id:
                name = conversation.conversation_id
                message = f"conversation {name!r} is of flow {recording.flow_id!r}, not of {flow_id!r}"
                place = pointer("conversations", list(order.conversations).index(name))
                foreign.append(Finding(place, "conversation_of_other_flow", message))
            elif not foreign:
                await asyncio.to_thread(asyncio.run, replay.add(recording))
        if foreign:
            raise CorrectTheInput("body_invalid", "only conversations of the flow can be replayed", foreign)
        return replay.report()


# --- the mapping for a migration ----------------------------------------------------------------


def _likenesses(lost: Iterable[TaskPlan], fresh: Sequence[TaskPlan]) -> Iterator[tuple[float, str, str]]:
    for task in islice(lost, COMPARED_TASKS):
        for other in fresh[:COMPARED_TASKS]:
            if task.type == other.type:
                texts = [(task.name, other.name), (_text(task), _text(other))]
                likeness = max(SequenceMatcher(None, *each).ratio() for each in texts)
                if likeness >= ALIKE:
                    yield likeness, task.id, other.id


def _text(task: TaskPlan) -> str:
    return f"{task.document.description} {task.document.prompt}"[:COMPARED_CHARACTERS]
