"""A designer's document on its way into the store: completed, checked whole, and described (F2, F9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import orjson

from flow_engine.documents import (
    DocumentLimits,
    FlowVersion,
    ReviewEnvironment,
    complete_version,
    content_hash,
    parse_json,
    parse_version,
    review_version,
)
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.ports import SystemPrompts, VersionEntry
from flow_engine.templates import lint_template
from flow_engine.values import utc_text


@dataclass(frozen=True, slots=True)
class Submission:
    """A document that may be saved: its final bytes, how the flow will list it, what is suspicious."""

    document: bytes
    entry: VersionEntry
    warnings: tuple[Finding, ...]


class Submissions:
    """Checks against what this installation offers and allows."""

    def __init__(self, prompts: SystemPrompts, limits: DocumentLimits, new_id: Callable[[], str]) -> None:
        versions = prompts.api_versions()
        languages = {language for v in versions for language in prompts.available_languages(v)}
        self._environment = ReviewEnvironment(
            api_versions=frozenset(versions),
            audio_presets=frozenset(prompts.audio_presets()),
            system_prompt_languages=frozenset(languages),
        )
        self._limits = limits
        self._new_id = new_id

    def check(self, body: bytes, *, flow_id: str, created_by: str, now: datetime) -> Submission:
        """Raises CorrectTheInput with every error at once; nothing is kept of what is refused."""
        raw = parse_json(body, self._limits)
        if not isinstance(raw, dict):
            message = "a version is a JSON object"
            raise CorrectTheInput("document_invalid", message, [Finding("", "type", message)])
        completed = complete_version(
            cast("Mapping[str, object]", raw),
            version_id=self._new_id(),
            flow_id=flow_id,
            created_at=utc_text(now),
            created_by=created_by,
        )
        version = parse_version(completed, limits=self._limits, environment=self._environment)
        errors, warnings = _linted_templates(version)
        if version.conversational_flow_id != flow_id:
            message = f"the version is saved under flow {flow_id!r}: leave this out, or name that flow"
            errors.append(Finding("/conversationalFlowId", "flow_mismatch", message))
        if errors:
            raise CorrectTheInput("document_invalid", f"the version has {len(errors)} error(s)", errors)
        entry = VersionEntry(
            version_id=version.id or cast("str", completed["_id"]),
            draft=version.draft,
            channels=tuple(version.channels),
            content_hash=content_hash(completed),
            created_by=cast("str", completed["createdBy"]),
            created_at=now,
        )
        warnings += review_version(version, environment=self._environment)
        return Submission(orjson.dumps(completed), entry, tuple(warnings))


def _linted_templates(version: FlowVersion) -> tuple[list[Finding], list[Finding]]:
    known = {name for variable in version.variables for name in (variable.id, variable.name)}
    errors: list[Finding] = []
    warnings: list[Finding] = []
    for where, source in _templates(version):
        bad, suspicious = lint_template(source, known, where)
        errors += bad
        warnings += suspicious
    return errors, warnings


def _templates(version: FlowVersion) -> Iterator[tuple[str, str]]:
    yield "/globalPrompt", version.global_prompt
    for number, task in enumerate(version.tasks):
        yield pointer("tasks", number, "prompt"), task.prompt
        yield pointer("tasks", number, "description"), task.description
