"""All rules by which a version that satisfies the schema is refused nevertheless (F3, F4, F5, F9).

What is only suspicious is found by `flow_engine/linting`. Drafts are not checked: they never run (F8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from flow_engine.documents.model import FlowVersion
from flow_engine.documents.naming import normalise_name
from flow_engine.documents.outline import Entry, Mention, Outline, ServerOutline, TaskOutline, outline_of
from flow_engine.documents.shape import DocumentLimits
from flow_engine.documents.wording import listed, quoted
from flow_engine.errors import Finding


@dataclass(frozen=True, slots=True)
class ReviewEnvironment:
    """What the platform offers at the time of the save: API versions, audio presets, prompt languages."""

    api_versions: frozenset[str]
    audio_presets: frozenset[str]
    system_prompt_languages: frozenset[str]


def check_version(
    version: FlowVersion, environment: ReviewEnvironment, *, limits: DocumentLimits | None = None
) -> list[Finding]:
    """Every error that refuses a version whose schema is sound. Empty for a draft."""
    outline = outline_of(version.model_dump(by_alias=True, exclude_unset=True, mode="json"))
    return list(check_outline(outline, limits=limits or DocumentLimits(), environment=environment))


def check_outline(
    outline: Outline | None, *, limits: DocumentLimits, environment: ReviewEnvironment | None
) -> Iterator[Finding]:
    """The same for a document that may break the schema: what can be told of it is checked."""
    if outline is None:
        return
    rules: tuple[Iterable[Finding], ...] = (
        _too_many_tasks(outline, limits),
        _duplicates(outline),
        _variable_names(outline.variables or ()),
        _task_names(outline.tasks or ()),
        _mandatory_channels(outline),
        _unknown_tasks(outline),
        _unknown_variables(outline),
        _unknown_checkpoints(outline),
        _unknown_servers_and_tools(outline),
        _unavailable(outline, environment) if environment else (),
    )
    for rule in rules:
        yield from rule


def _too_many_tasks(outline: Outline, limits: DocumentLimits) -> Iterator[Finding]:
    count = len(outline.tasks or ())
    if count > limits.max_tasks:
        yield Finding(
            "/tasks", "too_many_tasks", f"{count} tasks, at most {limits.max_tasks} are accepted in a version"
        )


# --- identity ---------------------------------------------------------------------------------


def _duplicates(outline: Outline) -> Iterator[Finding]:
    tasks = outline.tasks or ()
    for entries in (outline.variables, outline.checkpoints, [task.entry for task in tasks]):
        yield from _repeated((entry.id for entry in entries or ()), "duplicate_id")
    for task in tasks:
        yield from _repeated((entry.id for entry in task.checkpoints), "duplicate_id")
    servers = [server.entry for server in outline.servers or ()]
    for entries in (outline.variables, outline.checkpoints, servers, outline.reasons, outline.results):
        yield from _repeated((entry.name for entry in entries or ()), "duplicate_name")


def _repeated(
    mentions: Iterable[Mention | None], code: str, key: Callable[[str], str] = str
) -> Iterator[Finding]:
    first: dict[str, Mention] = {}
    for mention in mentions:
        if mention is None:
            continue
        earlier = first.setdefault(key(mention.text), mention)
        if earlier is not mention:
            taken = f"{quoted(mention.text)} is taken already, by {quoted(earlier.text)} at {earlier.pointer}"
            yield Finding(mention.pointer, code, taken)


def _task_names(tasks: Iterable[TaskOutline]) -> Iterator[Finding]:
    """Names are compared normalised; a task without one is called by its id (F4)."""
    ids: set[str] = set()
    named: list[Mention] = []
    for task in tasks:
        entry = task.entry
        name = entry.name if entry.name and entry.name.text.strip() else entry.id
        # An unnamed task whose id is taken has been reported as that already.
        if name and not (name is entry.id and name.text in ids):
            named.append(name)
        if entry.id:
            ids.add(entry.id.text)
    yield from _repeated(named, "duplicate_name", normalise_name)


def _variable_names(variables: Iterable[Entry]) -> Iterator[Finding]:
    """Callers may use a variable's id or its name, so a name must not be another one's id (F5)."""
    variables = tuple(variables)
    owners = {entry.id.text: entry for entry in variables if entry.id}
    for entry in variables:
        if entry.name is None:
            continue
        owner = owners.get(entry.name.text)
        if owner and owner.id and entry.id and owner.id.text != entry.id.text:
            yield Finding(
                entry.name.pointer,
                "name_is_other_id",
                f"{quoted(entry.name.text)} is the '_id' of another variable, at {owner.id.pointer}",
            )


# --- references -------------------------------------------------------------------------------


def _mandatory_channels(outline: Outline) -> Iterator[Finding]:
    if outline.channels is None:
        return
    channels = {channel.text for channel in outline.channels}
    for channel in outline.mandatory_channels:
        if channel.text not in channels:
            yield Finding(
                channel.pointer,
                "mandatory_channel_not_in_channels",
                f"{quoted(channel.text)} is not among 'channels': {listed(channels)}",
            )


def _unknown_tasks(outline: Outline) -> Iterator[Finding]:
    if outline.tasks is None:
        return
    known = _Known("task", "unknown_task", _ids(task.entry for task in outline.tasks))
    if outline.first_task:
        yield from known.missing(outline.first_task)
    for task in outline.tasks:
        yield from known.missing(*task.connected)


def _unknown_variables(outline: Outline) -> Iterator[Finding]:
    if outline.variables is not None:
        known = _Known("variable", "unknown_variable", _ids(outline.variables))
        for task in outline.tasks or ():
            yield from known.missing(*task.variables)


def _unknown_checkpoints(outline: Outline) -> Iterator[Finding]:
    if outline.checkpoints is not None:
        known = _Known("checkpoint", "unknown_checkpoint", _ids(outline.checkpoints))
        for task in outline.tasks or ():
            yield from known.missing(*(entry.id for entry in task.checkpoints if entry.id))


def _unknown_servers_and_tools(outline: Outline) -> Iterator[Finding]:
    if outline.servers is None:
        return
    tools = _tools_by_server(outline.servers)
    known_servers = _Known("MCP server", "unknown_mcp_server", frozenset(tools))
    known_tools = {
        server: _Known(
            f"tool included from MCP server {quoted(server)}", "unknown_mcp_tool", frozenset(names)
        )
        for server, names in tools.items()
    }
    for task in outline.tasks or ():
        yield from known_servers.missing(*task.servers)
        for mention in task.tools:
            if mention.server in known_tools:
                yield from known_tools[mention.server].missing(mention.tool)


def _tools_by_server(servers: Iterable[ServerOutline]) -> dict[str, set[str]]:
    tools: dict[str, set[str]] = {}
    for server in servers:
        if server.entry.name:
            tools.setdefault(server.entry.name.text, set()).update(server.tools)
    return tools


def _unavailable(outline: Outline, environment: ReviewEnvironment) -> Iterator[Finding]:
    if outline.api_version:
        known = _Known("API version", "unknown_api_version", environment.api_versions)
        yield from known.missing(outline.api_version)
    if outline.audio_preset:
        known = _Known("audio preset", "unknown_audio_preset", environment.audio_presets)
        yield from known.missing(outline.audio_preset)


@dataclass(frozen=True)
class _Known:
    """The names that references of one kind may use."""

    what: str
    code: str
    names: frozenset[str]

    def missing(self, *references: Mention) -> Iterator[Finding]:
        for reference in references:
            if reference.text not in self.names:
                message = f"{quoted(reference.text)} is no {self.what}; known: {self._listed}"
                yield Finding(reference.pointer, self.code, message)

    @cached_property
    def _listed(self) -> str:
        return listed(self.names)


def _ids(entries: Iterable[Entry]) -> frozenset[str]:
    return frozenset(entry.id.text for entry in entries if entry.id)
