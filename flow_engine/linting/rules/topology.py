"""Rules about where the connections between tasks lead."""

from __future__ import annotations

from flow_engine.documents.wording import listed
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.graph import components, leading_to
from flow_engine.linting.inspection import Inspection

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
        if not inspection.connections[task.id] and not inspection.closes(task):
            name = inspection.name(task.id)
            end = "the contact can only end there"
            if task.type == "HUM":
                end = "whoever is not put through to a human can do nothing more"
            yield LintFinding(
                pointer("tasks", number, "connectedTasks"),
                "dead_end",
                f"no task can be entered from {name}: {end}",
            )


def loops_without_exit(inspection: Inspection) -> Findings:
    """Tasks that lead round and round although the flow has ends: a contact may always hang up, so a
    flow that is one loop by design is sound, and only a loop that misses the flow's own ends is not."""
    within = {task_id: inspection.connections[task_id] for task_id in inspection.reachable}
    ends = inspection.ends & inspection.reachable
    if not ends:
        return
    leading_out = leading_to(ends, within)
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


RULES: tuple[Rule, ...] = (unreachable_tasks, dead_ends, loops_without_exit, many_connections)
