"""Rules about what is rendered. Errors here refuse a save: such a template could never be rendered."""

from __future__ import annotations

from flow_engine.documents.wording import quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import CODES
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection
from flow_engine.templates import lint_template

_VALUES = "$values"


def problems(inspection: Inspection) -> Findings:
    """Errors of all templates first, so that no number of warnings can crowd them out."""
    known = {name for v in inspection.version.variables for name in (v.id, v.name)}
    found = [
        LintFinding(finding.pointer, finding.code, finding.message)
        for placed in inspection.templates
        for findings in lint_template(placed.source, known, placed.pointer)
        for finding in findings
    ]
    return sorted(found, key=lambda finding: CODES[finding.code].severity != "error")


def values_at_entry(inspection: Inspection) -> Findings:
    """`$values` is what was known when the task was entered. Descriptions are left out: they are rendered
    in the task before."""
    with_tools = {task_id for task_id, tools in inspection.exploration.arrivals if tools}
    first = inspection.version.first_task
    by_key = {name: v for v in inspection.version.variables for name in (v.name, v.id)}
    tasks_by_place = {pointer("tasks", n, "prompt"): task for n, task in enumerate(inspection.version.tasks)}
    for placed in inspection.templates:
        task = tasks_by_place.get(placed.pointer)
        if task is None or task.id not in inspection.reachable or task.id in with_tools:
            continue
        never_again = task.id == first and not inspection.offered_by.get(first)
        for use in placed.template.uses:
            variable = by_key.get(use.key)
            if variable is None or not use.label.startswith(_VALUES):
                continue
            if never_again or variable.type == "custom":
                yield LintFinding(
                    placed.pointer,
                    "value_never_known_at_entry",
                    f"line {use.line}: {use.label} is always empty: nothing can have written "
                    f"{quoted(variable.name)} when {inspection.name(task.id)} is entered",
                )


RULES: tuple[Rule, ...] = (problems, values_at_entry)
