"""Reading what models write: objects out of texts, tool calls, and the answer as a whole."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import orjson

from flow_engine.ports.models import LLMAnswer, LLMRequest, Message, ModelFailed, ToolCall
from flow_engine.values import JsonValue

CHARACTERS_PER_TOKEN: Final = 4
"""The usual average of English text: for estimates where a server tells no usage."""

LONGEST_PER_TOKEN: Final = 16
"""No tokenizer's tokens are longer on average: an answer beyond this ignores its token limit."""

_BROKEN_ENDS: Final = frozenset(("error", "abort", "insufficient_system_resource"))
"""What servers say of an answer that they did not bring to an end: gateways and Google, vLLM, DeepSeek."""

_FENCED: Final = re.compile(r"```[a-z]*[^\S\n]*\n(.*)```", re.DOTALL)


def longest_answer(max_tokens: int) -> int:
    """In characters: where an answer is cut whatever the server counts."""
    return max_tokens * LONGEST_PER_TOKEN


def estimated_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def check_end(reason: object) -> None:
    """Of a `finish_reason`. Raises ModelFailed where what came is no answer."""
    if reason == "content_filter":
        raise ModelFailed("refused", "the provider's content filter withheld the answer")
    if reason in _BROKEN_ENDS:
        raise ModelFailed("unreachable", f"the server ended the answer with {reason!r}")


def finished_answer(
    request: LLMRequest,
    text: str,
    calls: Sequence[ToolCall] = (),
    *,
    model: str,
    input_tokens: int,
    output_tokens: int,
    cut: bool = False,
) -> LLMAnswer:
    """What ends a stream; `text` is kept up to 16 characters for each of the request's `max_tokens`. `cut`
    says that the text or the calls stop at a limit. Raises ModelFailed `unusable_answer`: no JSON object
    where a schema was set, a cut tool call, or nothing at all where no tool was offered."""
    if cut and calls:
        raise ModelFailed("unusable_answer", "the answer was cut within a tool call")
    # A character's two halves may come as escapes of their own, and one of them alone.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = text[: longest_answer(request.max_tokens)].strip()
    if not (text or calls or request.tools):
        raise ModelFailed("unusable_answer", "the answer is empty")
    return LLMAnswer(
        Message("assistant", text, tool_calls=tuple(calls)),
        model,
        input_tokens,
        output_tokens,
        data=None if request.output_schema is None else decoded_object(text),
        finish_reason="length" if cut else "tool_calls" if calls else "stop",
    )


def decoded_object(text: str) -> dict[str, JsonValue]:
    """The JSON object in an answer, bare or in a code fence.

    Raises ModelFailed `unusable_answer`; the text itself is not quoted, it may hold personal data.
    """
    fenced = _FENCED.search(text)
    try:
        value = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        raise ModelFailed(
            "unusable_answer", f"no JSON in an answer of {len(text)} characters: truncated or free text"
        ) from None
    if not isinstance(value, dict):
        raise ModelFailed("unusable_answer", f"expected an object, the answer is a {type(value).__name__}")
    return cast("dict[str, JsonValue]", value)


def with_tool_names(messages: Sequence[Message]) -> Iterator[tuple[Message, str]]:
    """Each message, a tool's with the name of its tool, from the last call of that id before it: the ids
    begin anew with each answer. Else an empty one."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        yield message, names.get(message.tool_call_id or "", "")


def tool_arguments(written: object) -> Mapping[str, JsonValue]:
    """A JSON object, as text or read; `{}` for whatever is none, or nested too deeply to be written again, so
    that invalid arguments are checked against the schema like any (M9)."""
    try:
        if isinstance(written, str):
            written = orjson.loads(written)
        orjson.dumps(written)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return {}
    return cast("Mapping[str, JsonValue]", written) if isinstance(written, dict) else {}
