"""The rules of moving between tasks (F11, F12): the only file that decides, and that explains.

1. A task is named by its id or its normalised name.
2. It is entered only from a task whose `connectedTasks` name it: the chart's own transitions. A task in
   which a text waits for a person's decision is not left.
3. It is entered only on one of its channels; null means all.
4. Every required transition parameter of the *target* has a value in the merged memory.
5. The connection's condition is true, and then the target's own.
6. The guard reads; a move that is refused changes nothing but a counter.
7. A connection with `advance: "auto"` is taken without being asked for by the step in which rules 3 to 5 come
   to hold: they do after it, and did not before it, nor when the task was entered. From a task that was
   reached like that, or returned to, what holds already leads on. No task is entered twice in one step.

Rules 3 to 5 are the guard that the chart asks where it has a way. When the chart has not moved, the same
functions say why, in the order above, so that verdict and explanation cannot drift apart.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from flow_engine.conditions.evaluation import Condition, Explanation, Facts
from flow_engine.errors import CorrectTheInput
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan, reads_along
from flow_engine.runtime.memory import MINER, MemoryEntry
from flow_engine.vocabulary import BACK

RefusalCode = Literal[
    "task_unknown",
    "already_in_task",
    "task_not_connected",
    "waiting_for_approval",
    "channel_not_available",
    "missing_variables",
    "condition_not_met",
    "nothing_to_go_back_to",
]


@dataclass(frozen=True, slots=True)
class MissingVariable:
    """`fillable_by`: `convMiner` when the dialogue of the current task can fill it, and its tools that can.
    `fillable_in`: all tasks whose tools can fill it, with these tools; the nearest first."""

    var_id: str
    name: str
    type: str
    fillable_by: tuple[str, ...]
    fillable_in: tuple[tuple[TaskPlan, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class EntryRule:
    """A condition before a task: that of the connection to it, or its own. `reason` is the author's."""

    of: Literal["connection", "task"]
    condition: Condition
    reason: str


@dataclass(frozen=True, slots=True)
class ConditionState:
    """`reason` is that of the rule that is not met, else of the first one."""

    met: bool
    reason: str


class ReachableTask(msgspec.Struct, frozen=True):
    """A task that can be asked for on this channel; it can be entered now when nothing is missing and its
    condition, if it has one, is met."""

    task: TaskPlan
    required: tuple[str, ...]
    missing: tuple[str, ...]
    condition: ConditionState | None = None

    @property
    def open(self) -> bool:
        """Whether no condition closes it."""
        return self.condition is None or self.condition.met


@dataclass(frozen=True, slots=True)
class UnmetCondition:
    rule: EntryRule
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class TaskRefusal:
    """A change that was not made, as data (F12). `from_task` is None between contacts."""

    code: RefusalCode
    reason: str
    from_task: TaskPlan
    missing: tuple[MissingVariable, ...] = ()
    condition: UnmetCondition | None = None


class TaskGuard(msgspec.Struct, frozen=True):
    """Rules 3 to 5, asked by the chart. `current` is the task that would be left, `facts` what conditions
    read; both may be None for a flow without conditions. `held`: a text waits in the current task."""

    flow: CompiledFlow
    memory: Mapping[str, MemoryEntry]
    channel: str
    current: TaskPlan | None = None
    facts: Facts | None = None
    held: bool = False

    def allows(self, task_id: str) -> bool:
        task = self.flow.tasks[task_id]
        return (
            not self.held
            and channel_available(task, self.channel)
            and not missing_variables(task, self.memory)
            and self.unmet(task) is None
        )

    def unmet(self, task: TaskPlan) -> EntryRule | None:
        """The first of the conditions before a task that is not true, None where there is none."""
        for rule in self.entry_rules(task):
            if not self.holds(rule.condition):
                return rule
        return None

    def holds(self, condition: Condition) -> bool:
        return self.facts is not None and condition.truth(self.facts) is True

    def entry_rules(self, task: TaskPlan) -> tuple[EntryRule, ...]:
        """The connection's condition, then the task's own."""
        conditions = self.flow.conditions
        if not conditions:
            return ()
        rules: list[EntryRule] = []
        connection = self.current and self.current.document.connection_conditions.get(task.id)
        if connection and connection.when is not None:
            reason = connection.reason or connection.when
            rules.append(EntryRule("connection", conditions[connection.when], reason))
        own = task.document.entry_condition
        if own is not None:
            rules.append(EntryRule("task", conditions[own.when], own.reason or own.when))
        return tuple(rules)

    def state_of(self, task: TaskPlan) -> ConditionState | None:
        """None for a task without a condition before it."""
        rules = self.entry_rules(task)
        if not rules:
            return None
        unmet = next((rule for rule in rules if not self.holds(rule.condition)), None)
        return ConditionState(unmet is None, (unmet or rules[0]).reason)


def channel_available(task: TaskPlan, channel: str) -> bool:
    return task.channels is None or channel in task.channels


def missing_variables(task: TaskPlan, memory: Mapping[str, MemoryEntry]) -> tuple[str, ...]:
    """Ids of the required variables without a value."""
    return unset(task.required, memory) if task.required else ()


def unset(var_ids: Sequence[str], memory: Mapping[str, MemoryEntry]) -> tuple[str, ...]:
    """Those without a value; `false` and `0` are values (F5)."""
    return tuple([id for id in var_ids if (entry := memory.get(id)) is None or entry.value is None])


def connected_on(channel: str, flow: CompiledFlow, current: TaskPlan) -> list[TaskPlan]:
    """The other tasks that can follow on a channel, in the order of the document."""
    others = [flow.tasks[task_id] for task_id in current.connected if task_id != current.id]
    return [task for task in others if channel_available(task, channel)]


def reachable_tasks(flow: CompiledFlow, current: TaskPlan, guard: TaskGuard) -> tuple[ReachableTask, ...]:
    return tuple(
        [
            ReachableTask(
                task,
                task.required,
                missing_variables(task, guard.memory),
                guard.state_of(task) if flow.conditions else None,
            )
            for task in connected_on(guard.channel, flow, current)
        ]
    )


def next_by_itself(guard: TaskGuard, before: TaskGuard | None, passed: Collection[str]) -> TaskPlan | None:
    """Where rule 7 leads on from the guard's task, None for nowhere: the first of its tasks that can be
    entered and, by the guard `before`, could not. `passed` are ids of tasks entered in this step."""
    for target, how in () if guard.current is None else guard.current.advances:
        open_now = how == "auto" and target not in passed and guard.allows(target)
        if open_now and (before is None or not before.allows(target)):
            return guard.flow.tasks[target]
    return None


def explain(
    flow: CompiledFlow, current: TaskPlan, name: str, guard: TaskGuard, origin: TaskPlan | None = None
) -> TaskRefusal | None:
    """Why a change to the task of that name is refused; None when every rule holds. `origin` is the task that
    the current one, a digression, was entered from."""
    target = flow.task_named(name)
    leaves = name == BACK if target is None else target.id in current.connected and target.id != current.id
    if guard.held and leaves:
        reason = f"a text waits for a person's decision: until then task {current.name!r} is not left"
        return TaskRefusal("waiting_for_approval", reason, current)
    if target is None and name == BACK and origin is not None:
        reason = f"{_not_on(origin, guard.channel)}, so that task {current.name!r} cannot go back"
        return TaskRefusal("nothing_to_go_back_to", reason, current)
    return _why_not(flow, current, name, target, guard)


def _why_not(
    flow: CompiledFlow, current: TaskPlan, name: str, target: TaskPlan | None, guard: TaskGuard
) -> TaskRefusal | None:
    """By rules 1 to 5, of a task that may be left."""
    names = ", ".join(repr(task.name) for task in connected_on(guard.channel, flow, current)) or "none"
    if target is None:
        if name == BACK:
            reason = f"task {current.name!r} was not entered as a digression; reachable tasks: {names}"
            return TaskRefusal("nothing_to_go_back_to", reason, current)
        return TaskRefusal("task_unknown", f"there is no task {name!r}; reachable tasks: {names}", current)
    if target.id == current.id:
        reason = f"the conversation is in task {target.name!r} already; reachable tasks: {names}"
        return TaskRefusal("already_in_task", reason, current)
    if target.id not in current.connected:
        reason = f"task {target.name!r} cannot follow {current.name!r}; reachable tasks: {names}"
        return TaskRefusal("task_not_connected", reason, current)
    if not channel_available(target, guard.channel):
        return TaskRefusal("channel_not_available", _not_on(target, guard.channel), current)
    missing = missing_variables(target, guard.memory)
    if missing:
        specs = {spec.id: spec for spec in flow.variables}  # each is there: refused at the save (F9)
        tools = [t for chosen in current.document.mcp_tool_selection for t in chosen.selected_tools]
        near, mined = _by_distance(flow, current), reads_along(flow.document, current.document)
        described = tuple(
            MissingVariable(
                spec.id,
                spec.name,
                spec.type,
                (
                    *((MINER,) if mined and not spec.by_tools else ()),
                    *(tool.tool_name for tool in tools if tool.may_write(spec.id)),
                ),
                tuple(
                    (flow.tasks[task_id], names)
                    for task_id, names in sorted(flow.writers.get(spec.id, ()), key=lambda w: near[w[0]])
                ),
            )
            for spec in map(specs.__getitem__, missing)
        )
        wanted = ", ".join(repr(variable.name) for variable in described)
        reason = f"task {target.name!r} needs variables that have no value yet: {wanted}"
        return TaskRefusal("missing_variables", reason, current, described)
    unmet = guard.unmet(target)
    if unmet is None or guard.facts is None:
        return None
    found = UnmetCondition(unmet, unmet.condition.explain(guard.facts))
    return TaskRefusal("condition_not_met", unmet.reason, current, condition=found)


def _not_on(task: TaskPlan, channel: str) -> str:
    allowed = ", ".join(sorted(task.channels or ()))
    return f"task {task.name!r} is not available on {channel}; it is on: {allowed}"


def _by_distance(flow: CompiledFlow, current: TaskPlan) -> Mapping[str, int]:
    """By task id how many steps away a task is; those that cannot be reached are behind all others."""
    far = dict.fromkeys(flow.tasks, len(flow.tasks)) | {current.id: 0}
    ways = deque([current.id])
    while ways:
        task_id = ways.popleft()
        for target in flow.tasks[task_id].connected:
            if far[target] == len(flow.tasks):
                far[target] = far[task_id] + 1
                ways.append(target)
    return far


def nearest_task(flow: CompiledFlow, task_id: str, channel: str) -> TaskPlan:
    """The task itself if it is there on the channel, else the nearest that is, else any (F28).

    Raises CorrectTheInput `channel_not_supported` when no task of the version has the channel.
    """
    ways = deque([task_id])
    seen = dict.fromkeys(ways)
    while ways:
        plan = flow.tasks[ways.popleft()]
        if channel_available(plan, channel):
            return plan
        ahead = [target for target in plan.connected if target not in seen]
        seen |= dict.fromkeys(ahead)
        ways.extend(ahead)
    for plan in flow.tasks.values():
        if channel_available(plan, channel):
            return plan
    message = f"no task of version {flow.version_id!r} is available on {channel!r}"
    raise CorrectTheInput.breach("channel_not_supported", message, at="/channel")
