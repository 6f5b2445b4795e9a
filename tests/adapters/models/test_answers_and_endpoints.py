"""What a model's words are read as, and where each provider is asked (M8, M9, W5)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.answers import (
    decoded_object,
    estimated_tokens,
    finished_answer,
    longest_answer,
    tool_arguments,
    with_tool_names,
)
from adapters.models.providers import Endpoint, configured_name, endpoint_of, model_names
from flow_engine.ports.models import LLMAnswer, LLMRequest, Message, ModelFailed, ToolCall, ToolSpec

TOOL = ToolSpec("search", "Searches", {"type": "object"})
CALL = ToolCall("c1", "search", {"query": "aspirin"})
SCHEMA = {"type": "object"}


def request(**changes: Any) -> LLMRequest:
    return LLMRequest((Message("user", "hi"),), **changes)


def finished(asked: LLMRequest, text: str, *calls: ToolCall, cut: bool = False) -> LLMAnswer:
    return finished_answer(asked, text, calls, model="m", input_tokens=3, output_tokens=2, cut=cut)


class TestWholeAnswers:
    def test_a_text_is_told_with_what_it_cost(self) -> None:
        assert finished(request(), " Hello. \n") == LLMAnswer(
            Message("assistant", "Hello."), "m", 3, 2, data=None, finish_reason="stop"
        )

    @pytest.mark.parametrize(
        ("written", "text"),
        [
            ("well \ud83d\ude00", "well \N{GRINNING FACE}"),
            ("cut \ud83d", "cut \ufffd"),
            ("\ufeffé😀", "\ufeffé😀"),
        ],
    )
    def test_halves_of_a_character_are_joined_or_replaced(self, written: str, text: str) -> None:  # F37
        assert finished(request(), written).text == text

    @pytest.mark.parametrize(
        ("calls", "cut", "reason"),
        [((), False, "stop"), ((), True, "length"), ((CALL,), False, "tool_calls")],
    )
    def test_it_says_why_it_ended(self, calls: tuple[ToolCall, ...], cut: bool, reason: str) -> None:
        answer = finished(request(tools=(TOOL,)), "x", *calls, cut=cut)
        assert (answer.finish_reason, answer.message.tool_calls) == (reason, calls)  # M6, W5

    @pytest.mark.parametrize(
        ("asked", "text", "calls", "cut", "detail"),
        [
            (request(), "", (), False, "the answer is empty"),
            (request(), " \n", (), False, "the answer is empty"),
            (request(tools=(TOOL,)), "x", (CALL,), True, "the answer was cut within a tool call"),
            (
                request(output_schema=SCHEMA),
                "no object",
                (),
                False,
                "no JSON in an answer of 9 characters: truncated or free text",
            ),
            (
                request(output_schema=SCHEMA),
                "[1]",
                (),
                False,
                "expected an object, the answer is a list",
            ),
        ],
        ids=["empty", "blank", "cut-call", "free-text", "a-list"],
    )
    def test_what_cannot_be_used_is_a_failure_that_quotes_nothing(
        self, asked: LLMRequest, text: str, calls: tuple[ToolCall, ...], cut: bool, detail: str
    ) -> None:
        with pytest.raises(ModelFailed) as raised:
            finished(asked, text, *calls, cut=cut)
        assert str(raised.value) == f"unusable_answer: {detail}"  # M9, F46

    def test_nothing_at_all_is_an_answer_where_tools_were_offered(self) -> None:
        assert finished(request(tools=(TOOL,)), "").message.content == ""  # M6

    @pytest.mark.parametrize("length", [159, 160, 161, 5000])
    def test_one_that_ignores_its_limit_is_cut(self, length: int) -> None:
        answer = finished(request(max_tokens=10), "x" * length)
        assert len(str(answer.message.content)) == min(length, longest_answer(10))

    @pytest.mark.parametrize(("characters", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (400, 100)])
    def test_tokens_are_estimated_upwards(self, characters: int, tokens: int) -> None:
        assert estimated_tokens(characters) == tokens


def test_a_tool_s_message_has_the_name_of_the_call_before_it_where_ids_repeat() -> None:  # M8
    calls = [Message("assistant", "", tool_calls=(ToolCall("call-1", name, {}),)) for name in "ab"]
    result = Message("tool", "1", tool_call_id="call-1")
    named = with_tool_names([calls[0], result, calls[1], result, Message("tool", "1", tool_call_id="x")])
    assert [name for message, name in named if message.role == "tool"] == ["a", "b", ""]


class TestObjects:
    @pytest.mark.parametrize(
        "text",
        [
            '{"a": 1}',
            ' {"a": 1} ',
            '```json\n{"a": 1}\n```',
            '```\n{"a": 1}\n```',
            'Here it is:\n```json\n{"a": 1}\n```\nAnything else?',
        ],
    )
    def test_one_is_read_bare_or_in_a_fence(self, text: str) -> None:
        assert decoded_object(text) == {"a": 1}  # F37

    @pytest.mark.parametrize("text", ["", "a", '{"a": 1', '{"a": 1} x', "null", "7", '"{}"', "```\n[]\n```"])
    def test_anything_else_is_a_failure(self, text: str) -> None:
        with pytest.raises(ModelFailed) as raised:
            decoded_object(text)
        assert raised.value.reason == "unusable_answer"

    def test_a_fence_that_nothing_closes_is_soon_read(self) -> None:  # F37
        began = time.process_time()
        with pytest.raises(ModelFailed):
            decoded_object("```json" + "\n" * 60_000 + "x")
        assert time.process_time() - began < 2

    @settings(max_examples=30)
    @given(st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=4))
    def test_every_object_is_read_back(self, value: dict[str, Any]) -> None:
        text = orjson.dumps(value).decode()
        if "```" not in text:
            assert decoded_object(text) == decoded_object(f"```json\n{text}\n```") == value

    @pytest.mark.parametrize(
        ("written", "arguments"),
        [
            ('{"query": "x"}', {"query": "x"}),
            ({"query": "x"}, {"query": "x"}),
            ("", {}),
            ("{", {}),
            ("[1]", {}),
            ("null", {}),
            (None, {}),
            ([1], {}),
            (7, {}),
            ('{"query": ' + "[" * 300 + "]" * 300 + "}", {}),
        ],
    )
    def test_arguments_that_do_not_parse_are_none(self, written: object, arguments: dict[str, Any]) -> None:
        assert tool_arguments(written) == arguments  # M9: checked against the schema like any others


class TestEndpoints:
    @pytest.mark.parametrize(
        ("provider", "environ", "url", "key"),
        [
            ("openai", {"OPENAI_API_KEY": "k"}, "https://api.openai.com/v1", "k"),
            ("openai", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1", None),
            (
                "openai",
                {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"},
                "http://127.0.0.1:1/v1",
                "k",
            ),
            ("local", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1", None),
            ("vllm", {"VLLM_BASE_URL": "http://v/v1", "OPENAI_API_KEY": "o"}, "http://v/v1", None),
            (
                "vllm",
                {"VLLM_BASE_URL": "http://v/v1", "VLLM_API_KEY": "k", "OPENAI_BASE_URL": "http://o/v1"},
                "http://v/v1",
                "k",
            ),
            (
                "vllm",
                {"OPENAI_BASE_URL": "http://o/v1", "OPENAI_API_KEY": "o", "VLLM_API_KEY": "v"},
                "http://o/v1",
                "o",
            ),
            ("ollama", {}, "http://127.0.0.1:11434/v1", None),
            ("ollama", {"OLLAMA_BASE_URL": "http://b/v1", "OLLAMA_API_KEY": "k"}, "http://b/v1", "k"),
            ("groq", {"GROQ_API_KEY": "k"}, "https://api.groq.com/openai/v1", "k"),
            ("azure", {"AZURE_OPENAI_ENDPOINT": "https://a", "AZURE_OPENAI_API_KEY": "k"}, "https://a", "k"),
            ("google", {"GOOGLE_API_KEY": "k"}, None, "k"),
            ("google", {"GEMINI_API_KEY": "k", "GOOGLE_BASE_URL": "http://g"}, "http://g", "k"),
            ("google", {"GOOGLE_API_KEY": "", "GEMINI_API_KEY": "k", "GOOGLE_BASE_URL": ""}, None, "k"),
        ],
    )
    def test_address_and_key_come_from_the_same_pair(
        self, provider: Any, environ: Mapping[str, str], url: str | None, key: str | None
    ) -> None:
        assert endpoint_of(provider, environ) == Endpoint(url, key)  # F45: no key goes to another's address

    @pytest.mark.parametrize(
        ("provider", "environ", "detail"),
        [
            ("openai", {}, "set OPENAI_API_KEY"),
            ("openai", {"OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
            ("local", {}, "set OPENAI_BASE_URL to the address of the local server"),
            ("vllm", {}, "set VLLM_BASE_URL or OPENAI_BASE_URL to the address of the vllm server"),
            ("groq", {}, "set GROQ_API_KEY"),
            (
                "azure",
                {"AZURE_OPENAI_API_KEY": "k"},
                "set AZURE_OPENAI_ENDPOINT to the address of the azure server",
            ),
            ("azure", {"AZURE_OPENAI_ENDPOINT": "https://a"}, "set AZURE_OPENAI_API_KEY"),
            ("google", {}, "set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ],
    )
    def test_what_is_missing_is_told_by_its_variable(
        self, provider: Any, environ: Mapping[str, str], detail: str
    ) -> None:
        with pytest.raises(ModelFailed) as raised:
            endpoint_of(provider, environ)
        assert str(raised.value) == f"not_configured: {detail}"  # M5

    def test_a_key_is_not_shown(self) -> None:
        assert "hush" not in repr(endpoint_of("groq", {"GROQ_API_KEY": "hush"}))  # F46

    def test_a_property_of_names_keeps_its_text_or_says_what_would_do(self) -> None:
        assert model_names("openai:gpt-4o, ollama:qwen3") == "openai:gpt-4o, ollama:qwen3"
        with pytest.raises(ValueError, match="names no model; accepted: '<provider>:<model>'"):
            model_names("gpt-4o")


@pytest.mark.parametrize(
    ("provider", "model", "environ", "named"),
    [
        ("openai", "gpt", {"OPENAI_API_KEY": "key"}, "openai:gpt"),
        ("openai", "gpt", {"OPENAI_BASE_URL": "http://127.0.0.1:9"}, "openai:gpt"),
        ("gemini", "pro", {"GOOGLE_API_KEY": "key"}, "google:pro"),
        ("ollama", "llama", {"OLLAMA_BASE_URL": "http://127.0.0.1:11434/v1"}, "ollama:llama"),
        ("openai", "gpt", {}, None),
        ("ollama", "llama", {}, None),  # it has a default address, where nobody may be
        ("local", "llama", {"OPENAI_API_KEY": "key"}, None),
        ("nobody", "gpt", {"OPENAI_API_KEY": "key"}, None),
        (None, "gpt", {"OPENAI_API_KEY": "key"}, None),
    ],
)
def test_a_flows_model_counts_where_a_variable_tells_how_it_is_reached(
    provider: str | None, model: str | None, environ: dict[str, str], named: str | None
) -> None:  # C15
    assert configured_name(provider, model, environ) == named
