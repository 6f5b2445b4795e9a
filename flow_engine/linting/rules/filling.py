"""Rules about required variables: whether anything can have written them when a task is asked for.

`dataflow.py` says what is taken for granted about paths and who writes what on them.
"""

from __future__ import annotations

from collections.abc import Iterator

from flow_engine.documents import Task
from flow_engine.documents.wording import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.dataflow import Arrival
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.graph import path_to
from flow_engine.linting.inspection import Inspection


def tasks_never_entered(inspection: Inspection) -> Findings:
    exploration = inspection.exploration
    entered = exploration.entered
    refused_from: dict[str, Arrival] = {}
    for arrival, target in exploration.closed_moves:
        refused_from.setdefault(target, arrival)
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
    told: set[tuple[str, str]] = set()
    for arrival, target in exploration.closed_moves:
        move = (arrival[0], target)
        if target not in entered or move in told:
            continue
        why = "; ".join(reason for _, reason in _reasons(inspection, inspection.tasks[target], arrival))
        path = _path(inspection, arrival, target)
        place = inspection.connection_pointer(*move)
        if move not in exploration.open_moves:
            told.add(move)
            yield LintFinding(
                place,
                "connection_never_open",
                f"{inspection.name(target)} can be entered from elsewhere, but never from "
                f"{inspection.name(move[0])}: {why} on the way there, such as {path}",
            )
        # A move that is closed now and can be made later is what a requirement is for.
        elif not exploration.can_follow(arrival, target):
            told.add(move)
            yield LintFinding(
                place,
                "required_variable_unfilled_on_path",
                f"on the path {path} the last step is refused, then and ever after: {why} on it",
            )


def _reasons(inspection: Inspection, task: Task, arrival: Arrival) -> Iterator[tuple[str, str]]:
    """The requirements that close the move into the task, each with its place."""
    tools = arrival[1] or inspection.selects_tools(arrival[0])
    for index, variable in inspection.requirements(task):
        place = pointer("tasks", inspection.numbers[task.id], "transitionParameters", index)
        if inspection.never_stored(variable):
            yield place, f"enum {quoted(variable.name)} has no value that could be stored"
        elif variable.type == "custom" and not tools:
            yield place, f"only a tool writes the custom {quoted(variable.name)}, and none is selected"


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


RULES: tuple[Rule, ...] = (first_task_parameters, tasks_never_entered, closed_connections)
