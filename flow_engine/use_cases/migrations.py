"""Moving live conversations to another version of their flow, only when asked, one at a time.

A conversation stays on the version that it started with. A migration first tells, for every live
conversation of a version, what would become of it:

    keep      its task is in the new version under the same id
    map       its task has another id there: found by the given mapping, or by its name
    cannot    with the reason; it stays where it is

and then does exactly that, conversation by conversation, each in one atomic commit. The memory goes
along; values of variables that the new version lacks stay stored, unseen. The task that a digression
returns to, and those that counts are of, are found like its own. The task's templates are rendered anew.
Of a split it is no conversation any more: what came of it is no one version's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace
from typing_extensions import TypedDict

from flow_engine import errors
from flow_engine.documents.findings import listed, quoted
from flow_engine.ports.dialogue import ConversationIndex, ConversationRef
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.memory import MemoryEntry, empty_entries
from flow_engine.runtime.mining_state import MiningState
from flow_engine.runtime.privacy import never_read
from flow_engine.runtime.rules import channel_available
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import JournalInput, LoadedConversation, ReplyTemplate
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.transitions import Decision, Transition
from flow_engine.use_cases.versions_in_use import VersionChoice
from flow_engine.values import ValueRejected, canonical

Fate = Literal["keep", "map", "cannot"]

ROWS_THAT_STAY = 1_000
"""Of conversations that cannot move, at most so many are told in one report."""
MOST_FINDINGS = 100
"""Of unknown tasks of a mapping, at most so many are described."""


@dataclass(frozen=True, slots=True)
class MigrationVerdict:
    """What becomes of one conversation. `to_task` is None and `reason` set where it cannot move."""

    fate: Fate
    from_task: TaskPlan
    to_task: TaskPlan | None
    reason: str | None = None


class MigrationRow(TypedDict):
    """`verdict` is `keep`, `map` or `cannot`; `migrated` tells whether the conversation has moved."""

    conversationId: str
    verdict: str
    fromTask: str | None
    toTask: str | None
    reason: str | None
    migrated: bool
    revision: int | None


@dataclass(frozen=True, slots=True)
class MigrationOrder:
    """`mapping` goes from tasks of the old version to tasks of the new one, by id or name."""

    from_version_id: str
    to_version_id: str
    mapping: Mapping[str, str]
    dry_run: bool
    at_most: int


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """`more`: there are further conversations that may move; the same order again goes on with them. Of one
    that cannot be read neither its task nor its revision is known."""

    rows: Sequence[MigrationRow]
    more: bool


def judge(
    runner: ConversationalFlowRunner, new: CompiledFlow, mapping: Mapping[str, str]
) -> MigrationVerdict:
    """`mapping` is by task id. Every obstacle is told. Raises KeyError for a target that `new` lacks."""
    task, origin = runner.task, runner.entered_from
    there = new.counterparts(runner.flow, mapping)
    target = new.tasks[there[task.id]] if task.id in there else None
    if target is None:
        obstacles = [f"the new version has no task {task.name!r}; map it to one"]
    else:
        obstacles = [*_of_task(runner, new, target)]
        if origin is not None and target.document.returns and origin.id not in there:
            lacking = f"the new version has no task {origin.name!r}, which {task.name!r} returns to"
            obstacles.append(f"{lacking}; map it to one")
    obstacles += _of_values(runner, new)
    if target is None or obstacles:
        return MigrationVerdict("cannot", task, None, "; ".join(obstacles))
    return MigrationVerdict("keep" if target.id == task.id else "map", task, target)


def on_version(state: LoadedConversation, runner: ConversationalFlowRunner) -> LoadedConversation:
    """The state of a conversation that `runner` has moved to another version, with what that one adds."""
    empty = _empty(runner.flow)
    return replace(
        state, session=runner.session, mined={**empty, **state.mined}, tools={**empty, **state.tools}
    )


def mining_on(state: LoadedConversation, left: CompiledFlow, flow: CompiledFlow) -> MiningState:
    """What is known of reading along, in a conversation with its turns that is on `flow` now and in no split:
    the words stay hidden that were to be read on the version `left` and are not any more."""
    hidden = {**state.mining.hidden, **never_read(left, flow, state)}
    return state.mining.model_copy(update={"rollout": None, "hidden": hidden})


def _empty(flow: CompiledFlow) -> Mapping[str, MemoryEntry]:
    return empty_entries(flow.variables, "")


def _of_task(runner: ConversationalFlowRunner, new: CompiledFlow, target: TaskPlan) -> Iterator[str]:
    """Why the conversation cannot go on in that task of the new version."""
    if target.type != runner.task.type:
        yield f"task {target.name!r} is {target.type} in the new version, not {runner.task.type} as before"
    elif runner.status is not None and runner.status not in target.kind.sub_states:
        parts = ", ".join(target.kind.sub_states)
        yield f"task {target.name!r} has no part {runner.status!r} in the new version; it has: {parts}"
    channel = runner.session.latest_contact.channel
    if channel not in new.document.channels or not channel_available(target, channel):
        yield f"task {target.name!r} is not available on {channel} in the new version"


def _of_values(runner: ConversationalFlowRunner, new: CompiledFlow) -> Iterator[str]:
    """The values that the new version does not take."""
    for spec in new.variables:
        entry = runner.memory.get(spec.id)
        if entry is None or not entry.has_value:
            continue
        why = f"it is no {spec.type}"
        try:
            if canonical(spec, entry.value) == entry.value:
                continue
        except ValueRejected as rejected:
            why = rejected.message
        yield f"the new version does not take the value of variable {spec.name!r}; {why}"


class Migrations:
    def __init__(self, transactor: Transactor, index: ConversationIndex) -> None:
        self._transactor = transactor
        self._index = index

    async def migrate(self, tenant_id: str, flow_id: str, order: MigrationOrder) -> MigrationReport:
        """Report, and unless it is a dry run also move, the live conversations of a version. Raises
        LookElsewhere `version_unknown`, CorrectTheInput `body_invalid` for a mapping of unknown tasks."""
        versions = self._transactor.versions
        old = (await versions.to_start(tenant_id, VersionChoice(order.from_version_id))).version.flow
        new = (await versions.to_start(tenant_id, VersionChoice(order.to_version_id))).version.flow
        if old.flow_id != flow_id or new.flow_id != flow_id:
            raise errors.LookElsewhere("version_unknown", f"both versions must be of flow {flow_id!r}")
        if old.version_id == new.version_id:
            message = "choose another version than 'fromVersionId'"
            finding = errors.Finding("/toVersionId", "same_version", message)
            raise errors.CorrectTheInput("body_invalid", message, [finding])
        mapping = mapping_by_id(order.mapping, old, new)
        rows: list[MigrationRow] = []
        moved = 0
        async for conversation_id in self._index.on_version(tenant_id, old.version_id):
            if moved == order.at_most:
                return MigrationReport(rows, more=True)
            row = await self._one(
                ConversationRef(tenant_id, conversation_id), old, new, mapping, order.dry_run
            )
            if row is None or (row["verdict"] == "cannot" and len(rows) - moved >= ROWS_THAT_STAY):
                continue
            rows.append(row)
            moved += row["verdict"] != "cannot"
        return MigrationReport(rows, more=False)

    async def _one(
        self,
        conversation: ConversationRef,
        old: CompiledFlow,
        new: CompiledFlow,
        mapping: Mapping[str, str],
        dry_run: bool,
    ) -> MigrationRow | None:
        """None for a conversation that is not live on the old version any more."""

        async def decide(loaded: LoadedConversation) -> Decision[MigrationRow | None]:
            session = loaded.session
            if session is None or session.closed or session.version_id != old.version_id:
                return Decision(None)
            runner = await self._transactor.resume(conversation, loaded)
            left = runner.flow
            verdict = judge(runner, new, mapping)
            if verdict.to_task is None or dry_run:
                return Decision(_row(conversation, verdict, False, runner.session.revision))
            runner.migrate_to(new, verdict.to_task.id, mapping)
            order = {"from": old.version_id, "to": new.version_id, "mapping": mapping}
            mining = mining_on(loaded, left, runner.flow)
            transition = Transition(
                runner,
                ReplyTemplate(b""),
                JournalInput("migration", order),
                guards_memory=True,
                added_variables=_empty(new),
                mining=None if mining == loaded.mining else mining,
            )
            return Decision(_row(conversation, verdict, True, runner.session.revision), transition)

        try:
            return (await self._transactor.apply(conversation, decide, with_turns=True)).result
        except (errors.ReloadAndDecide, errors.CallTheOperator, errors.CorrectTheInput) as problem:
            reason = f"{problem.code}: {problem.detail}"
            return MigrationRow(
                conversationId=conversation.conversation_id,
                verdict="cannot",
                fromTask=None,
                toTask=None,
                reason=reason,
                migrated=False,
                revision=None,
            )


def _row(conversation: ConversationRef, verdict: MigrationVerdict, done: bool, revision: int) -> MigrationRow:
    return MigrationRow(
        conversationId=conversation.conversation_id,
        verdict=verdict.fate,
        fromTask=verdict.from_task.name,
        toTask=None if verdict.to_task is None else verdict.to_task.name,
        reason=verdict.reason,
        migrated=done,
        revision=revision,
    )


def mapping_by_id(mapping: Mapping[str, str], old: CompiledFlow, new: CompiledFlow) -> dict[str, str]:
    """A mapping of tasks, named by id or name. Raises CorrectTheInput `body_invalid` with every task of it
    that its version lacks; the first 100 are described."""
    lacking: list[tuple[str, str, CompiledFlow]] = []
    resolved: dict[str, str] = {}
    for source, target in mapping.items():
        before, after = old.task_named(source), new.task_named(target)
        if before is None:
            lacking.append((source, source, old))
        if after is None:
            lacking.append((source, target, new))
        if before is not None and after is not None:
            resolved[before.id] = after.id
    if lacking:
        known = {flow.version_id: listed(task.name for task in flow.tasks.values()) for flow in (old, new)}
        findings = [
            errors.Finding(
                errors.pointer("mapping", source),
                "unknown_task",
                f"version {flow.version_id!r} has no task {quoted(name)}; it has: {known[flow.version_id]}",
            )
            for source, name, flow in lacking[:MOST_FINDINGS]
        ]
        raise errors.CorrectTheInput("body_invalid", "the mapping names unknown tasks", findings)
    return resolved
