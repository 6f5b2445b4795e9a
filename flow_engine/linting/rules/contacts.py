"""Rules about tasks with a human in them, and about what the end of a contact does (F30)."""

from __future__ import annotations

from collections.abc import Iterator

from flow_engine.documents import ClosureConfig
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule
from flow_engine.task_types import TASK_KINDS

# --- humans -------------------------------------------------------------------------------------


def routing(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        parameters = task.routing_parameters
        if parameters is None or not TASK_KINDS[task.type].routed:
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
        if TASK_KINDS[task.type].transfers and not any(name.strip() for name in asked):
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


# --- ends of contacts ---------------------------------------------------------------------------


SHORTEST_S = 600
"""A shorter limit was rather meant in minutes or hours: no second contact follows within seconds."""


def multi_contact(inspection: Inspection) -> Findings:
    version = inspection.version
    keeping = [task.effective_name for task in version.tasks if task.closure_config.multi_contact]
    if version.closure_config.multi_contact and not keeping:
        yield LintFinding(
            "/closureConfig/multiContact",
            "multi_contact_never_applies",
            "the version spans several contacts, but every one of its tasks closes the conversation with "
            "the contact, and the task decides",
        )
    elif not version.closure_config.multi_contact and keeping:
        yield LintFinding(
            "/closureConfig/multiContact",
            "multi_contact_unexpected",
            f"the version closes a conversation with its contact, but these tasks keep it: {listed(keeping)}",
        )


def time_limits(inspection: Inspection) -> Findings:
    for place, closure in _closures(inspection):
        limit = closure.conversation_time_limit
        if closure.multi_contact and limit is not None and limit < SHORTEST_S:
            yield LintFinding(
                f"{place}/conversationTimeLimit",
                "short_time_limit",
                f"a conversation ends after {limit} seconds, hardly time for another contact",
            )


def forbidden_handlers(inspection: Inspection) -> Findings:
    for place, closure in _closures(inspection):
        url = closure.custom_handler
        refusal = None if url is None else inspection.environment.url_refusal(url)
        if refusal is not None:
            yield LintFinding(
                f"{place}/customHandler",
                "custom_handler_forbidden",
                f"the engine may not call it: {refusal}",
            )


def _closures(inspection: Inspection) -> Iterator[tuple[str, ClosureConfig]]:
    yield "/closureConfig", inspection.version.closure_config
    for number, task in enumerate(inspection.version.tasks):
        yield pointer("tasks", number, "closureConfig"), task.closure_config


RULES: tuple[Rule, ...] = (
    routing,
    values_ignored,
    multi_contact,
    time_limits,
    forbidden_handlers,
)
