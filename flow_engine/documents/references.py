"""The ids, names and references of a version, taken from raw JSON whether it is sound or not.

A part that the schema refuses is None here, or missing from its tuple's item, so that one wrong field
does not hide the errors of all the others. Everything carries its place as a JSON pointer.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from flow_engine.errors import pointer
from flow_engine.json_values import as_object
from flow_engine.task_types import ROUTED_TYPES
from flow_engine.templates import is_template
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VARIABLE_TYPES, VariableType

JsonObject = Mapping[str, object]


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


def references_of(raw: object) -> References | None:
    """None for a draft: drafts are not checked. What does not tell whether it is one is checked as a version.
    `raw` is decoded JSON, whatever it holds."""
    if not isinstance(raw, dict):
        return None
    document = cast("JsonObject", raw)
    if document.get("draft") is True:
        return None
    audio = as_object(as_object(document.get("mediaConfig")).get("audio"))
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
            ServerReferences(_identity(server, place), _names_of_tools(server, place))
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
                scale=(as_object(card.get("scale")).get("min"), as_object(card.get("scale")).get("max")),
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


def _names_of_tools(server: JsonObject, place: str) -> frozenset[str]:
    """A text in place of a tool is a mistake of its own, so it counts as its name."""
    tools = _objects(server, "includedTools", place)
    named = {name.text for tool, at in tools if (name := _text(tool, "toolName", at))}
    return frozenset(named | {each.text for each in _texts(server, "includedTools", place)})


def _identities(owner: JsonObject, name: str, place: str) -> tuple[Identity, ...]:
    return tuple(_identity(item, at) for item, at in _objects(owner, name, place))


def _identity(item: JsonObject, place: str) -> Identity:
    return Identity(_text(item, "_id", place), _text(item, "name", place))


# --- texts in a language of their own: templates, conditions, paths into results ----------------


@dataclass(frozen=True, slots=True)
class Texts:
    """All texts that are compiled, in the order of the document, and what conditions may name: None where an
    id or a name of one cannot be read. A variable whose type or values are unsound counts as custom: nothing
    is known of what it holds."""

    templates: tuple[Reference, ...]
    conditions: tuple[Reference, ...]
    paths: tuple[Reference, ...]
    variables: tuple[VariableSpec, ...] | None
    tasks: frozenset[str] | None


def texts_of(raw: object) -> Texts | None:
    """None where `references_of` is. `raw` is decoded JSON, whatever it holds."""
    references = references_of(raw)
    if references is None:
        return None
    document = cast("JsonObject", raw)
    templates = [_text(document, "globalPrompt", "")]
    conditions: list[Reference | None] = []
    paths: list[Reference] = []
    for task, place in _objects(document, "tasks", ""):
        templates += [_text(task, "prompt", place), _text(task, "description", place)]
        conditions.append(_text(as_object(task.get("entryCondition")), "when", f"{place}/entryCondition"))
        for target, way in as_object(task.get("connectionConditions")).items():
            conditions.append(_text(as_object(way), "when", f"{place}/connectionConditions{pointer(target)}"))
        for selection, at in _objects(task, "mcpToolSelection", place):
            for tool, tool_at in _objects(selection, "selectedTools", at):
                conditions.append(_text(tool, "when", tool_at))
                for name, path in as_object(tool.get("resultMapping")).items():
                    if isinstance(path, str):
                        paths.append(Reference(path, f"{tool_at}/resultMapping{pointer(name)}"))
        conditions += [_text(each, "when", at) for each, at in _objects(task, "enabledCheckpoints", place)]
    conditions += [_text(each, "when", at) for each, at in _objects(document, "checkpoints", "")]
    identities = [task.identity for task in references.tasks or ()]
    return Texts(
        templates=(*_given(templates), *(each for each in _settings(document) if is_template(each.text))),
        conditions=_given(conditions),
        paths=tuple(paths),
        variables=_specs(document),
        tasks=frozenset(each.id.text for each in identities if each.id)
        if len(_list(document, "tasks")) == len([each for each in identities if each.id])
        else None,
    )


def _settings(document: JsonObject) -> Iterator[Reference]:
    """What may be a template among the settings of recognisers, voices and models."""
    media = as_object(document.get("mediaConfig"))
    audio = as_object(media.get("audio"))
    owners: list[tuple[JsonObject, str]] = []
    for kind in ("stt", "tts"):
        speech, place = as_object(audio.get(kind)), pointer("mediaConfig", "audio", kind)
        owners += [(as_object(speech.get(name)), f"{place}/{name}") for name in ("default", "fallback")]
        entries = _objects(speech, "languageCustomConfig", place)
        owners += [(as_object(entry.get("config")), f"{at}/config") for entry, at in entries]
    owners += [
        (as_object(as_object(media.get(name)).get("llm")), f"/mediaConfig/{name}/llm")
        for name in ("audio", "text")
    ]
    for owner, place in owners:
        names = ("model",) if place.endswith("/llm") else ("provider", "voice")
        yield from _given(_text(owner, name, place) for name in names)


def _specs(document: JsonObject) -> tuple[VariableSpec, ...] | None:
    specs: list[VariableSpec] = []
    for variable in _list(document, "variables"):
        each = as_object(variable)
        identity = _identity(each, "")
        if identity.id is None or identity.name is None:
            return None
        kind, members = each.get("type"), each.get("enumValues", [])
        listed = cast("list[object]", members) if isinstance(members, list) else None
        sound = kind in VARIABLE_TYPES and listed is not None and all(map(_is_member, listed))
        values = cast("list[str | int | float]", listed) if sound else ()
        told = cast("VariableType", kind) if sound else "custom"
        specs.append(VariableSpec(identity.id.text, identity.name.text, told, enum_values=tuple(values)))
    return tuple(specs) if _has_list(document, "variables") else None


def _is_member(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _given(references: Iterable[Reference | None]) -> tuple[Reference, ...]:
    return tuple(each for each in references if each is not None)


# --- ids and times of any document, drafts among them -------------------------------------------


def identities_of(raw: object) -> Iterator[Reference]:
    """The `_id` of the version and of its tasks, variables and checkpoints, where they are texts. `raw` is
    decoded JSON; never raises."""
    document = as_object(raw)
    owners = [(document, "")]
    for name in ("tasks", "variables", "checkpoints"):
        owners += _objects(document, name, "")
    for owner, place in owners:
        if (identity := _text(owner, "_id", place)) is not None:
            yield identity


def durations_of(raw: object) -> Iterator[tuple[int | float, str]]:
    """Time limits of closures, and timeouts of routings and approvals where they mean something, with their
    pointers. In seconds; what is no number is passed over, since the schema's errors say so."""
    document = as_object(raw)
    found = [(document, "closureConfig", "conversationTimeLimit", "")]
    for task, place in _objects(document, "tasks", ""):
        found.append((task, "closureConfig", "conversationTimeLimit", place))
        if task.get("type") in ROUTED_TYPES:
            found += [(task, "routingParameters", "timeout", place), (task, "", "approvalTimeout", place)]
    for owner, within, name, place in found:
        value = (as_object(owner.get(within)) if within else owner).get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield value, place + pointer(*filter(None, (within, name)))


# --- tolerant reading -------------------------------------------------------------------------


def _has_list(owner: JsonObject, name: str) -> bool:
    return isinstance(owner.get(name), list)


def _list(owner: JsonObject, name: str) -> list[object]:
    value = owner.get(name)
    return cast("list[object]", value) if isinstance(value, list) else []


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
    return tuple(Reference(key, f"{place}/{name}{pointer(key)}") for key in as_object(owner.get(name)))


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
