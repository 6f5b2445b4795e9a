"""Rules about ways through the flow: on which channel, where connections lead, what is required on them.

`graph.py` says what is taken for granted about paths and who writes what on them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flow_engine.documents import McpToolParametersMap, Task
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.faults import path_faults
from flow_engine.linting.graph import Arrival, components, leading_to, path_to
from flow_engine.linting.inspection import Inspection, Rule
from flow_engine.task_types import TASK_KINDS
from flow_engine.vocabulary import Channel

# --- channels -----------------------------------------------------------------------------------


Channels = frozenset[Channel]


@dataclass(frozen=True, slots=True)
class Presence:
    """`offered`: the version's channels on which each task may be entered; `entered`: those on which a
    chain of tasks leads into it."""

    offered: Mapping[str, Channels]
    entered: Mapping[str, Channels]


def presence(inspection: Inspection) -> Presence:
    """Follow contacts from the first task, where they start on every channel of the version.

    A contact keeps its channel, but a conversation that outlives it goes on in the same task with a
    contact on any other (F28).
    """
    every: Channels = frozenset(inspection.version.channels)
    offered = {
        task.id: every if task.channels is None else every & frozenset(task.channels)
        for task in inspection.version.tasks
    }
    entered: dict[str, Channels] = dict.fromkeys(inspection.tasks, frozenset())
    entered[inspection.version.first_task] = every
    waiting = [inspection.version.first_task]
    while waiting:
        task_id = waiting.pop()
        left_on = every if inspection.tasks[task_id].closure_config.multi_contact else entered[task_id]
        for target in inspection.connections[task_id]:
            now = entered[target] | (left_on & offered[target])
            if now != entered[target]:
                entered[target] = now
                waiting.append(target)
    return Presence(offered, entered)


def channel_rules(inspection: Inspection) -> Findings:
    """The rules of this file that share what `presence` worked out."""
    if not inspection.version.channels:
        yield LintFinding("/channels", "no_channels", "no contact can start: there is no channel")
        return
    if inspection.version.first_task not in inspection.tasks:
        return
    found = presence(inspection)
    yield from tasks_without_channel(inspection, found)
    yield from start_channels(inspection)
    yield from unreachable_on_channel(inspection, found)
    yield from dead_ends_on_channel(inspection, found)
    yield from resumed_elsewhere(inspection, found)
    yield from channels_without_end(inspection, found)


def tasks_without_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        if not found.offered[task.id]:
            yield LintFinding(
                pointer("tasks", number, "channels"),
                "task_without_channel",
                f"{inspection.name(task.id)} cannot be entered on any channel of the version: "
                f"{listed(set(inspection.version.channels))}",
            )


def start_channels(inspection: Inspection) -> Findings:
    """A conversation starts in the first task on every channel, whatever channels that task is meant for."""
    version = inspection.version
    first = inspection.tasks[version.first_task]
    if first.channels is None:
        return
    meant = f"{inspection.name(first.id)}, which is meant for {listed(set(first.channels))}"
    for number, channel in enumerate(version.channels):
        if channel not in first.channels:
            yield LintFinding(
                pointer("channels", number),
                "channel_without_first_task",
                f"contacts on {channel!r} start in {meant}",
            )
    for number, channel in enumerate(version.mandatory_channels):
        if channel not in first.channels:
            yield LintFinding(
                pointer("mandatoryChannels", number),
                "mandatory_channel_not_covered",
                f"{channel!r} is mandatory, but contacts on it start in {meant}",
            )


def unreachable_on_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        missing = found.offered[task.id] - found.entered[task.id]
        if task.id not in inspection.reachable or not missing:
            continue
        if task.channels is None:
            # Meant for wherever it is reached. Only where such a stretch begins is it worth a word.
            before = [p for p in inspection.offered_by[task.id] if p in inspection.reachable]
            missing = frozenset(c for c in missing if any(c not in found.offered[p] for p in before))
        if missing:
            place = ("tasks", number) if task.channels is None else ("tasks", number, "channels")
            yield LintFinding(
                pointer(*place),
                "task_unreachable_on_channel",
                f"{inspection.name(task.id)} is offered on {listed(missing)}, but every chain of tasks that "
                "leads to it passes a task which is not",
            )


def dead_ends_on_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        entered = found.entered[task.id]
        onward = _union(found.offered[target] for target in inspection.connections[task.id])
        stuck = entered - onward
        if stuck and entered & onward and not inspection.closes(task):
            yield LintFinding(
                pointer("tasks", number, "connectedTasks"),
                "dead_end_on_channel",
                f"on {listed(stuck)} no task can be entered from {inspection.name(task.id)}: none of those "
                "that it leads to is available there",
            )


def resumed_elsewhere(inspection: Inspection, found: Presence) -> Findings:
    """A contact that resumes in a task which its channel lacks is put into the nearest one that has it."""
    every: Channels = frozenset(inspection.version.channels)
    for number, task in enumerate(inspection.version.tasks):
        if not task.closure_config.multi_contact or task.id not in inspection.reachable:
            continue
        onward = _union(found.offered[target] for target in inspection.connections[task.id])
        lost = every - found.offered[task.id] - onward
        if lost:
            yield LintFinding(
                pointer("tasks", number, "closureConfig", "multiContact"),
                "resumed_elsewhere",
                f"a conversation can wait in {inspection.name(task.id)}, and a contact on {listed(lost)} can "
                "neither go on there nor in any task that it leads to",
            )


def channels_without_end(inspection: Inspection, found: Presence) -> Findings:
    served = _union(found.entered[task_id] for task_id in inspection.ends)
    if not served:
        return
    ends = listed(inspection.tasks[end].effective_name for end in inspection.ends if found.entered[end])
    for number, channel in enumerate(inspection.version.channels):
        if channel not in served:
            yield LintFinding(
                pointer("channels", number),
                "channel_without_end",
                f"on {channel!r} no contact can reach a task in which this flow ends: {ends}",
            )


def _union(sets: Iterable[Channels]) -> Channels:
    none: Channels = frozenset()
    return none.union(*sets)


# --- connections --------------------------------------------------------------------------------


MANY_CONNECTIONS = 20
"""Connections of one task beyond which a model chooses badly between them."""


def unreachable_tasks(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        if task.id not in inspection.reachable:
            yield LintFinding(
                pointer("tasks", number),
                "unreachable_task",
                f"no chain of 'connectedTasks' leads from the first task to {inspection.name(task.id)}",
            )


def dead_ends(inspection: Inspection) -> Findings:
    if len(inspection.version.tasks) == 1:
        return  # a flow of one task has nowhere to go by design
    for number, task in enumerate(inspection.version.tasks):
        if (
            not inspection.connections[task.id]
            and not inspection.returns(task)
            and not inspection.closes(task)
        ):
            name = inspection.name(task.id)
            end = "the contact can only end there"
            if TASK_KINDS[task.type].transfers:
                end = "whoever is not put through to a human can do nothing more"
            yield LintFinding(
                pointer("tasks", number, "connectedTasks"),
                "dead_end",
                f"no task can be entered from {name}: {end}",
            )


def loops_without_exit(inspection: Inspection) -> Findings:
    """Tasks that lead round and round although the flow has ends: a contact may always hang up, so a
    flow that is one loop by design is sound, and only a loop that misses the flow's own ends is not. A task
    that returns leads back to each that it can be entered from."""
    within = {task_id: inspection.connections[task_id] for task_id in inspection.reachable}
    ends = inspection.ends & inspection.reachable
    if not ends:
        return
    ways = {
        task_id: (*targets, *inspection.offered_by[task_id])
        if inspection.returns(inspection.tasks[task_id])
        else targets
        for task_id, targets in within.items()
    }
    leading_out = leading_to(ends, ways)
    for component in components(within):
        if len(component) > 1 and component[0] not in leading_out:
            first = min(component, key=lambda task_id: inspection.numbers[task_id])
            names = listed(inspection.tasks[task_id].effective_name for task_id in component)
            yield LintFinding(
                pointer("tasks", inspection.numbers[first], "connectedTasks"),
                "loop_without_exit",
                f"{names} lead only to one another; none of the tasks in which this flow ends can be "
                f"reached any more: {listed(inspection.tasks[end].effective_name for end in ends)}",
            )


def many_connections(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        count = len(set(task.connected_tasks))
        if count > MANY_CONNECTIONS:
            yield LintFinding(
                pointer("tasks", number, "connectedTasks"),
                "too_many_connections",
                f"{inspection.name(task.id)} leads to {count} tasks, a model chooses well "
                f"between at most {MANY_CONNECTIONS}",
            )


# --- required variables: whether anything can have written them when a task is asked for --------


def tasks_never_entered(inspection: Inspection) -> Findings:
    exploration = inspection.exploration
    entered = exploration.entered
    refused_from: dict[str, Arrival] = {}
    for arrival, target in exploration.closed_moves:
        best = refused_from.setdefault(target, arrival)
        if _written(inspection, arrival).bit_count() > _written(inspection, best).bit_count():
            refused_from[target] = arrival  # where least is lacking
    behind = listed(inspection.tasks[target].effective_name for target in refused_from.keys() - entered)
    for number, task in enumerate(inspection.version.tasks):
        if task.id in entered or task.id not in inspection.reachable:
            continue
        arrival = refused_from.get(task.id)
        if arrival is None:
            yield LintFinding(
                pointer("tasks", number),
                "task_behind_closed_task",
                f"every chain of tasks to {inspection.name(task.id)} leads through a task that can never "
                f"be entered: {behind}",
            )
            continue
        path = _path(inspection, arrival, task.id)
        for place, why in _reasons(inspection, task, arrival):
            yield LintFinding(
                place,
                "required_variable_never_filled",
                f"{inspection.name(task.id)} can never be entered: {why} on any path to it, such as {path}",
            )


def closed_connections(inspection: Inspection) -> Findings:
    exploration = inspection.exploration
    entered = exploration.entered
    reported: set[tuple[str, str]] = set()
    for arrival, target in exploration.closed_moves:
        move = (arrival[0], target)
        if target not in entered or move in reported:
            continue
        why = "; ".join(reason for _, reason in _reasons(inspection, inspection.tasks[target], arrival))
        if not why:
            continue  # a condition closes it, and is reported itself
        path = _path(inspection, arrival, target)
        place = inspection.connection_pointer(*move)
        if move not in exploration.open_moves:
            reported.add(move)
            yield LintFinding(
                place,
                "connection_never_open",
                f"{inspection.name(target)} can be entered from elsewhere, but never from "
                f"{inspection.name(move[0])}: {why} on the way there, such as {path}",
            )
        # A move that is closed now and can be made later is what a requirement is for.
        elif not exploration.can_follow(arrival, target):
            reported.add(move)
            yield LintFinding(
                place,
                "required_variable_unfilled_on_path",
                f"on the path {path} the last step is refused, then and ever after: {why} on it",
            )


NAMED_AT_MOST = 5
"""Tools that a reason names."""


def _reasons(inspection: Inspection, task: Task, arrival: Arrival) -> Iterator[tuple[str, str]]:
    """The requirements that close the move into the task, each with its place."""
    written = _written(inspection, arrival)
    for index, variable in inspection.requirements(task):
        place = pointer("tasks", inspection.numbers[task.id], "transitionParameters", index)
        if inspection.never_stored(variable):
            yield place, f"enum {quoted(variable.name)} has no value that could be stored"
        elif variable.by_tools and not written & inspection.bit_of(variable.id):
            named = inspection.writers.get(variable.id, ())[:NAMED_AT_MOST]
            told = ", ".join(f"{quoted(tool)} of {inspection.name(t)}" for t, tool in named)
            which = f" ({told})" if told else ""
            kind = "custom" if variable.type == "custom" else "card number"
            lacking = "none that is selected writes it" if written else "none is selected"
            yield place, f"only a tool writes the {kind} {quoted(variable.name)}{which}, and {lacking}"


def result_paths(inspection: Inspection) -> Findings:
    """Errors."""
    for part in inspection.objects:
        if isinstance(part, McpToolParametersMap):
            for var_id, path in part.result_mapping.items():
                yield from path_faults(inspection.place_of(part, "resultMapping", var_id), path)


def _written(inspection: Inspection, arrival: Arrival) -> int:
    """The bits of what may have been written when the task of the arrival is left."""
    return arrival[1] | inspection.bits_written(arrival[0])


def _path(inspection: Inspection, arrival: Arrival, target: str) -> str:
    passed = [task_id for task_id, _ in path_to(arrival, inspection.exploration.arrivals)]
    return " → ".join(inspection.name(task_id) for task_id in (*passed, target))


def first_task_parameters(inspection: Inspection) -> Findings:
    first = inspection.tasks.get(inspection.version.first_task)
    if first is None:
        return
    for index, parameter in enumerate(first.transition_parameters):
        if parameter.required:
            yield LintFinding(
                pointer("tasks", inspection.numbers[first.id], "transitionParameters", index),
                "first_task_requires_parameter",
                f"{quoted(parameter.variable_id)} is not asked for when a conversation starts in "
                f"{inspection.name(first.id)}",
            )


ERROR_RULES: tuple[Rule, ...] = (result_paths,)
RULES: tuple[Rule, ...] = (
    channel_rules,
    unreachable_tasks,
    dead_ends,
    loops_without_exit,
    many_connections,
    first_task_parameters,
    tasks_never_entered,
    closed_connections,
)
