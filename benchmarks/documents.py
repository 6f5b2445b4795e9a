"""Flow versions of any size, shaped like real ones, and what is said to them.

Out of six tasks one is HUM and one AIS; each connects to the next five, requires one variable and
selects two tools. A prompt is about 1 KB with seven template tags. 12 tasks have 12 variables, 100 have 30.
"""

from __future__ import annotations

from typing import Any

import orjson

JsonObject = dict[str, Any]

CONNECTIONS = 5
_TYPES = ("string", "number", "enum", "date", "phone", "boolean", "custom")
_VALUES: dict[str, object] = {
    "string": "a follow-up visit in the morning",
    "number": 3,
    "enum": "afternoon",
    "date": "2026-03-14T09:30:00Z",
    "phone": "+390612345678",
    "boolean": True,
    "custom": {"id": "VIS-CARD", "title": "Cardiology, first visit", "minutes": 30, "price": 120.5},
}
_DESCRIBED = [
    {"name": "Service", "value": "Cardiology, first visit"},
    {"name": "Duration", "value": "30 minutes"},
    {"name": "Price", "value": "120.50 euros"},
]
_SHOP = "{{ $tenant.shop | default('the clinic') }}"
_PARAGRAPH = (
    "Keep to one question at a time and wait for the answer. Repeat names, days and numbers back before "
    "they are used, and never fill in what the caller has not said. When a tool takes long, say that you "
    "are looking it up. When two answers contradict each other, ask which one holds. "
)


def variable_count(tasks: int) -> int:
    return max(10, min(30, tasks))


def variable_id(number: int) -> str:
    return f"fact_{number}"


def task_id(number: int) -> str:
    return f"task-{number:03}"


def build_version(
    tasks: int, *, variables: int | None = None, multi_contact: bool = False, salt: str = ""
) -> JsonObject:
    """A version as a designer posts it. `salt` makes every template of it unlike any seen before."""
    variables = variables or variable_count(tasks)
    return {
        "schemaVersion": "1.0.0",
        "globalPrompt": f"You answer for {_SHOP}.{salt} {_PARAGRAPH * 2}",
        "channels": ["phone", "chat"],
        "mandatoryChannels": ["phone"],
        "closureConfig": _closure(multi_contact),
        "mediaConfig": _media(),
        "defaultLanguage": "en-US",
        "supportedLanguages": ["en-US", "it-IT"],
        "systemPromptsLanguage": "en-US",
        "apiVersion": "v1",
        "variables": [_variable(number) for number in range(variables)],
        "uiMetadata": {},
        "mcpServers": [
            {
                "name": "agenda",
                "url": "https://mcp.example.com/agenda",
                "includedTools": [
                    {"toolName": name, "uiToolDescription": f"Does {name}"} for name in ("search", "book")
                ],
            }
        ],
        "aiHelpers": [],
        "tasks": [_task(number, tasks, variables, multi_contact, salt) for number in range(tasks)],
        "firstTask": task_id(0),
        "checkpoints": [],
        "reasonsOfContact": [{"name": "Booking", "prompt": "The caller wanted a visit"}],
        "results": [{"name": "Booked", "prompt": "A visit was booked", "resultTypes": ["CL", "Y"]}],
        "draft": False,
    }


def complete(version: JsonObject) -> JsonObject:
    """The version with what the server adds at the save, ready to be compiled directly."""
    return {
        "_id": "version-1",
        "conversationalFlowId": "flow-1",
        "createdBy": "benchmark",
        "createdAt": "2026-01-15T09:00:00Z",
        **version,
    }


def walk(tasks: int) -> list[str]:
    """A round through every AIO task, the first one last; each step is a connection."""
    aio = [task_id(number) for number in range(tasks) if _task_type(number) == "AIO"]
    return [*aio[1:], aio[0]]


def required_by(task: str, variables: int) -> int:
    """The number of the variable without which the task cannot be entered."""
    return int(task.rpartition("-")[2]) % variables


def memory_entry(number: int, contact_id: str) -> JsonObject:
    """A tool's write of one variable, as PUT /memory takes it."""
    kind = _TYPES[number % len(_TYPES)]
    return {
        "updatedBy": "search",
        "contactId": contact_id,
        "varId": variable_id(number),
        "value": _VALUES[kind],
        "descriptionForLLM": _DESCRIBED if kind == "custom" else None,
    }


def memory_body(numbers: list[int], contact_id: str) -> bytes:
    return orjson.dumps([memory_entry(number, contact_id) for number in numbers])


def contact_body(conversation_id: str, contact_id: str, version_id: str) -> bytes:
    return orjson.dumps(
        {
            "contactId": contact_id,
            "conversationId": conversation_id,
            "conversationalFlowVersionId": version_id,
            "channel": "phone",
            "tenant": {"shop": "Aurora Clinic", "timezone": "Europe/Rome"},
            "contact": {"callerId": "+390612345678", "calleeId": "+390687654321", "name": "Ada"},
        }
    )


def _variable(number: int) -> JsonObject:
    kind = _TYPES[number % len(_TYPES)]
    variable: JsonObject = {
        "_id": variable_id(number),
        "name": f"fact {number}",
        "type": kind,
        "prompt": f"What the caller says about matter {number}, in his own words where there is a choice.",
    }
    if kind == "enum":
        variable["enumValues"] = ["morning", "afternoon", "evening"]
    return variable


def _task_type(number: int) -> str:
    return {4: "HUM", 5: "AIS"}.get(number % 6, "AIO")


def _task(number: int, tasks: int, variables: int, multi_contact: bool, salt: str) -> JsonObject:
    kind = _task_type(number)
    task: JsonObject = {
        "_id": task_id(number),
        "name": f"Step {number}",
        "type": kind,
        "description": f"Enter when matter {number} comes up and "
        f"{{{{ $vars.fact_{number % variables} }}}} is known; leave it to others otherwise.{salt}",
        "prompt": _prompt(number, variables, salt),
        "transitionParameters": [{"variableId": variable_id(number % variables), "required": number > 0}],
        "aiHelpers": [],
        "channels": None,
        "mcpToolSelection": [_tools(number, variables)],
        "closureConfig": _closure(multi_contact),
        "enabledCheckpoints": [],
        "connectedTasks": [task_id((number + step) % tasks) for step in range(1, CONNECTIONS + 1)],
    }
    if kind != "AIO":
        task["routingParameters"] = {"timeout": 60, "agentSkills": ["bookings"]}
    return task


def _prompt(number: int, variables: int, salt: str) -> str:
    asked = ", ".join(f"{{{{ $vars.fact_{(number + step) % variables} }}}}" for step in range(4))
    return (
        f"Settle matter {number}.{salt} What you need: {asked}."
        "{% if $contact.name %} The caller is {{ $contact.name }}.{% endif %}"
        " {% if $channel == 'phone' %}Speak in short sentences.{% else %}Write short messages.{% endif %} "
        f"{_PARAGRAPH * 2}"
    )


def _tools(number: int, variables: int) -> JsonObject:
    parameters = [
        {"parameterName": "what", "assignmentStrategy": "prompt", "assignmentValue": "What is looked for."},
        {"parameterName": "limit", "assignmentStrategy": "fixed", "assignmentValue": "3"},
        {
            "parameterName": "known",
            "assignmentStrategy": "variable",
            "assignmentValue": variable_id(number % variables),
        },
    ]
    return {
        "mcpServerName": "agenda",
        "selectedTools": [{"toolName": name, "toolParameters": parameters} for name in ("search", "book")],
    }


def _closure(multi_contact: bool) -> JsonObject:
    if not multi_contact:
        return {"multiContact": False}
    return {
        "multiContact": True,
        "conversationTimeLimit": 86_400,
        "customHandler": "https://hooks.example.com/close",
    }


def _media() -> JsonObject:
    voice = {"provider": "elevenlabs", "voice": "{{ $tenant.voice | default('21m00Tcm4TlvDq8ikWAM') }}"}
    other = {"provider": "google", "voice": "{{ $language }}-Neural2-A", "speed": 1}
    return {
        "audio": {
            "presetId": "default",
            "tts": {
                "default": {**voice, "speed": 1},
                "fallback": other,
                "languageCustomConfig": [{"language": "it", "config": other}],
            },
        },
        "text": {"llm": {"provider": "openai", "model": "gpt-4.1-mini", "temperature": 0.3}},
    }
