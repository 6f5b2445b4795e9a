"""What goes over the wire to a model server, and what does not."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec

import httpx2
import orjson
import pytest

from adapters.models import bounded_http
from adapters.models.bounded_http import model_http_client
from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, Malformed, Status
from adapters.models.openai_stream import retry_after_s
from adapters.models.providers import endpoint_of, parse_model_name
from adapters.models.pydantic_ai_model import PydanticAiModel
from adapters.models.scripted import Answers, DropsStream, Endless, Says
from flow_engine.ports.models import LLMRequest, Message, ModelFailed, TextDelta, ToolCall, ToolSpec, ask
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.adapters.models.model_worlds import SCHEMA, call, environment, vendor

pytestmark = pytest.mark.anyio

OPENAI = "openai:gpt-4.1-mini"


async def test_limits_schema_and_temperature_are_sent() -> None:
    async with FakeOpenAI([Answers({"values": {}})]).running() as server, vendor(server, OPENAI) as model:
        await ask(model, call(SCHEMA, max_tokens=77))
    [request] = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-openai"
    assert request.body["max_completion_tokens"] == 77
    assert request.body["temperature"] == 0.0
    assert request.body["response_format"]["json_schema"]["schema"]["required"] == ["values"]
    assert [m["role"] for m in request.body["messages"]] == ["system", "user"]


async def test_a_model_without_native_schemas_is_made_to_call_one_tool() -> None:
    async with (
        FakeOpenAI([Answers({"values": {}})]).running() as server,
        vendor(server, "ollama:llama3.1:70b-cloud") as model,
    ):
        assert (await ask(model, call(SCHEMA))).data == {"values": {}}
    body = server.requests[0].body
    assert "response_format" not in body
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["answer"]


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        (OPENAI, "sk-openai"),
        ("vllm:m", "sk-vllm"),
        ("groq:m", "sk-groq"),
        ("ollama:m", "none"),
        ("local:m", "sk-openai"),
    ],
)
async def test_each_server_gets_its_own_key_and_no_other(name: str, key: str, deltas: bool) -> None:
    async with FakeOpenAI([Says("yes")]).running() as server, vendor(server, name) as model:
        await ask(model, replace(call(), deltas=deltas))
    assert server.requests[0].headers.get("authorization", "Bearer none") == f"Bearer {key}"


@pytest.mark.parametrize("name", [OPENAI, "openai:o3", "local:m"])
async def test_a_stream_that_is_shown_is_asked_for_as_any_other(name: str) -> None:  # C6
    find = ToolSpec("find", "Finds things.", {"type": "object", "properties": {}})
    turns = [
        Message("system", "Be brief."),
        Message("user", "Look."),
        Message("assistant", "", tool_calls=(ToolCall("a", "find", {"query": "x"}),)),
        Message("tool", '{"found": 1}', tool_call_id="a"),
    ]
    request = LLMRequest(turns, [find], top_p=0.5)
    async with FakeOpenAI([Says("One.")]).running() as server, vendor(server, name) as model:
        plain, shown = await ask(model, request), await ask(model, replace(request, deltas=True))
    assert plain == shown
    bodies = [dict(received.body) for received in server.requests]
    for body in bodies:
        del body["tools"][0]["function"]["parameters"]  # pydantic-ai closes the schema of objects
    assert bodies[0] == bodies[1]


def stream_of(*chunks: object) -> Malformed:
    return Malformed(b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks))


def delta(finish: str | None = None, **content: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (stream_of(delta(content="It "), delta("stop", content="rains.")), "It rains."),
        (stream_of(delta(reasoning_content="Hm."), delta("stop", content="It rains.")), "It rains."),
        (stream_of(delta(content="It ")), "unreachable"),
        (stream_of(delta("content_filter", content="It ")), "refused"),
        (stream_of(delta(content="It "), {"error": {"message": "no"}}), "refused"),
        (stream_of({"error": {"message": "no", "type": "InternalServerError", "code": 500}}), "unreachable"),
        (stream_of({"error": {"message": "no", "type": "internal_server_error"}}), "unreachable"),
        (stream_of({"error": {"message": "no", "type": "server_error", "code": None}}), "unreachable"),
        (stream_of({"error": {"message": "no", "code": "upstream_failed"}}), "unreachable"),
        (stream_of({"error": {"message": "no", "code": 504}}), "timeout"),
        (stream_of({"error": {"message": "no", "code": "429"}}), "too_many_calls"),
        (stream_of({"error": {"message": "no", "code": "rate_limit_exceeded"}}), "too_many_calls"),
        (stream_of({"error": {"message": "no", "type": "BadRequestError", "code": 400}}), "refused"),
        (stream_of(delta(content="It "), {"object": "error", "code": 500}), "unreachable"),
        (stream_of(delta("error", content="It ")), "unreachable"),
        (stream_of(delta("insufficient_system_resource", content="It ")), "unreachable"),
        (stream_of(delta(refusal="I may "), delta("stop", refusal="not.")), "I may not."),
        (stream_of(delta(content=[{"type": "text", "text": "It"}])), "unusable_answer"),
        (stream_of(delta("stop", content="It"), {"usage": {"prompt_tokens": "few"}}), "unusable_answer"),
        (stream_of(delta("stop", content="It"), {"usage": [1]}), "unusable_answer"),
        (stream_of(delta(content="It "), ["no"]), "unusable_answer"),
        (Malformed(b': ping\n\nevent: x\ndata: {"choices": null}\n\ndata: [DONE]\n\n'), "unusable_answer"),
    ],
)
async def test_a_shown_stream_of_any_server_is_read_or_refused(body: Malformed, outcome: str) -> None:  # C13
    async with FakeOpenAI([body]).running() as server, vendor(server, "local:m") as model:
        try:
            found: str = (await ask(model, replace(call(), deltas=True))).text
        except ModelFailed as failed:
            found = failed.reason
    assert found == outcome


@pytest.mark.parametrize(
    ("name", "body", "outcome"),
    [
        ("vllm:m", stream_of(delta("stop", content="It rains.")), "It rains."),
        ("vllm:m", stream_of(delta(content="It ")), "unreachable"),
        ("vllm:m", stream_of(delta(content="It "), {"object": "error", "code": 500}), "unreachable"),
        ("vllm:m", stream_of({"object": "error", "message": "no", "code": 500}), "unreachable"),
        ("vllm:m", stream_of(delta("stop", content="It"), {"usage": [1]}), "unusable_answer"),
        ("vllm:m", stream_of(["no"]), "unusable_answer"),
        ("local:m", stream_of(delta(content="It rains.")), "It rains."),
    ],
)
async def test_an_answer_that_nobody_watches_is_whole_or_a_failure(
    name: str, body: Malformed, outcome: str
) -> None:  # W6
    find = ToolSpec("find", "Finds things.", {"type": "object", "properties": {}})
    async with FakeOpenAI([body]).running() as server, vendor(server, name) as model:
        try:
            found: str = (await ask(model, replace(call(), tools=[find]))).text
        except ModelFailed as failed:
            found = failed.reason
    assert found == outcome


@pytest.mark.parametrize(
    "parts",
    [
        [{"id": "a", "function": {"name": "find", "arguments": '{"q"'}}, {"function": {"arguments": ": 1}"}}],
        [
            {"index": 0, "id": "a", "function": {"name": "find", "arguments": '{"q": 1}'}},
            {"index": 0, "id": "b", "function": {"name": "find", "arguments": "{}"}},
        ],
    ],
    ids=["without an index", "the same index for each"],
)
async def test_calls_of_tools_are_told_apart_however_servers_number_them(parts: list[object]) -> None:  # M8
    body = stream_of(*(delta(tool_calls=[part]) for part in parts), delta("tool_calls"))
    async with FakeOpenAI([body]).running() as server, vendor(server, "local:m") as model:
        find = ToolSpec("find", "Finds things.", {"type": "object", "properties": {}})
        answer = await ask(model, LLMRequest([Message("user", "Look.")], [find], deltas=True))
    assert answer.message.tool_calls[0] == ToolCall("a", "find", {"q": 1})
    assert [each.id for each in answer.message.tool_calls[1:]] in ([], ["b"])


def piece(name: str | None = None, arguments: object = "", **numbered: object) -> dict[str, object]:
    return {**numbered, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "parts",
    [
        [
            piece("f", id="a", index=0),
            piece(arguments='{"q": 1}', id="x", index=0),
            piece("g", id="b", index=1),
        ],
        [piece("f", id="a", index=0), piece("f", '{"q": 1}', index=0), piece("g", id="b", index=1)],
        [piece("f", '{"q": 1}'), piece("g", "{}")],
        [piece("f", id="a"), piece("g", id="b"), piece(arguments='{"q": 1}', id="a")],
        [piece("f", {"q": 1}, id="a", index=0), piece("g", {}, id="b", index=1)],
        [piece("f", id="", index=0), piece("", '{"q": 1}', id="", index=0), piece("g", id="", index=1)],
    ],
    ids=[
        "another id in each piece",
        "the name in each piece",
        "neither index nor id",
        "ids alone, by turns",
        "arguments as an object",
        "empty ids and names",
    ],
)
async def test_two_calls_are_two_whatever_their_pieces_say(parts: list[object]) -> None:  # M8
    body = stream_of(*(delta(tool_calls=[part]) for part in parts), delta("tool_calls"))
    tools = [ToolSpec(name, "Does things.", {"type": "object", "properties": {}}) for name in "fg"]
    async with FakeOpenAI([body]).running() as server, vendor(server, "local:m") as model:
        answer = await ask(model, LLMRequest([Message("user", "Look.")], tools, deltas=True))
    calls = answer.message.tool_calls
    assert [(each.name, dict(each.arguments)) for each in calls] == [("f", {"q": 1}), ("g", {})]
    assert len({each.id for each in calls}) == 2


async def test_a_call_of_no_function_is_no_call() -> None:  # M8
    body = stream_of(delta(tool_calls=[piece(None, "{}", id="a", index=0)]), delta("tool_calls"))
    async with FakeOpenAI([body]).running() as server, vendor(server, "local:m") as model:
        with pytest.raises(ModelFailed, match="unusable_answer"):
            await ask(model, LLMRequest([Message("user", "Look.")], deltas=True))


@pytest.mark.parametrize("name", ["ollama:m", "local:m"])
@pytest.mark.parametrize("deltas", [False, True])
async def test_servers_of_ones_own_get_the_limit_that_they_know(name: str, deltas: bool) -> None:  # W6
    async with FakeOpenAI([Says("yes")]).running() as server, vendor(server, name) as model:
        await ask(model, replace(call(max_tokens=77), deltas=deltas))
    limits = {key: value for key, value in server.requests[0].body.items() if key.startswith("max_")}
    assert limits == {"max_tokens": 77}


async def test_the_time_of_the_reader_is_no_silence_of_the_server() -> None:  # C13
    read = asyncio.Event()

    class Patient(FakeOpenAI):
        async def answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            writer.write(head + stream_of(delta(content="It ")).body)
            await read.wait()
            writer.write(stream_of(delta("stop", content="rains.")).body)

    async with Patient([]).running() as server, vendor(server, "local:m", timeout_s=1.0) as model:
        texts = list[str]()
        async with aclosing(model.stream(replace(call(), deltas=True))) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    texts.append(event.text)
                    await asyncio.sleep(1.1)
                    read.set()
    assert "".join(texts) == "It rains."


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "1", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Mon, 04 May 2026 09:30:02 GMT"}, 2),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_both_forms_of_when_to_ask_again_are_read(told: dict[str, str], seconds: float | None) -> None:  # F37
    assert retry_after_s(told, datetime(2026, 5, 4, 9, 30, tzinfo=UTC)) == seconds


@pytest.mark.parametrize("name", ["openai:m", "ollama:m"])
@pytest.mark.parametrize("request_", [replace(call(), deltas=True), replace(call(), num_ctx=2048), call()])
async def test_a_busy_provider_says_when_to_ask_again(name: str, request_: LLMRequest) -> None:  # F37
    busy = ExactServer(lambda received: Reply([b"{}"], 429, headers={"Retry-After": "3"}))
    async with busy.running() as server:
        model = PydanticAiModel(parse_model_name(name), environment(server.origin + "/v1"), 5.0)
        with pytest.raises(ModelFailed) as failed:
            await ask(model, request_)
        await model.aclose()
    assert (failed.value.reason, failed.value.retry_after_s) == ("too_many_calls", 3)


@pytest.mark.parametrize("deltas", [False, True])
async def test_a_redirect_is_a_refusal(deltas: bool) -> None:  # F37
    async with FakeOpenAI([Status(307)]).running() as server, vendor(server, OPENAI) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask(model, replace(call(), deltas=deltas))
    assert failed.value.reason == "refused"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    async with FakeOpenAI([Says("yes")]).running() as server, vendor(server, OPENAI) as model:
        assert (await ask(model, call())).text == "yes"


async def test_a_call_may_name_another_model() -> None:
    async with FakeOpenAI([Says("yes")]).running() as server, vendor(server, OPENAI) as model:
        answer = await ask(model, call(model="groq/llama-3.3-70b"))
    assert answer.model == "groq:llama-3.3-70b"
    assert server.requests[0].body["model"] == "llama-3.3-70b"  # F37


@pytest.mark.parametrize("named", ["gpt-4.1", "acme:gpt"])
async def test_a_call_that_names_no_model_fails_without_a_request(named: str) -> None:
    async with FakeOpenAI([Says("yes")]).running() as server, vendor(server, OPENAI) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask(model, call(model=named))
    assert failed.value.reason == "not_configured"
    assert not server.requests


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Status(400), "refused"),
        (Status(401), "refused"),
        (Status(403), "refused"),
        (Status(404), "refused"),
        (Status(408), "timeout"),
        (Status(429), "too_many_calls"),
        (Status(500), "unreachable"),
        (Status(502), "unreachable"),
        (Status(503), "unreachable"),
        (Status(504), "timeout"),
        (DropsStream(), "unreachable"),
        (Malformed(), "unusable_answer"),
        (Malformed(b"<html>"), "unusable_answer"),
        (Malformed(b""), "unusable_answer"),
    ],
)
@pytest.mark.parametrize("deltas", [False, True])
async def test_what_servers_do_wrong_becomes_a_reason(
    step: Status | DropsStream | Malformed, reason: str, deltas: bool
) -> None:
    async with FakeOpenAI([step]).running() as server, vendor(server, OPENAI) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask(model, replace(call(), deltas=deltas))
    assert failed.value.reason == reason
    assert len(server.requests) == 1  # the client library does not try again by itself


async def test_a_server_that_is_away_is_unreachable() -> None:
    async with FakeOpenAI([Says("yes")]).running() as server:
        base_url = server.base_url
    model = PydanticAiModel(parse_model_name(OPENAI), environment(base_url), 1)
    with pytest.raises(ModelFailed) as failed:
        await ask(model, call())
    await model.aclose()
    assert failed.value.reason == "unreachable"


@pytest.mark.parametrize("deltas", [False, True])
async def test_no_error_quotes_what_the_server_says(deltas: bool) -> None:
    async with (
        FakeOpenAI([Malformed(b'data: {"error": {"message": "Anna, 5 May"}}\n\n')]).running() as server,
        vendor(server, OPENAI) as model,
    ):
        with pytest.raises(ModelFailed) as failed:
            await ask(model, replace(call(), deltas=deltas))
    assert "Anna" not in "".join(traceback.format_exception(failed.value))  # F46


async def test_a_response_longer_than_any_answer_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "MOST_RESPONSE_BYTES", 10_000)
    async with FakeOpenAI([Endless()]).running() as server, model_http_client(5) as http:
        with pytest.raises(httpx2.ReadError):
            await http.post(f"{server.base_url}/chat/completions", json={"stream": True})


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        (OPENAI, ["OPENAI_API_KEY"]),
        ("local:m", ["OPENAI_BASE_URL"]),
        ("vllm:m", ["VLLM_BASE_URL", "OPENAI_BASE_URL"]),
        ("groq:m", ["GROQ_API_KEY"]),
        ("azure:m", ["AZURE_OPENAI_ENDPOINT"]),
        ("gemini/m", ["GOOGLE_API_KEY", "GEMINI_API_KEY"]),
    ],
)
def test_what_is_missing_is_named(name: str, variables: list[str]) -> None:
    with pytest.raises(ModelFailed) as failed:
        endpoint_of(parse_model_name(name).provider, {})
    assert failed.value.reason == "not_configured"
    assert all(variable in str(failed.value) for variable in variables)


def test_a_key_is_not_sent_to_another_providers_address() -> None:
    environ = {"OPENAI_API_KEY": "sk-openai", "VLLM_BASE_URL": "http://10.0.0.5:8000/v1"}
    assert endpoint_of("vllm", environ).api_key is None


def test_no_key_shows_in_a_representation() -> None:
    assert "sk-" not in repr(endpoint_of("openai", {"OPENAI_API_KEY": "sk-openai"}))


@pytest.mark.skipif(
    find_spec("google") is not None and find_spec("google.genai") is not None, reason="the extra is installed"
)
def test_gemini_without_its_extra_says_how_to_install_it() -> None:
    with pytest.raises(ModelFailed, match=r"flow-engine\[google\]"):
        PydanticAiModel(parse_model_name("gemini/gemini-2.5-pro"), {"GOOGLE_API_KEY": "k"}, 1)
