"""From raw JSON to typed documents, and from what pydantic says to findings (F2).

A rejection lists every error at once: those of the schema and, as far as a broken document can be
read, those of its references (`checks.py`) and of its texts, which the linter knows.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import orjson
from pydantic import ValidationError

from flow_engine.documents.base import Document, ErrorBudget
from flow_engine.documents.checks import DocumentLimits, ReviewEnvironment, check_version
from flow_engine.documents.findings import Place, findings_of
from flow_engine.documents.model import FlowVersion
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.exact_numbers import may_exceed_64_bits
from flow_engine.json_values import as_object
from flow_engine.values import GREATEST_INT, LEAST_INT

SET_BY_SERVER = frozenset(("_id", "conversationalFlowId", "createdAt", "createdBy"))
"""Of a version, see `complete_version`."""

MAX_FINDINGS = 1000
"""Findings in one refusal: a hostile document of a megabyte could otherwise cause half a million."""
_MOST_OF_POINTERS = 1_000_000
"""Characters: a long name stands in the pointers of all that is below it."""

# What is not JSON by itself is refused instead of turned into something that is.
_PLAIN_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)

_CONTAINERS = (dict, list)

_YAML = re.compile(rb"\s*(?:---\s|#|- |\w+:\s)")

D = TypeVar("D", bound=Document)


def parse_version(
    raw: object,
    *,
    limits: DocumentLimits | None = None,
    environment: ReviewEnvironment | None = None,
    beside: Callable[[object], Iterable[Finding]] = lambda raw: (),
) -> FlowVersion:
    """A version that is complete and sound, or a sound draft.

    With an `environment` the version is about to be saved: what the platform lacks and what could not be used
    is refused too, in the same list, and so is what `beside` finds in one that is refused, where the schema
    has said nothing. Raises CorrectTheInput: `document_invalid` with all findings, or what `check_shape`
    raises. `raw` is decoded JSON.
    """
    limits = limits or DocumentLimits()
    check_shape(raw, limits)
    version, findings = _validate(FlowVersion, raw)
    told = {finding.pointer for finding in findings}
    # What could not be listed is not looked for.
    remaining = MAX_FINDINGS - len(findings)
    if remaining > 0:
        findings += islice(check_version(raw, limits=limits, environment=environment), remaining)
    remaining = MAX_FINDINGS - len(findings)
    if findings and remaining > 0:
        findings += islice((each for each in beside(raw) if each.pointer not in told), remaining)
    if version is None or findings:
        raise refusal("the version", findings)
    return version


def parse_document(model: type[D], raw: object, what: str) -> D:
    """A document of another kind than a version; `what` names it in the refusal.

    Raises CorrectTheInput: `document_invalid` with all findings, or what `check_shape` raises. `raw` is
    decoded JSON.
    """
    check_shape(raw)
    document, findings = _validate(model, raw)
    if document is None:
        raise refusal(what, findings)
    return document


def complete_version(
    raw: Mapping[str, object], *, version_id: str, flow_id: str, created_at: str, created_by: str
) -> dict[str, object]:
    """The document with what the server sets.

    Author and date are the save's own, whatever the document says, so that a version which was read can be
    edited and saved. `_id` and `conversationalFlowId` are filled in where they are absent; `null` is not
    absent. `created_at` is an RFC 3339 text in UTC.
    """
    absent = {"_id": version_id, "conversationalFlowId": flow_id}
    return {**absent, **raw, "createdAt": created_at, "createdBy": created_by}


def _validate(model: type[D], raw: object) -> tuple[D | None, list[Finding]]:
    try:
        return model.model_validate(raw, context=ErrorBudget(MAX_FINDINGS)), []
    except ValidationError as error:
        return None, list(findings_of(error, model, raw, most=MAX_FINDINGS))


def refusal(what: str, findings: list[Finding]) -> CorrectTheInput:
    """Of a document with errors: the first 1,000 of them. `what` names it."""
    count = "1 error" if len(findings) == 1 else f"{len(findings)} errors"
    if len(findings) >= MAX_FINDINGS:
        count = f"{MAX_FINDINGS} errors or more"
        rest = Finding("", "more_findings", f"only the first {MAX_FINDINGS} findings are listed")
        findings = [*findings[:MAX_FINDINGS], rest]
    return CorrectTheInput("document_invalid", f"{what} has {count}", findings)


# --- before the content is looked at: JSON, size, depth ---------------------------------------


def parse_json(body: bytes, limits: DocumentLimits | None = None) -> object:
    """Decode a JSON text in UTF-8. A property given twice counts with its last value: `changed_by_reading`
    tells of it.

    Raises CorrectTheInput with code `too_large`, `too_deep` or `json_invalid`; `NaN`, `Infinity` and
    numbers beyond the range of a double are not JSON here.
    """
    limits = limits or DocumentLimits()
    _check_size(len(body), limits)
    try:
        raw: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The decoder has a depth limit of its own, far above any that is useful for a document.
        if "depth limit" in error.msg or "ecursion" in error.msg:
            raise _too_deep(limits) from None
        hint = "; this looks like YAML: a flow document is JSON" if _YAML.match(body) else ""
        raise CorrectTheInput.breach(
            "json_invalid", f"the text is not JSON: {_cause(body, error)}{hint}"
        ) from None
    _check_depth(raw, limits)
    return raw


def _cause(body: bytes, error: orjson.JSONDecodeError) -> str:
    """The decoder's own reason, but for another encoding, of which it names no place."""
    try:
        body.decode()
    except UnicodeDecodeError as other:
        line = body.count(b"\n", 0, other.start) + 1
        return f"accepted is UTF-8, and byte {other.start}, in line {line}, is none"
    return str(error)


def changed_by_reading(body: bytes) -> list[Finding]:
    """An error for each part of a JSON text that `parse_json` accepts and no reader would give back: JSON
    readers keep the last of two properties of one name, and make a float of an integer that 64 bits cannot
    hold."""
    repeats: list[_Repeating] = []

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        repeats.append(_Repeating(found))
        repeats[-1].repeated = [
            name for name, times in Counter(name for name, _ in pairs).items() if times > 1
        ]
        return repeats[-1]

    findings: list[Finding] = []
    try:
        root = json.loads(body, parse_int=_Integer, parse_float=str, object_pairs_hook=members)
        found = _changed(root, ()) if repeats or may_exceed_64_bits(body) else ()
        for place, code, message in islice(found, MAX_FINDINGS):
            findings.append(Finding(pointer(*place), code, message))
            if len(findings) * len(findings[-1].pointer) > _MOST_OF_POINTERS:
                break
    except RecursionError:  # it is refused for its depth
        return []
    return findings


def _changed(value: object, place: Place) -> Iterator[tuple[Place, str, str]]:
    """What `changed_by_reading` tells, with the way to it."""
    if isinstance(value, _Integer) and not value.is_kept():
        told = f"integers from {LEAST_INT} to {GREATEST_INT} are kept exactly; write it as a string"
        yield place, "integer_too_large", told
    if isinstance(value, _Repeating):
        told = "given twice; accepted is one property of a name"
        yield from (((*place, name), "duplicate_key", told) for name in value.repeated)
    inside = enumerate(cast("list[object]", value)) if isinstance(value, list) else as_object(value).items()
    for part, inner in inside:
        if isinstance(inner, _Integer | dict | list):
            yield from _changed(cast("object", inner), (*place, part))


class _Repeating(dict[str, object]):
    """A JSON object with the names of properties that it has more than once."""

    repeated: Sequence[str] = ()


class _Integer(str):
    """The digits of an integer in a JSON text, which `int` need not be able to read."""

    def is_kept(self) -> bool:
        return len(self) <= len(str(LEAST_INT)) and LEAST_INT <= int(self) <= GREATEST_INT


def check_shape(raw: object, limits: DocumentLimits | None = None) -> None:
    """Refuse a decoded document that is too deep, too large as compact JSON, or not JSON at all.

    Never recurses, whatever the nesting. Raises CorrectTheInput as `parse_json` does.
    """
    limits = limits or DocumentLimits()
    _check_depth(raw, limits)
    try:
        size = len(orjson.dumps(raw, option=_PLAIN_JSON))
    except orjson.JSONEncodeError as error:
        raise CorrectTheInput.breach("json_invalid", f"the document is not JSON: {error}") from None
    _check_size(size, limits)


def content_hash(raw: object) -> str:
    """SHA-256 in hex of the document's canonical JSON: keys sorted, no white space."""
    return hashlib.sha256(orjson.dumps(raw, option=_PLAIN_JSON | orjson.OPT_SORT_KEYS)).hexdigest()


def _check_size(size: int, limits: DocumentLimits) -> None:
    if size > limits.max_bytes:
        raise CorrectTheInput.breach(
            "too_large", f"the document has {size} bytes, at most {limits.max_bytes} are accepted"
        )


def _check_depth(raw: object, limits: DocumentLimits) -> None:
    level: list[Any] = [raw] if isinstance(raw, _CONTAINERS) else []
    depth = 0
    while level:
        depth += 1
        if depth > limits.max_depth:
            raise _too_deep(limits)
        level = [
            inner
            for outer in level
            for inner in cast("list[Any]", outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]


def _too_deep(limits: DocumentLimits) -> CorrectTheInput:
    return CorrectTheInput.breach(
        "too_deep", f"objects and arrays may be nested {limits.max_depth} levels deep, not deeper"
    )
