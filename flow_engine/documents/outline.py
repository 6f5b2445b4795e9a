"""What the reference checks read of a version, taken from raw JSON whether it is sound or not.

A part that the schema refuses is None here, or missing from its tuple's item, so that one wrong field
does not hide the errors of all the others. Everything carries its place as a JSON pointer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from flow_engine.errors import pointer

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Mention:
    """A text and where it stands: a name, an id, or a reference to one."""

    text: str
    pointer: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Something with an identity: a variable, a task, a checkpoint, an MCP server, a reason, a result."""

    id: Mention | None
    name: Mention | None


@dataclass(frozen=True, slots=True)
class ServerOutline:
    entry: Entry
    tools: frozenset[str]


@dataclass(frozen=True, slots=True)
class ToolMention:
    """A tool that a task selects from a server, and the variables that its parameters are taken from."""

    server: str
    tool: Mention


@dataclass(frozen=True, slots=True)
class TaskOutline:
    entry: Entry
    connected: tuple[Mention, ...]
    variables: tuple[Mention, ...]
    checkpoints: tuple[Entry, ...]
    servers: tuple[Mention, ...]
    tools: tuple[ToolMention, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """None where the document does not tell: nothing can then be said about references to it."""

    first_task: Mention | None
    api_version: Mention | None
    audio_preset: Mention | None
    channels: tuple[Mention, ...] | None
    mandatory_channels: tuple[Mention, ...]
    variables: tuple[Entry, ...] | None
    tasks: tuple[TaskOutline, ...] | None
    checkpoints: tuple[Entry, ...] | None
    servers: tuple[ServerOutline, ...] | None
    reasons: tuple[Entry, ...]
    results: tuple[Entry, ...]


def outline_of(raw: object) -> Outline | None:
    """None for a draft, or when it cannot be told that the document is none: drafts are not checked."""
    if not isinstance(raw, dict):
        return None
    document = cast("JsonObject", raw)
    if document.get("draft") is not False:
        return None
    return Outline(
        first_task=_text(document, "firstTask", ""),
        api_version=_text(document, "apiVersion", ""),
        audio_preset=_audio_preset(document),
        channels=_texts(document, "channels", "") if _has_list(document, "channels") else None,
        mandatory_channels=_texts(document, "mandatoryChannels", ""),
        variables=_entries(document, "variables", "") if _has_list(document, "variables") else None,
        tasks=_tasks(document) if _has_list(document, "tasks") else None,
        checkpoints=_entries(document, "checkpoints", "") if _has_list(document, "checkpoints") else None,
        servers=_servers(document) if _has_list(document, "mcpServers") else None,
        reasons=_entries(document, "reasonsOfContact", ""),
        results=_entries(document, "results", ""),
    )


def _audio_preset(document: JsonObject) -> Mention | None:
    media = _object(document.get("mediaConfig"))
    return _text(_object(media.get("audio")), "presetId", pointer("mediaConfig", "audio"))


def _tasks(document: JsonObject) -> tuple[TaskOutline, ...]:
    return tuple(_task(task, place) for task, place in _objects(document, "tasks", ""))


def _task(task: JsonObject, place: str) -> TaskOutline:
    variables = [
        variable
        for parameter, at in _objects(task, "transitionParameters", place)
        if (variable := _text(parameter, "variableId", at))
    ]
    servers: list[Mention] = []
    tools: list[ToolMention] = []
    for selection, at in _objects(task, "mcpToolSelection", place):
        server = _text(selection, "mcpServerName", at)
        if server:
            servers.append(server)
        for tool, tool_at in _objects(selection, "selectedTools", at):
            name = _text(tool, "toolName", tool_at)
            if server and name:
                tools.append(ToolMention(server.text, name))
            variables.extend(_assigned_variables(tool, tool_at))
    return TaskOutline(
        entry=_entry(task, place),
        connected=_texts(task, "connectedTasks", place),
        variables=tuple(variables),
        checkpoints=_entries(task, "enabledCheckpoints", place),
        servers=tuple(servers),
        tools=tuple(tools),
    )


def _assigned_variables(tool: JsonObject, place: str) -> Iterator[Mention]:
    for parameter, at in _objects(tool, "toolParameters", place):
        value = _text(parameter, "assignmentValue", at)
        if parameter.get("assignmentStrategy") == "variable" and value:
            yield value


def _servers(document: JsonObject) -> tuple[ServerOutline, ...]:
    return tuple(
        ServerOutline(
            entry=_entry(server, place),
            tools=frozenset(
                name.text
                for tool, at in _objects(server, "includedTools", place)
                if (name := _text(tool, "toolName", at))
            ),
        )
        for server, place in _objects(document, "mcpServers", "")
    )


def _entries(owner: JsonObject, name: str, place: str) -> tuple[Entry, ...]:
    return tuple(_entry(item, at) for item, at in _objects(owner, name, place))


def _entry(item: JsonObject, place: str) -> Entry:
    return Entry(_text(item, "_id", place), _text(item, "name", place))


# --- tolerant reading -------------------------------------------------------------------------


def _has_list(owner: JsonObject, name: str) -> bool:
    return isinstance(owner.get(name), list)


def _list(owner: JsonObject, name: str) -> list[object]:
    value = owner.get(name)
    return cast("list[object]", value) if isinstance(value, list) else []


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _objects(owner: JsonObject, name: str, place: str) -> Iterator[tuple[JsonObject, str]]:
    for number, item in enumerate(_list(owner, name)):
        if isinstance(item, dict):
            yield cast("JsonObject", item), f"{place}/{name}/{number}"


def _texts(owner: JsonObject, name: str, place: str) -> tuple[Mention, ...]:
    return tuple(
        Mention(item, f"{place}/{name}/{number}")
        for number, item in enumerate(_list(owner, name))
        if isinstance(item, str)
    )


def _text(owner: JsonObject, name: str, place: str) -> Mention | None:
    value = owner.get(name)
    return Mention(value, f"{place}/{name}") if isinstance(value, str) else None
