"""The tools that a task gives to the model, as it sees them and as calls (V2). Pure: no call is made here.

Who fills in a parameter of an MCP tool:

1. The ids of the conversation, and what else a tool may declare of `INJECTED`: the agent, always. The model
   neither sees nor chooses them.
2. What the flow assigns as `fixed` or `variable`: the agent. A variable's value is that of the moment of the
   call; an optional parameter whose variable has no value is left out.
3. Everything else: the model. What the flow assigns as `prompt` describes the parameter to it.

Every call carries the ids and the memory in `_meta` as well, for tools that declare none of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import orjson
from pydantic_core import to_json

from channels.engine_client import replies
from channels.engine_client.mcp_tools import McpTool
from flow_engine.json_values import as_object
from flow_engine.ports.models import ToolSpec
from flow_engine.values import JsonValue
from flow_engine.vocabulary import FILLED_BY_AGENTS

CHANGE_TASK: Final = "change_task"
BACK = "back"
"""Leads out of a digression, to the task that it was entered from."""
END_CALL: Final = "end_call"
MOST_TOOL_CHARS: Final = 2_000
REASON_CHARS: Final = 2_000
"""Of a reason for a change of task, as the engine takes it."""

ENGINE_SERVER: Final = "flow-engine"
"""The engine's own MCP server in `mcpTools`."""

NOT_OFFERED: Final = frozenset({CHANGE_TASK, "get_memory"})
"""Tools of the engine's own server that no model is given: `change_task` is the agent's, which calls REST,
and what `get_memory` tells stands in every prompt, so that a call would only make the caller wait."""

_WRITES_MEMORY: Final = "set_memory"
_WRITTEN_BY: Final = replies.ToolParameter.model_validate(
    {"parameterName": "updatedBy", "assignmentStrategy": "fixed", "assignmentValue": _WRITES_MEMORY}
)
"""As whose the values count that a model stores: not for it to choose, as a name may be another tool's."""

MEMORY_PARAMETER: Final = "memory"
KEY_PARAMETER: Final = "idempotencyKey"
CAMPAIGN_PARAMETER: Final = "campaignId"
INJECTED: Final = frozenset(FILLED_BY_AGENTS)

META_IDS: Final = "flow-engine/conversation"
META_MEMORY: Final = "flow-engine/memory"

_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


class VariablesMissing(Exception):
    """Required parameters whose variables have no value: the call fails before anything is sent. `variables`
    by id."""

    def __init__(self, variables: Sequence[str]) -> None:
        super().__init__(f"no value yet for: {', '.join(variables)}")
        self.variables = tuple(variables)


@dataclass(frozen=True, slots=True)
class TaskTool:
    """An MCP tool of the current task. `name` is what the model calls it, `listed` what its server does.
    `parameters` is the JSON Schema of what the model chooses, `result_mapping` by variable id a JSONPath into
    the answer."""

    name: str
    url: str
    listed: McpTool
    parameters: Mapping[str, object]
    assigned: tuple[replies.ToolParameter, ...]
    result_mapping: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def takes_variables(self) -> bool:
        return any(parameter.assignment_strategy == "variable" for parameter in self.assigned)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.listed.description, self.parameters)

    def told(self, answer: JsonValue) -> str:
        """The beginning of an answer, as it is reported."""
        return f"{self.name}: {orjson.dumps(answer).decode()}"[:MOST_TOOL_CHARS]


@dataclass(frozen=True, slots=True)
class CallContext:
    """What an agent brings to every call of a tool. `key` is new for each, so that a call repeated is not
    done twice; `campaign_id` is None without a campaign."""

    tenant_id: str
    conversation_id: str
    contact_id: str
    memory: replies.MemoryDump
    key: str
    campaign_id: str | None = None

    @property
    def ids(self) -> dict[str, object]:
        ids: dict[str, object] = {
            "tenantId": self.tenant_id,
            "conversationId": self.conversation_id,
            "contactId": self.contact_id,
        }
        return ids if self.campaign_id is None else {**ids, CAMPAIGN_PARAMETER: self.campaign_id}

    @property
    def meta(self) -> dict[str, object]:
        return {META_IDS: self.ids, META_MEMORY: self._dump()}

    def injected(self) -> dict[str, object]:
        return {**self.ids, MEMORY_PARAMETER: self._dump(), KEY_PARAMETER: self.key}

    def _dump(self) -> dict[str, object]:
        return self.memory.model_dump(by_alias=True, mode="json")


# --- what the model sees ----------------------------------------------------------------------------


def with_missing(
    tasks: Iterable[replies.ReachableTask], memory: replies.MemoryDump
) -> tuple[replies.ReachableTask, ...]:
    """The tasks with what is missing by this memory."""
    return tuple(
        task.model_copy(
            update={
                "missing_variables": tuple(
                    name for name in task.required_variables if memory.value_of(name) is None
                )
            }
        )
        for task in tasks
    )


def change_task_spec(
    tasks: Sequence[replies.ReachableTask], returns_to: str | None = None
) -> ToolSpec | None:
    """The tool that moves to one of `tasks`, or `back` to the task `returns_to`; None where there is nowhere
    to go. `change_asked_for` reads a call of it."""
    if not tasks and returns_to is None:
        return None
    names = task_names(tasks)
    lines = "\n".join(task.line(name) for name, task in zip(names, tasks, strict=True))
    if returns_to is not None:
        names.append(BACK)
        lines = f"{lines}\n- {BACK}: return to {returns_to!r}, where this task was entered from.".lstrip()
    description = "Move the conversation to another task, as soon as its description fits what is needed."
    task = {"type": "string", "enum": names, "description": f"The task to move to:\n{lines}"}
    reason = {"type": "string", "description": "Why, in one sentence, for those who read along."}
    schema = {
        "type": "object",
        "properties": {"task": task, "reason": reason},
        "required": ["task"],
        "additionalProperties": False,
    }
    return ToolSpec(CHANGE_TASK, description, schema)


def change_asked_for(arguments: Mapping[str, JsonValue]) -> tuple[str, str | None]:
    """Task and reason of a call of `change_task`: "" for a task that is no text; a reason has at most
    REASON_CHARS characters, and is None where there is none."""
    task, reason = arguments.get("task"), arguments.get("reason")
    told = reason.strip()[:REASON_CHARS] if isinstance(reason, str) else ""
    return task if isinstance(task, str) else "", told or None


def not_changed(why: replies.TaskRefused | replies.StateConflict) -> dict[str, JsonValue]:
    """What a model that writes is told of a change of task that was asked for and not made."""
    if isinstance(why, replies.StateConflict):
        return {"result": False, "code": why.code, "reason": str(why)}
    return {
        "result": False,
        "code": why.code,
        "reason": why.reason,
        "missing": [variable.name for variable in why.missing],
        "reachableTasks": list[JsonValue](task_names(why.reachable_tasks)),
    }


def task_names(tasks: Sequence[replies.ReachableTask]) -> list[str]:
    """How the model names each task: by name, or by id where the name could mean two."""
    every = [task.name for task in tasks] + [task.task_id for task in tasks if task.task_id != task.name]
    return [task.name if every.count(task.name) == 1 else task.task_id for task in tasks]


def task_tools(
    data: replies.AgentData,
    listed: Mapping[str, Sequence[McpTool]],
    *,
    engine_mcp_url: str,
) -> tuple[TaskTool, ...]:
    """The task's MCP tools that their servers really list, `listed` by URL. Where two tools share a name, or
    one has that of a tool of the agent's own, the later gets its server's before it."""
    names, bound = {CHANGE_TASK, END_CALL}, list[TaskTool]()
    for server in data.mcp_tools:
        url = server_url(server, engine_mcp_url)
        by_name = {tool.name: tool for tool in listed.get(url, ())}
        for selected in server.tools:
            tool = by_name.pop(selected.tool_name, None)
            if tool is None or not is_offered(server, selected):
                continue
            # A name that models accept and nothing has yet.
            plain, prefixed = (
                name_for_models(name) for name in (tool.name, f"{server.server_name}_{tool.name}")
            )
            numbered = (f"{prefixed[: _LONGEST_NAME - 4]}_{n}" for n in range(2, len(names) + 3))
            name = next(name for name in (plain, prefixed, *numbered) if name and name not in names)
            names.add(name)
            assigned = selected.parameters
            if server.server_name == ENGINE_SERVER and tool.name == _WRITES_MEMORY:
                assigned = (*assigned, _WRITTEN_BY)
            schema = _chosen_by_model(tool, assigned)
            bound.append(TaskTool(name, url, tool, schema, assigned, selected.result_mapping))
    return tuple(bound)


def name_for_models(name: str) -> str:
    """Without what model servers refuse in the name of a tool, which would fail all of a request."""
    return _NAME_CHARS.sub("_", name)[:_LONGEST_NAME]


def is_offered(server: replies.ServerTools, selected: replies.SelectedTool) -> bool:
    return server.server_name != ENGINE_SERVER or selected.tool_name not in NOT_OFFERED


def server_url(server: replies.ServerTools, engine_mcp_url: str) -> str:
    """The URL to reach a server at: the engine's own is reached where the engine is, whatever address it
    gives to others."""
    return engine_mcp_url if server.server_name == ENGINE_SERVER else server.url


def _chosen_by_model(tool: McpTool, assigned: Sequence[replies.ToolParameter]) -> dict[str, object]:
    schema = dict(tool.parameters)
    properties = dict(as_object(schema.get("properties")))
    strategies = {parameter.parameter_name: parameter for parameter in assigned}
    hidden = {name for name, p in strategies.items() if p.assignment_strategy in ("fixed", "variable")}
    hidden |= INJECTED & properties.keys()
    for name, parameter in strategies.items():
        if parameter.assignment_strategy == "prompt" and name in properties:
            own, hint = as_object(properties[name]), parameter.assignment_value
            told = own.get("description")
            text = f"{hint}\n{told}" if isinstance(told, str) and told else hint
            properties[name] = {**own, "description": text}
    schema["type"] = "object"
    schema["properties"] = {name: own for name, own in properties.items() if name not in hidden}
    schema["required"] = [name for name in _required(tool) if name not in hidden]
    return schema


# --- calls -----------------------------------------------------------------------------------------


def call_arguments(
    tool: TaskTool, chosen: Mapping[str, JsonValue], context: CallContext
) -> dict[str, object]:
    """What the tool is called with, each value as the JSON type of its parameter's schema. Raises
    VariablesMissing."""
    properties = as_object(tool.listed.parameters.get("properties"))
    required = _required(tool.listed)
    arguments: dict[str, object] = dict(chosen)
    missing: list[str] = []
    for parameter in tool.assigned:
        name, assigned = parameter.parameter_name, parameter.assignment_value
        # The JSON types that a parameter's schema names, null aside; empty where it names none.
        schema = properties.get(name)
        named = as_object(schema).get("type")
        every = cast("list[object]", named) if isinstance(named, list) else [named]
        types = frozenset(kind for kind in every if isinstance(kind, str) and kind != "null")
        if parameter.assignment_strategy == "fixed":
            arguments[name] = _fixed(assigned, types)
        elif parameter.assignment_strategy == "variable":
            arguments.pop(name, None)
            value = context.memory.value_of(assigned)
            if value is not None:
                arguments[name] = _fitted(value, types)
            elif name in required:
                missing.append(assigned)
    if missing:
        raise VariablesMissing(missing)
    injected = context.injected()
    return arguments | {name: value for name, value in injected.items() if name in properties}


def _fixed(text: str, types: frozenset[str]) -> object:
    """A fixed value is written as text; it is read as JSON where the parameter is no text."""
    if not types or "string" in types:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _fitted(value: JsonValue, types: frozenset[str]) -> object:
    """A variable's value as text where the parameter is text: of a phone its number, else as JSON."""
    if isinstance(value, str) or types != frozenset({"string"}):
        return value
    if isinstance(value, dict) and value.keys() == {"country", "type", "number"}:
        return value["number"]
    return to_json(value).decode()  # of numbers beyond 64 bits, too


def _required(tool: McpTool) -> list[str]:
    named = tool.parameters.get("required")
    every = cast("list[object]", named) if isinstance(named, list) else []
    return [name for name in every if isinstance(name, str)]
