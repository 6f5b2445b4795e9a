"""A designer's document on its way into the store: completed, checked whole, and described (F2, F9)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

import orjson

from flow_engine import documents
from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.linting import lint, lint_errors
from flow_engine.ports.flow_store import VersionEntry
from flow_engine.ports.system_prompts import SystemPrompts
from flow_engine.values import utc_text


@dataclass(frozen=True, slots=True)
class Submission:
    """A document that may be saved: its final bytes, how the flow will list it, what is suspicious."""

    document: bytes
    entry: VersionEntry
    warnings: tuple[Finding, ...]


class Submissions:
    """Checks against what this installation offers and allows. `url_refusal`: see `ReviewEnvironment`.
    Documents are bytes of JSON in UTF-8."""

    def __init__(
        self,
        prompts: SystemPrompts,
        limits: documents.DocumentLimits,
        new_id: Callable[[], str],
        url_refusal: Callable[[str], str | None] = lambda url: None,
    ) -> None:
        versions = prompts.api_versions()
        languages = {language for v in versions for language in prompts.available_languages(v)}
        self._environment = documents.ReviewEnvironment(
            api_versions=frozenset(versions),
            audio_presets=frozenset(prompts.audio_presets()),
            system_prompt_languages=frozenset(languages),
            url_refusal=url_refusal,
        )
        self._limits = limits
        self._new_id = new_id

    def check(
        self,
        body: bytes,
        *,
        flow_id: str,
        created_by: str,
        now: datetime,
        changed: Sequence[Finding] | None = None,
    ) -> Submission:
        """Raises CorrectTheInput with every error at once; nothing is kept of what is refused. `body` are
        bytes of JSON in UTF-8; where it was decoded before, `changed` are the errors of what was
        changed then, else None."""
        raw = documents.parse_json(body, self._limits)
        if not isinstance(raw, dict):
            message = "a version is a JSON object"
            raise CorrectTheInput("document_invalid", message, [Finding("", "wrong_type", message)])
        completed = documents.complete_version(
            cast("Mapping[str, object]", raw),
            version_id=self._new_id(),
            flow_id=flow_id,
            created_at=utc_text(now),
            created_by=created_by,
        )
        changed = documents.changed_by_reading(body) if changed is None else changed
        elsewhere = _elsewhere(completed["conversationalFlowId"], flow_id)
        try:
            version = documents.parse_version(
                completed,
                limits=self._limits,
                environment=self._environment,
                beside=lint_errors,
            )
        except CorrectTheInput as refused:
            if refused.code != "document_invalid":
                raise
            raise documents.refusal("the version", [*changed, *refused.findings, *elsewhere]) from None
        findings = lint(version, self._environment)
        wrong = [finding.as_finding() for finding in findings if finding.severity == "error"]
        if errors := [*changed, *wrong, *elsewhere]:
            raise documents.refusal("the version", errors)
        entry = VersionEntry(
            version_id=version.id or cast("str", completed["_id"]),
            draft=version.draft,
            channels=tuple(version.channels),
            content_hash=documents.content_hash(completed),
            created_by=created_by,
            created_at=now,
        )
        return Submission(orjson.dumps(completed), entry, tuple(f.as_finding() for f in findings))

    def renewed(self, submission: Submission) -> Submission:
        """The same version under a new id, for a document that was read from a saved version and edited.
        Bytes of JSON."""
        document = {**orjson.loads(submission.document), "_id": self._new_id()}
        entry = replace(
            submission.entry,
            version_id=cast("str", document["_id"]),
            content_hash=documents.content_hash(document),
        )
        return replace(submission, document=orjson.dumps(document), entry=entry)


def _elsewhere(named: object, flow_id: str) -> list[Finding]:
    """The error of a version of another flow; what is no text is one of the schema."""
    if not isinstance(named, str) or named == flow_id:
        return []
    message = f"the version is saved under flow {flow_id!r}: leave this out, or name that flow"
    return [Finding("/conversationalFlowId", "flow_mismatch", message)]
