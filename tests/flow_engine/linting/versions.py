"""A version that nothing can be said against, as raw JSON, and small changes to it."""

from __future__ import annotations

from typing import Any

from flow_engine.documents import parse_version
from flow_engine.linting import lint
from tests.flow_engine.documents.samples import ENVIRONMENT, aio_task, minimal_version

JsonObject = dict[str, Any]

WELCOME, BOOKING, OPERATOR = 0, 1, 2


def sound_version(**changes: Any) -> JsonObject:
    """`welcome` (tool `search`) ↔ `booking` (requires what `search` finds, tool `book`) ↔ `operator`."""
    checkpoint = {"_id": "booked", "name": "Booked", "prompt": "A visit was booked", "required": True}
    version = minimal_version(
        variables=[
            {"_id": "service", "name": "service", "type": "custom"},
            {"_id": "size", "name": "size", "type": "enum", "enumValues": ["S", "M"], "prompt": "Which size"},
            {"_id": "day", "name": "day", "type": "date", "prompt": "Which day"},
        ],
        mcpServers=[
            {
                "name": "agenda",
                "url": "https://mcp.example.com/agenda",
                "includedTools": [{"toolName": "search"}, {"toolName": "book"}],
            }
        ],
        checkpoints=[checkpoint],
        tasks=[
            task("welcome", ["booking", "operator"], "Enter at the start.", tools=[tool("search")]),
            task(
                "booking",
                ["welcome", "operator"],
                "Enter when the service is known.",
                prompt="Book {{ $vars.service }} on {{ $vars.day }}.",
                tools=[tool("book", service=("variable", "service"), size=("variable", "size"))],
                transitionParameters=[required("service")],
                enabledCheckpoints=[checkpoint],
            ),
            task("operator", ["welcome"], "Enter for a person.", **human("HUM")),
        ],
        firstTask="welcome",
    )
    return {**version, **changes}


def task(
    task_id: str,
    connected: list[str],
    description: str = "",
    *,
    tools: list[JsonObject] | None = None,
    **rest: Any,
) -> JsonObject:
    if tools:
        rest["mcpToolSelection"] = [{"mcpServerName": "agenda", "selectedTools": tools}]
    return aio_task(
        task_id, description=description or f"Enter for {task_id}.", connectedTasks=connected, **rest
    )


def human(kind: str, **routing: Any) -> JsonObject:
    return {"type": kind, "routingParameters": {"timeout": 60, "agentSkills": ["desk"], **routing}}


def tool(name: str, **parameters: tuple[str, str]) -> JsonObject:
    """Parameters as (strategy, value)."""
    return {
        "toolName": name,
        "toolParameters": [
            {"parameterName": key, "assignmentStrategy": strategy, "assignmentValue": value}
            for key, (strategy, value) in parameters.items()
        ],
    }


def required(variable: str) -> JsonObject:
    return {"variableId": variable, "required": True}


def multi(limit: int = 86_400) -> JsonObject:
    return {
        "multiContact": True,
        "conversationTimeLimit": limit,
        "customHandler": "https://hooks.example.com/close",
    }


def found(raw: JsonObject) -> list[tuple[str, str]]:
    """Place and code of every finding."""
    return [(finding.pointer, finding.code) for finding in lint(parse_version(raw), ENVIRONMENT)]


def reasons(raw: JsonObject, code: str) -> list[str]:
    return [finding.reason for finding in lint(parse_version(raw), ENVIRONMENT) if finding.code == code]
