"""Rules about what the end of a contact does to its conversation (F30)."""

from __future__ import annotations

from collections.abc import Iterator

from flow_engine.documents import ClosureConfig
from flow_engine.documents.wording import listed
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection

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


def _closures(inspection: Inspection) -> Iterator[tuple[str, ClosureConfig]]:
    yield "/closureConfig", inspection.version.closure_config
    for number, task in enumerate(inspection.version.tasks):
        yield pointer("tasks", number, "closureConfig"), task.closure_config


RULES: tuple[Rule, ...] = (multi_contact, time_limits)
