"""Rules about conditions: what cannot be read, names and types, and whether any values let one hold.

What is known when a condition is asked counts too: a task is entered only on its channels, and only when what
it requires has a value.
"""

from flow_engine.documents.findings import quoted
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, ReadCondition, Rule


def faults(inspection: Inspection) -> Findings:
    """Errors: with any of them a condition does not say what it is meant to say."""
    for fault in inspection.condition_faults:
        yield LintFinding(fault.pointer, fault.code, fault.reason)


def never_and_always(inspection: Inspection) -> Findings:
    for condition in inspection.read_conditions:
        what = f"{quoted(condition.placed.when)} {_where(inspection, condition)}"
        if not inspection.can_hold(condition):
            yield LintFinding(condition.placed.pointer, "condition_never_true", f"no values make {what} true")
        elif not inspection.can_fail(condition):
            yield LintFinding(
                condition.placed.pointer, "condition_always_true", f"whatever the values are, {what} is true"
            )


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
    """Conditions of connections that are not there."""
    for number, task in enumerate(inspection.version.tasks):
        for target in task.connection_conditions:
            if target in inspection.tasks and target not in inspection.connections[task.id]:
                yield LintFinding(
                    inspection.condition_pointer(number, target),
                    "value_ignored",
                    f"{inspection.name(task.id)} does not lead to {inspection.name(target)}, so that nothing "
                    "asks for this",
                )


def _where(inspection: Inspection, condition: ReadCondition) -> str:
    placed = condition.placed
    if placed.target_id is not None and placed.task_id is not None:
        return f"on the way from {inspection.name(placed.task_id)} to {inspection.name(placed.target_id)}"
    if placed.of == "task" and placed.task_id is not None:
        return f"before {inspection.name(placed.task_id)}"
    return f"of this {placed.of}"


ERROR_RULES: tuple[Rule, ...] = (faults,)
RULES: tuple[Rule, ...] = (never_and_always, contradictions, without_effect)
