"""Reading what models write: objects out of texts, and arguments of tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

import orjson

from flow_engine.ports.models import ModelFailed
from flow_engine.values import JsonValue

CHARACTERS_PER_TOKEN: Final = 4
"""The usual average of English text: for estimates where a server tells no usage."""

LONGEST_PER_TOKEN: Final = 16
"""No tokenizer's tokens are longer on average: an answer beyond this ignores its token limit."""

_FENCED: Final = re.compile(r"```[a-z]*\s*\n(.*)```", re.DOTALL)


def longest_answer(max_tokens: int) -> int:
    """In characters: where an answer is cut whatever the server counts."""
    return max_tokens * LONGEST_PER_TOKEN


def decoded_object(text: str) -> Mapping[str, JsonValue]:
    """The JSON object in an answer, bare or in a code fence.

    Raises ModelFailed `unusable_answer`; the text itself is not told, it may hold personal data.
    """
    fenced = _FENCED.search(text)
    try:
        value = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        raise ModelFailed(
            "unusable_answer", f"no JSON in an answer of {len(text)} characters: truncated or free text"
        ) from None
    if not isinstance(value, dict):
        raise ModelFailed(
            "unusable_answer", f"an object was asked for, the answer is a {type(value).__name__}"
        )
    return cast("Mapping[str, JsonValue]", value)


def tool_arguments(given: object) -> Mapping[str, JsonValue]:
    """Arguments as an object; `{}` for whatever is none, to be checked against the schema like any (M9)."""
    if isinstance(given, str):
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError:
            return {}
    return cast("Mapping[str, JsonValue]", given) if isinstance(given, dict) else {}
