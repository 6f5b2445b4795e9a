"""Rules about conditions: what cannot be read, names and types, and whether any values let one hold.

What is known when a condition is asked counts too: a task is entered only on its channels, and only when what
it requires has a value.
"""

from collections.abc import Iterator, Mapping, Sequence

from flow_engine.conditions import language, syntax
from flow_engine.documents.findings import quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.graph import components, explore, path_to
from flow_engine.linting.inspection import Inspection, ReadCondition, Rule


def faults(inspection: Inspection) -> Findings:
    """Errors: with any of them a condition does not say what it is meant to say."""
    return inspection.condition_faults


def never_and_always(inspection: Inspection) -> Findings:
    for condition in inspection.read_conditions:
        what = f"{quoted(condition.placed.when)} {_where(inspection, condition)}"
        why = inspection.unwritten_told(condition.tree)
        if not inspection.can_hold(condition):
            reason = f"no values make {what} true{why}"
            yield LintFinding(condition.placed.pointer, "condition_never_true", reason)
        elif not inspection.can_fail(condition):
            reason = f"whatever the values are, {what} is true{why}"
            yield LintFinding(condition.placed.pointer, "condition_always_true", reason)


def parts_never_true(inspection: Inspection) -> Findings:
    """What a condition asks in vain, however it comes out as a whole: members that an enum lacks, say."""
    for condition in inspection.read_conditions:
        if not (inspection.can_hold(condition) and inspection.can_fail(condition)):
            continue
        for part in (claim for leaf in syntax.leaves(condition.tree) for claim in _claims(leaf)):
            if not inspection.part_can_hold(part, condition.placed):
                yield LintFinding(
                    condition.placed.pointer,
                    "comparison_never_true",
                    f"no values make {quoted(language.text_of(part))} true, which "
                    f"{quoted(condition.placed.when)} {_where(inspection, condition)} asks"
                    f"{inspection.members_told(language.operands_of(part)[0])}"
                    f"{inspection.unwritten_told(part)}",
                )


def _claims(part: language.Part) -> Iterator[language.Part]:
    """What has to be possible for a part to tell anything: of what is not to be equal, that it can be."""
    match part:
        case syntax.Membership(members=tuple() as members):
            yield from (syntax.Comparison(part.operand, "==", member) for member in members)
        case syntax.Comparison(sign="!="):
            yield syntax.Comparison(part.left, "==", part.right)
        case _:
            yield part


def contradictions(inspection: Inspection) -> Findings:
    """A connection and the task that it leads to, each of which can hold, and never both."""
    for connection, own in inspection.contradictions:
        source, target = connection.placed.task_id or "", connection.placed.target_id or ""
        yield LintFinding(
            connection.placed.pointer,
            "connection_never_open",
            f"{inspection.name(target)} can never be entered from {inspection.name(source)}: "
            f"{quoted(connection.placed.when)} and its own {quoted(own.placed.when)} are never both true",
        )


def without_effect(inspection: Inspection) -> Findings:
    """Conditions of connections that are not there, and what keeps no global task away."""
    everywhere = frozenset(inspection.version.global_tasks)
    for number, task in enumerate(inspection.version.tasks):
        connected = frozenset(task.connected_tasks)
        for index, excluded in enumerate(task.excluded_global_tasks):
            is_global = excluded in everywhere
            if excluded in inspection.tasks and (not is_global or excluded in connected):
                yield LintFinding(
                    pointer("tasks", number, "excludedGlobalTasks", index),
                    "value_ignored",
                    f"{inspection.name(task.id)} leads to {inspection.name(excluded)} all the same: take it "
                    "out of 'connectedTasks'"
                    if is_global
                    else f"{inspection.name(excluded)} is no global task, so that this keeps nothing away",
                )
        for target in task.connection_conditions:
            if target in inspection.tasks and target not in inspection.connections[task.id]:
                yield LintFinding(
                    inspection.condition_pointer(number, target),
                    "value_ignored",
                    f"{inspection.name(task.id)} does not lead to {inspection.name(target)}, so that nothing "
                    "asks for this: name it in 'connectedTasks'",
                )


def advances(inspection: Inspection) -> Findings:
    """Connections that nobody has to ask for: those that wait for nothing, and circles of them."""
    automatic: dict[str, list[str]] = {
        task.id: [
            target
            for target in inspection.connections[task.id]
            if (way := task.connection_conditions.get(target)) is not None and way.advance == "auto"
        ]
        for task in inspection.version.tasks
    }
    for source, targets in automatic.items():
        for target in targets:
            waits = inspection.requirements(inspection.tasks[target])
            if not waits and not inspection.conditions_between(source, target):
                yield LintFinding(
                    inspection.condition_pointer(inspection.numbers[source], target) + "/advance",
                    "advance_at_once",
                    f"nothing has to hold on the way from {inspection.name(source)} to "
                    f"{inspection.name(target)}, so that the conversation does not stay where it starts",
                )
    for component in components(automatic) if any(automatic.values()) else ():
        circle = _circle(sorted(component, key=inspection.numbers.__getitem__), automatic)
        moves = list(zip(circle, (*circle[1:], *circle[:1]), strict=True))
        waits = [c for move in moves for c in inspection.conditions_between(*move)]
        if moves and inspection.can_hold_together(waits):
            names = " → ".join(inspection.name(task_id) for task_id in (*circle, circle[0]))
            yield LintFinding(
                inspection.condition_pointer(inspection.numbers[circle[0]], moves[0][1]) + "/advance",
                "advance_circle",
                f"{names} lead on to one another by themselves, and all can be open at once",
            )


def _circle(component: Sequence[str], edges: Mapping[str, Sequence[str]]) -> list[str]:
    """A way round in a strongly connected component from its first task on; empty where there is none."""
    first = component[0]
    within = {task_id: [t for t in edges[task_id] if t in component] for task_id in component}
    found = explore(first, within)
    last = next((task_id for task_id in found if first in within[task_id]), None)
    return [] if last is None else path_to(last, found)


def _where(inspection: Inspection, condition: ReadCondition) -> str:
    placed = condition.placed
    if placed.target_id is not None and placed.task_id is not None:
        return f"on the way from {inspection.name(placed.task_id)} to {inspection.name(placed.target_id)}"
    if placed.of == "task" and placed.task_id is not None:
        return f"before {inspection.name(placed.task_id)}"
    return f"of this {placed.of}"


ERROR_RULES: tuple[Rule, ...] = (faults,)
RULES: tuple[Rule, ...] = (never_and_always, contradictions, without_effect, advances, parts_never_true)
