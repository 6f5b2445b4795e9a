"""Rules about tasks with a human in them."""

from __future__ import annotations

from flow_engine.documents.wording import quoted
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection


def routing(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        parameters = task.routing_parameters
        if parameters is None or task.type == "AIO":
            continue
        place = pointer("tasks", number, "routingParameters")
        if parameters.timeout <= 0:
            yield LintFinding(
                f"{place}/timeout",
                "routing_timeout_not_positive",
                f"the routing of {inspection.name(task.id)} fails at once: its timeout is "
                f"{parameters.timeout} seconds",
            )
        asked = (*parameters.agent_skills, *parameters.agent_optional_skills, *parameters.agent_ids)
        if task.type == "HUM" and not any(name.strip() for name in asked):
            yield LintFinding(
                place,
                "routing_without_target",
                f"{inspection.name(task.id)} names no skill and no agent: nothing says whom to look for",
            )


def values_ignored(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        for name in ("hideTranscriptionToHuman", "suspendTranscription"):
            value = (task.model_extra or {}).get(name, False)
            if not isinstance(value, bool):
                yield LintFinding(
                    pointer("tasks", number, name),
                    "value_ignored",
                    f"only true and false mean something here, {quoted(value)} counts as false",
                )


RULES: tuple[Rule, ...] = (routing, values_ignored)
