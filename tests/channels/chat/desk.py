"""A desk of agents and a model for it: what the scenario is played on, by a client and in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from adapters.models.fake_openai import Received
from adapters.models.scripted import CallsTools, Says, Step
from flow_engine.ports.models import ToolCall

BELT = "tests.channels.chat.toolbelt"
SUNNY = "It is sunny in Rome, and it will stay so until the weekend."
ACCIDENT = "He tenido un accidente con el coche"
PERSON = "Quiero hablar con una persona"


def rows(engine_url: str) -> list[dict[str, Any]]:
    """A base that nobody talks to, two agents with what they inherit, and one that is a flow."""
    return [
        {
            "name": "desk_base",
            "enabled": False,
            "role": "You work at the desk of a shop.",
            "constraints": ["Never promise a discount."],
        },
        {
            "name": "weather_agent",
            "base_agent": "desk_base",
            "description": "Tells the weather of a city.",
            "task": "Tell the weather.",
            "examples": ["What is the weather in Rome?", "Will it rain tomorrow in Milan?"],
        },
        {
            "name": "order_agent",
            "base_agent": "desk_base",
            "description": "Takes orders of pizza and drinks.",
            "task": "Take an order.",
            "examples": ["I would like to order a pizza", "Two margheritas please", "Cancel my order"],
            "tools": ["pay"],
            "http_tools": {
                "kitchen": {
                    "url": f"{engine_url}/health/live",
                    "method": "GET",
                    "description": "Whether the kitchen is open.",
                    "on_success": {"return": {"kitchen": "$.status"}},
                }
            },
        },
        {
            "name": "claims_agent",
            "description": "Registra siniestros del seguro tras un accidente o un robo.",
            "languages": ["es"],
            "examples": [ACCIDENT, "Quiero declarar un siniestro"],
            "flow": {"flow_id": "claim", "tag": "prod"},
        },
    ]


CHOICES = (
    ("weather", "weather_agent", 0.9),
    ("pizza", "order_agent", 0.9),
    ("hello", "smalltalk_agent", 0.95),
    ("accidente", "claims_agent", 0.9),
)


def desk_model(told: Callable[[str], None] = lambda prompt: None) -> Callable[[Received], Step]:
    """What the model answers to each request; `told` gets the system prompts."""

    def answer(received: Received) -> Step:
        turns = received.body["messages"]
        prompt, last = turns[0]["content"], turns[-1]
        told(prompt)
        if "You direct the messages" in prompt:
            return _chosen(orjson.loads(last["content"])["message"])
        if last["role"] == "tool":
            return _after_tool([turn["content"] for turn in turns if turn["role"] == "tool"], turns)
        return _said(last["content"])

    return answer


def _chosen(message: str) -> Step:
    for word, agent, confidence in CHOICES:
        if word in message.casefold():
            return Says(orjson.dumps({"agent": agent, "confidence": confidence}).decode())
    return Says('{"agent": "weather_agent", "confidence": 0}')


def _calls(name: str, **arguments: Any) -> Step:
    return CallsTools([ToolCall(f"call-{name}", name, arguments)])


def _after_tool(results: list[str], turns: list[Any]) -> Step:
    last = results[-1]
    if '"kitchen"' in last:
        return _calls("pay", amount=9.5)
    if "USER_REJECTED" in last:
        return Says("Then it stays unpaid.")
    if "paid" in last:
        return Says("Paid: your pizza is on its way.")
    return Says("Le paso con un perito.")


def _said(message: str) -> Step:
    for word, step in (
        ("weather", Says(SUNNY)),
        ("order a pizza", _calls("ask_user", question="Which size?")),
        ("large", _calls("kitchen")),
        ("pizza again", _calls("pay", amount=5)),
        ("hello", Says("Hello! What can I do for you?")),
        (PERSON, _calls("change_task", task="perito")),
        ("/start_task perito", Says("Le paso con un perito.")),  # the task's command is the last turn
    ):
        if word.casefold() in message.casefold():
            return step
    return Says("¿Cuál es su póliza?")
