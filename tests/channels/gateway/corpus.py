"""Requests and answers of OpenAI's protocol, each with fields that a careless relay loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.channels.gateway.gateway_world import chunk, completion

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {}}},
        "strict": True,
    },
}
CALL: Mapping[str, Any] = {
    "id": "call_Ünïq",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome",  "n": 1.0}'},
}
SCHEMA: Mapping[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
}
LOGPROBS: Mapping[str, Any] = {
    "content": [{"token": "Hi", "logprob": -1e-12, "bytes": [72, 105], "top_logprobs": []}],
    "refusal": None,
}

REQUESTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"temperature": 1},
    {"temperature": 0.30000000000000004},
    {"top_p": 1.0, "seed": 12345678901234567890},
    {"n": 3},
    {"max_tokens": 5, "stop": ["\n", "END"]},
    {"max_completion_tokens": 5, "stop": None},
    {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    {"tools": [TOOL], "tool_choice": "required"},
    {"functions": [{"name": "old", "parameters": {}}], "function_call": "auto"},
    {"response_format": SCHEMA},
    {"response_format": {"type": "json_object"}},
    {"logprobs": True, "top_logprobs": 5, "logit_bias": {"50256": -100}},
    {"user": "u\u0000\u2028x", "metadata": {"a": "b"}, "store": False},
    {"reasoning_effort": "high", "verbosity": "low"},
    {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    {"prediction": {"type": "content", "content": "x"}, "service_tier": "flex"},
    {"top_k": 40, "min_p": 0.05, "chat_template_kwargs": {"enable_thinking": False}, "guided_json": {}},
    {"x_unknown": [None, True, {"deep": [[[]]]}], "": "an empty name"},
    {
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "è"}], "name": "ann"},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}],
            },
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}],
            },
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "w"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "call_Ünïq", "content": '{"t": 20}'},
            {"role": "assistant", "refusal": "No.", "content": None, "unknown": 1},
        ]
    },
)

ANSWERS: tuple[Mapping[str, Any], ...] = (
    completion(),
    completion(""),
    completion('a\u0000b\u2028c\U0001f600 \\ "'),
    completion("cut", "length"),
    completion("no", "content_filter"),
    {**completion(None, "tool_calls", tool_calls=[CALL, {**CALL, "id": "2", "index": 7}])},  # type: ignore[arg-type]
    completion("x", reasoning_content="because", reasoning=None),
    completion("x", refusal="I cannot"),
    completion("x", annotations=[{"type": "url_citation", "url_citation": {"url": "u", "start_index": 0}}]),
    completion("x", audio={"id": "a", "data": "AA==", "expires_at": 1, "transcript": "x"}),
    {**completion(), "choices": [{**completion()["choices"][0], "logprobs": LOGPROBS, "stop_reason": None}]},
    {**completion(), "choices": [{**completion()["choices"][0], "index": index} for index in range(3)]},
    {**completion(), "system_fingerprint": "fp", "service_tier": "default", "prompt_logprobs": None},
    {**completion(), "usage": {**completion()["usage"], "prompt_tokens_details": {"cached_tokens": 1}}},
    {**completion(), "usage": None, "x_vendor": {"cost": 1e-7, "big": 12345678901234567890}},
    {**completion(), "choices": [], "moderation": {"flagged": False}},
)

DELTAS: tuple[tuple[Mapping[str, Any], ...], ...] = (
    (chunk({"role": "assistant", "content": "Hi"}), chunk({}, "stop")),
    (chunk({"content": None, "refusal": "No"}), chunk({}, "stop")),
    (chunk({"reasoning_content": "Hm"}), chunk({"reasoning": "x"}), chunk({"content": "!"}, "stop")),
    (
        chunk({"tool_calls": [{"index": 0, **CALL}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": '{"a'}}]}),
        chunk({}, "tool_calls"),
    ),
    (
        {
            **chunk({"content": "x"}),
            "choices": [{"index": 2, "delta": {"content": "x"}, "logprobs": LOGPROBS}],
        },
    ),
    ({**chunk({}), "choices": [], "prompt_filter_results": []}, chunk({"content": ""}, "length")),
    ({**chunk({"content": "x"}, "stop"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}},),
    ({**chunk({"content": "\u2028\u0000"}), "system_fingerprint": None, "obfuscation": "xyz"},),
    (
        {**chunk({"content": "a"}), "usage": None, "service_tier": "auto"},
        chunk({"function_call": {"name": "f"}}),
    ),
)


def pairs() -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | tuple[Mapping[str, Any], ...]]]:
    """Every request with a few answers, plain and streamed, so that each answer is met by some request."""
    for number, request in enumerate(REQUESTS):
        for step in range(4):
            yield request, ANSWERS[(number + step * 5) % len(ANSWERS)]
        for step in range(3):
            yield {**request, "stream": True}, DELTAS[(number + step * 4) % len(DELTAS)]
