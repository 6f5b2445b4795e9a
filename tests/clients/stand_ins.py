"""A gateway with a key of its own, in front of an Ollama and of an OpenAI-compatible server that do what the
last message says."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, Status, WireStep
from adapters.models.scripted import Answers, CallsTools, DropsStream, Says
from api.auth import Keyring
from flow_engine.ports.models import ToolCall
from tests.channels.gateway.fake_ollama import FakeOllama, OllamaAnswer, OllamaCut, OllamaError, OllamaStep
from tests.channels.gateway.gateway_world import World, gateway

KEY = "key-of-an-official-client"
MODELS = ("ollama-model", "openai-model")
GREETING = "Hello, how can I help you today?"
WEATHER = "It is 20 degrees in Rome."


def _asked(received: Received) -> tuple[str, bool, bool]:
    """The last message's text, whether it answers a tool call, and whether the reply has a schema."""
    last: dict[str, Any] = received.body.get("messages", [{}])[-1]
    schema = received.body.get("response_format") or received.body.get("format")
    return str(last.get("content")), last.get("role") == "tool", bool(schema)


def openai_step(received: Received) -> WireStep:
    text, answers_a_call, structured = _asked(received)
    if answers_a_call:
        return Says(WEATHER)
    if structured:
        return Answers({"city": "Rome", "degrees": 20})
    if received.body.get("tools"):
        return CallsTools([ToolCall("call-7", "weather", {"city": "Rome"})])
    return {"limit": Status(429), "refuse": Status(400), "break": Status(500), "cut": DropsStream("It")}.get(
        text, Says(GREETING)
    )


def ollama_step(received: Received) -> OllamaStep:
    text, answers_a_call, structured = _asked(received)
    if answers_a_call:
        return OllamaAnswer(WEATHER)
    if structured:
        return OllamaAnswer(orjson.dumps({"city": "Rome", "degrees": 20}).decode())
    if received.body.get("tools"):
        return OllamaAnswer(calls=[{"function": {"name": "weather", "arguments": {"city": "Rome"}}}])
    steps: dict[str, OllamaStep] = {
        "limit": OllamaError("too many", 429),
        "refuse": OllamaError("invalid options", 400),
        "break": OllamaError("no memory", 500),
        "cut": OllamaCut("It"),
    }
    return steps.get(text, OllamaAnswer(GREETING))


@asynccontextmanager
async def client_world(data_dir: Path) -> AsyncGenerator[World]:
    """Both of `MODELS` behind one gateway that wants `KEY`."""
    ring = Keyring.parse(orjson.dumps({"keys": [{"key": KEY, "tenant": "t", "scopes": ["gateway"]}]}))
    async with (
        FakeOllama(ollama_step).running() as ollama,
        FakeOpenAI(openai_step).running() as remote,
        gateway(
            data_dir,
            {"url": ollama.origin, "kind": "ollama", "models": ["ollama-model"]},
            {"url": remote.base_url, "kind": "openai", "models": ["openai-model"]},
            authenticator=ring,
        ) as world,
    ):
        yield world
