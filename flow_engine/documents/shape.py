"""What is asked of a document before its content is looked at: size, depth, and being JSON at all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, cast

import orjson

from flow_engine.errors import CorrectTheInput, Finding

# What is not JSON by itself is refused instead of turned into something that is.
_PLAIN_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Bounds of a document (F9): bytes of JSON, levels of nested objects and arrays, tasks."""

    max_bytes: int = 1_000_000
    max_depth: int = 100
    max_tasks: int = 300


def parse_json(body: bytes, limits: DocumentLimits | None = None) -> object:
    """Decode a JSON text in UTF-8. A property given twice counts with its last value.

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
        raise _invalid_json(f"the text is not JSON: {error}") from None
    _check_depth(raw, limits)
    return raw


def check_shape(raw: object, limits: DocumentLimits | None = None) -> None:
    """Refuse a decoded document that is too deep, too large as compact JSON, or not JSON at all.

    Never recurses, whatever the nesting. Raises CorrectTheInput as `parse_json` does.
    """
    limits = limits or DocumentLimits()
    _check_depth(raw, limits)
    try:
        size = len(orjson.dumps(raw, option=_PLAIN_JSON))
    except orjson.JSONEncodeError as error:
        raise _invalid_json(f"the document is not JSON: {error}") from None
    _check_size(size, limits)


def content_hash(raw: object) -> str:
    """SHA-256 in hex of the document's canonical JSON: keys sorted, no white space."""
    return hashlib.sha256(orjson.dumps(raw, option=_PLAIN_JSON | orjson.OPT_SORT_KEYS)).hexdigest()


def _check_size(size: int, limits: DocumentLimits) -> None:
    if size > limits.max_bytes:
        raise _refusal("too_large", f"the document has {size} bytes, at most {limits.max_bytes} are accepted")


def _check_depth(raw: object, limits: DocumentLimits) -> None:
    level: list[Any] = [raw] if isinstance(raw, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > limits.max_depth:
            raise _too_deep(limits)
        level = [inner for outer in level for inner in _members(outer) if isinstance(inner, dict | list)]


def _members(container: Any) -> Any:
    return cast("dict[object, object]", container).values() if isinstance(container, dict) else container


def _too_deep(limits: DocumentLimits) -> CorrectTheInput:
    return _refusal(
        "too_deep", f"objects and arrays may be nested {limits.max_depth} levels deep, not deeper"
    )


def _invalid_json(detail: str) -> CorrectTheInput:
    return _refusal("json_invalid", detail)


def _refusal(code: str, detail: str) -> CorrectTheInput:
    return CorrectTheInput(code, detail, [Finding("", code, detail)])
