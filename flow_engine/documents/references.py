"""The ids, names and references of a version, taken from raw JSON whether it is sound or not.

A part that the schema refuses is None here, or missing from its tuple's item, so that one wrong field
does not hide the errors of all the others. Everything carries its place as a JSON pointer.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from flow_engine.errors import pointer
from flow_engine.task_types import ROUTED_TYPES

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Reference:
    """A text and where it stands: a name, an id, or a reference to one. An RFC 6901 pointer."""

    text: str
    pointer: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Something with an identity: a variable, a task, a checkpoint, an MCP server, a reason, a result. None
    for a part that is missing, or no JSON string."""

    id: Reference | None
    name: Reference | None


@dataclass(frozen=True, slots=True)
class ServerReferences:
    identity: Identity
    tools: frozenset[str]


@dataclass(frozen=True, slots=True)
class ToolReference:
    """A tool that a task selects from a server, and the variables that its parameters are taken from."""

    server: str
    tool: Reference


@dataclass(frozen=True, slots=True)
class TaskReferences:
    """`conditioned` are the keys of `connectionConditions`, which name tasks; `excluded` are global tasks.
    `approval` is where a task that no AI writes in asks for approval."""

    identity: Identity
    connected: tuple[Reference, ...]
    conditioned: tuple[Reference, ...]
    excluded: tuple[Reference, ...]
    variables: tuple[Reference, ...]
    checkpoints: tuple[Identity, ...]
    servers: tuple[Reference, ...]
    tools: tuple[ToolReference, ...]
    approval: Reference | None


@dataclass(frozen=True, slots=True)
class ScorecardReferences:
    """`place` is where it stands; `weights` with their pointers and `scale` (min, max) are raw JSON."""

    identity: Identity
    place: str
    criteria: tuple[Identity, ...]
    weights: tuple[tuple[object, str], ...]
    scale: tuple[object, object]


@dataclass(frozen=True, slots=True)
class References:
    """None where the document does not tell: nothing can then be said about references to it."""

    first_task: Reference | None
    global_tasks: tuple[Reference, ...]
    api_version: Reference | None
    audio_preset: Reference | None
    channels: tuple[Reference, ...] | None
    mandatory_channels: tuple[Reference, ...]
    variables: tuple[Identity, ...] | None
    tasks: tuple[TaskReferences, ...] | None
    checkpoints: tuple[Identity, ...] | None
    servers: tuple[ServerReferences, ...] | None
    reasons: tuple[Identity, ...]
    results: tuple[Identity, ...]
    scorecards: tuple[ScorecardReferences, ...]


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds as the document has them, and where they stand."""

    seconds: int | float
    pointer: str


def references_of(raw: object) -> References | None:
    """None for a draft, or when it cannot be told that the document is none: drafts are not checked. `raw` is
    decoded JSON, whatever it holds."""
    if not isinstance(raw, dict):
        return None
    document = cast("JsonObject", raw)
    if document.get("draft") is not False:
        return None
    audio = _object(_object(document.get("mediaConfig")).get("audio"))
    return References(
        first_task=_text(document, "firstTask", ""),
        global_tasks=_texts(document, "globalTasks", ""),
        api_version=_text(document, "apiVersion", ""),
        audio_preset=_text(audio, "presetId", pointer("mediaConfig", "audio")),
        channels=_texts(document, "channels", "") if _has_list(document, "channels") else None,
        mandatory_channels=_texts(document, "mandatoryChannels", ""),
        variables=_identities(document, "variables", "") if _has_list(document, "variables") else None,
        tasks=tuple(_task(task, place) for task, place in _objects(document, "tasks", ""))
        if _has_list(document, "tasks")
        else None,
        checkpoints=_identities(document, "checkpoints", "") if _has_list(document, "checkpoints") else None,
        servers=tuple(
            ServerReferences(
                identity=_identity(server, place),
                tools=frozenset(
                    name.text
                    for tool, at in _objects(server, "includedTools", place)
                    if (name := _text(tool, "toolName", at))
                ),
            )
            for server, place in _objects(document, "mcpServers", "")
        )
        if _has_list(document, "mcpServers")
        else None,
        reasons=_identities(document, "reasonsOfContact", ""),
        results=_identities(document, "results", ""),
        scorecards=tuple(
            ScorecardReferences(
                identity=_identity(card, place),
                place=place,
                criteria=_identities(card, "criteria", place),
                weights=tuple(
                    (item.get("weight", 1), f"{at}/weight") for item, at in _objects(card, "criteria", place)
                ),
                scale=(_object(card.get("scale")).get("min"), _object(card.get("scale")).get("max")),
            )
            for card, place in _objects(document, "scorecards", "")
        ),
    )


def _task(task: JsonObject, place: str) -> TaskReferences:
    variables = [
        variable
        for parameter, at in _objects(task, "transitionParameters", place)
        if (variable := _text(parameter, "variableId", at))
    ]
    servers: list[Reference] = []
    tools: list[ToolReference] = []
    for selection, at in _objects(task, "mcpToolSelection", place):
        server = _text(selection, "mcpServerName", at)
        if server:
            servers.append(server)
        for tool, tool_at in _objects(selection, "selectedTools", at):
            name = _text(tool, "toolName", tool_at)
            if server and name:
                tools.append(ToolReference(server.text, name))
            for parameter, parameter_at in _objects(tool, "toolParameters", tool_at):
                value = _text(parameter, "assignmentValue", parameter_at)
                if parameter.get("assignmentStrategy") == "variable" and value:
                    variables.append(value)
            variables += _texts(tool, "writes", tool_at)
            variables += _keys(tool, "resultMapping", tool_at)
    return TaskReferences(
        identity=_identity(task, place),
        connected=_texts(task, "connectedTasks", place),
        excluded=_texts(task, "excludedGlobalTasks", place),
        conditioned=_keys(task, "connectionConditions", place),
        variables=tuple(variables),
        checkpoints=_identities(task, "enabledCheckpoints", place),
        servers=tuple(servers),
        tools=tuple(tools),
        approval=Reference(str(task.get("type")), f"{place}/approval")
        if task.get("approval") is True and task.get("type") in ("AIO", "HUM")
        else None,
    )


def _identities(owner: JsonObject, name: str, place: str) -> tuple[Identity, ...]:
    return tuple(_identity(item, at) for item, at in _objects(owner, name, place))


def _identity(item: JsonObject, place: str) -> Identity:
    return Identity(_text(item, "_id", place), _text(item, "name", place))


# --- ids and times of any document, drafts among them -------------------------------------------


def identities_of(raw: object) -> Iterator[Reference]:
    """The `_id` of the version and of its tasks, variables and checkpoints, where they are texts. `raw` is
    decoded JSON; never raises."""
    document = _object(raw)
    owners = [(document, "")]
    for name in ("tasks", "variables", "checkpoints"):
        owners += _objects(document, name, "")
    for owner, place in owners:
        if (identity := _text(owner, "_id", place)) is not None:
            yield identity


def durations_of(raw: object) -> Iterator[Duration]:
    """Time limits of closures, and timeouts of routings and approvals where they mean something. In seconds;
    what is no number is passed over, since the schema's errors say so."""
    document = _object(raw)
    yield from _duration(_object(document.get("closureConfig")), "conversationTimeLimit", "/closureConfig")
    for task, place in _objects(document, "tasks", ""):
        closure, routing = _object(task.get("closureConfig")), _object(task.get("routingParameters"))
        yield from _duration(closure, "conversationTimeLimit", f"{place}/closureConfig")
        if task.get("type") in ROUTED_TYPES:
            yield from _duration(routing, "timeout", f"{place}/routingParameters")
            yield from _duration(task, "approvalTimeout", place)


def _duration(owner: JsonObject, name: str, place: str) -> Iterator[Duration]:
    value = owner.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield Duration(value, f"{place}/{name}")


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


def _texts(owner: JsonObject, name: str, place: str) -> tuple[Reference, ...]:
    return tuple(
        Reference(item, f"{place}/{name}/{number}")
        for number, item in enumerate(_list(owner, name))
        if isinstance(item, str)
    )


def _keys(owner: JsonObject, name: str, place: str) -> tuple[Reference, ...]:
    return tuple(Reference(key, f"{place}/{name}{pointer(key)}") for key in _object(owner.get(name)))


def _text(owner: JsonObject, name: str, place: str) -> Reference | None:
    value = owner.get(name)
    return Reference(value, f"{place}/{name}") if isinstance(value, str) else None


# --- how names are compared (F4) ----------------------------------------------------------------

# Canonical combining classes from here on are the accents written above, below or through a letter.
# Lower classes (virama, nukta, the Japanese voicing marks) make another letter, not an accented one.
_FIRST_ACCENT_CLASS = 200


def normalise_name(name: str) -> str:
    """Case folded, accents removed, every run of white space one `_`, none at the ends.

    Idempotent: a normalised name normalises to itself.
    """
    if name.isascii():  # the rest has nothing to do then, and costs ten times as much
        return "_".join(name.casefold().split())
    folded = _without_accents(_without_accents(name).casefold())
    return unicodedata.normalize("NFC", "_".join(folded.split()))


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if unicodedata.combining(char) < _FIRST_ACCENT_CLASS)
