"""From raw JSON to typed documents, and from what pydantic says to findings (F2).

A rejection lists every error at once: those of the schema and, as far as a broken document can be
read, those of its references (`checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flow_engine.documents.checks import ReviewEnvironment, check_outline
from flow_engine.documents.media import AudioMediaConfigPreset
from flow_engine.documents.model import Flow, FlowVersion
from flow_engine.documents.outline import outline_of
from flow_engine.documents.shape import DocumentLimits, check_shape
from flow_engine.documents.values import Document, ErrorBudget, property_name
from flow_engine.documents.wording import json_type, quoted
from flow_engine.errors import CorrectTheInput, Finding, pointer

MAX_FINDINGS = 1000
"""Findings in one refusal: a hostile document of a megabyte could otherwise cause half a million."""

D = TypeVar("D", bound=Document)


def parse_version(
    raw: object,
    *,
    limits: DocumentLimits | None = None,
    environment: ReviewEnvironment | None = None,
) -> FlowVersion:
    """A version that is complete and sound, or a sound draft.

    With an `environment` the presets and API versions that it lacks are refused too, in the same list.
    Raises CorrectTheInput: `document_invalid` with all findings, or what `check_shape` raises.
    """
    limits = limits or DocumentLimits()
    check_shape(raw, limits)
    version, findings = _validate(FlowVersion, raw)
    references = check_outline(outline_of(raw), limits=limits, environment=environment)
    findings += islice(references, MAX_FINDINGS)
    if version is None or findings:
        raise _refusal("the version", findings)
    return version


def parse_flow(raw: object) -> Flow:
    """A flow without its versions. Raises CorrectTheInput `document_invalid` with all findings."""
    return _parse(Flow, raw, "the flow")


def parse_audio_preset(raw: object) -> AudioMediaConfigPreset:
    """An audio preset of the platform. Raises CorrectTheInput `document_invalid` with all findings."""
    return _parse(AudioMediaConfigPreset, raw, "the audio preset")


def complete_version(
    raw: Mapping[str, object], *, version_id: str, flow_id: str, created_at: str, created_by: str
) -> dict[str, object]:
    """The document with what the server sets filled in where it is absent; `null` is not absent."""
    set_by_server = {
        "_id": version_id,
        "conversationalFlowId": flow_id,
        "createdAt": created_at,
        "createdBy": created_by,
    }
    return {**raw, **{name: value for name, value in set_by_server.items() if name not in raw}}


def _parse(model: type[D], raw: object, what: str) -> D:
    check_shape(raw)
    document, findings = _validate(model, raw)
    if document is None:
        raise _refusal(what, findings)
    return document


def _validate(model: type[D], raw: object) -> tuple[D | None, list[Finding]]:
    try:
        return model.model_validate(raw, context=ErrorBudget(MAX_FINDINGS)), []
    except ValidationError as error:
        allowed = [property_name(name) for name in model.model_fields]
        errors = islice(error.errors(include_url=False), MAX_FINDINGS)
        return None, [_finding(details, allowed) for details in errors]


def _refusal(what: str, findings: list[Finding]) -> CorrectTheInput:
    count = "1 error" if len(findings) == 1 else f"{len(findings)} errors"
    if len(findings) >= MAX_FINDINGS:
        count = f"{MAX_FINDINGS} errors or more"
        rest = Finding("", "more_findings", f"only the first {MAX_FINDINGS} findings are listed")
        findings = [*findings[:MAX_FINDINGS], rest]
    return CorrectTheInput("document_invalid", f"{what} has {count}", findings)


# --- one error of pydantic as a finding -------------------------------------------------------

_EXPECTED_TYPES = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "tuple_type": "an array",
    "model_type": "an object",
}


def _finding(details: ErrorDetails, allowed_at_top: Iterable[str]) -> Finding:
    """`allowed_at_top`: the document's own properties, since only a document itself is closed."""
    kind = details["type"]
    given = cast("object", details["input"])
    context = details.get("ctx", {})
    place = pointer(*details["loc"])
    if kind == "missing":
        return Finding(place, "missing_property", f"{details['loc'][-1]!r} is required here")
    if kind == "required_here":
        place = pointer(*details["loc"][:-1], context["property"])
        return Finding(place, "missing_property", f"{context['property']!r} {details['msg']}")
    if kind in _EXPECTED_TYPES:
        return Finding(place, "wrong_type", f"must be {_EXPECTED_TYPES[kind]}, not {json_type(given)}")
    if kind == "literal_error":
        return Finding(place, "not_allowed", f"must be {context['expected']}, not {quoted(given)}")
    if kind == "extra_forbidden":
        names = ", ".join(repr(name) for name in allowed_at_top)
        return Finding(place, "unknown_property", f"is not a property of this document, which are {names}")
    if kind == "wrong_type":
        return Finding(place, kind, details["msg"])
    return Finding(place, kind, f"{details['msg']}, not {quoted(given)}")
