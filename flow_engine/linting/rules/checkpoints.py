"""Rules about checkpoints (F39)."""

from __future__ import annotations

from flow_engine.documents.wording import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection


def checkpoints(inspection: Inspection) -> Findings:
    enabled_in: dict[str, list[str]] = {}
    for task in inspection.version.tasks:
        for checkpoint in task.enabled_checkpoints:
            enabled_in.setdefault(checkpoint.id, []).append(task.id)
    for number, checkpoint in enumerate(inspection.version.checkpoints):
        tasks = enabled_in.get(checkpoint.id, [])
        if not tasks:
            yield LintFinding(
                pointer("checkpoints", number),
                "checkpoint_never_enabled",
                f"no task enables checkpoint {quoted(checkpoint.name)}, so that it is never judged",
            )
        elif checkpoint.required and not inspection.reachable.intersection(tasks):
            yield LintFinding(
                pointer("checkpoints", number),
                "required_checkpoint_unreachable",
                f"required checkpoint {quoted(checkpoint.name)} is enabled only in tasks that cannot be "
                f"reached: {listed(inspection.tasks[task_id].effective_name for task_id in tasks)}",
            )


RULES: tuple[Rule, ...] = (checkpoints,)
