"""All rules by which a version that satisfies the schema is refused nevertheless (F3, F4, F5, F9).

What is only suspicious is found by `flow_engine/linting`. Drafts are not checked: they never run (F8).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flow_engine.documents.findings import listed, quoted
from flow_engine.documents.model import FlowVersion
from flow_engine.documents.references import (
    Identity,
    Reference,
    References,
    durations_of,
    identities_of,
    normalise_name,
    references_of,
)
from flow_engine.documents.scalars import LONGEST_S
from flow_engine.errors import Finding

LONGEST_ID = 512
"""Characters: requests name versions and tasks by ids of at most this length."""
MOST_SCORECARDS, MOST_CRITERIA, GREATEST_WEIGHT = 10, 20, 1_000_000
FALLBACK_LANGUAGE = "en-US"


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Bounds of a document (F9): bytes of JSON, levels of nested objects and arrays, tasks."""

    max_bytes: int = 1_000_000
    max_depth: int = 100
    max_tasks: int = 300


@dataclass(frozen=True, slots=True)
class ReviewEnvironment:
    """What the platform offers and allows at the time of the save.

    `url_refusal` tells why the engine may not call a URL as far as the text of the URL shows it, None when
    nothing forbids it.
    """

    api_versions: frozenset[str]
    audio_presets: frozenset[str]
    system_prompt_languages: frozenset[str]
    url_refusal: Callable[[str], str | None] = lambda url: None


def prompt_language(version: FlowVersion, available: Collection[str]) -> str:
    """The language of the system prompts (F26). BCP 47 tags."""
    wanted = (version.system_prompts_language, version.default_language)
    return next((language for language in wanted if language in available), FALLBACK_LANGUAGE)


def check_version(
    raw: object, *, limits: DocumentLimits, environment: ReviewEnvironment | None
) -> Iterator[Finding]:
    """Every error that refuses a version whose schema is sound; of one that breaks it, what can be checked.

    With an `environment` the document is about to be saved: API versions and presets are looked up, and what
    could not be used is refused. A version that is stored already was accepted by the rules of its day, and
    runs.
    """
    if environment is not None:
        # Ids that no URL can hold, and times that no clock can reach; of drafts too.
        for identity in identities_of(raw):
            text = identity.text
            if not text.strip() or "/" in text or len(text) > LONGEST_ID:
                yield Finding(
                    identity.pointer,
                    "invalid_id",
                    f"must be a text of 1 to {LONGEST_ID} characters without '/', not {quoted(text)}",
                )
        for seconds, place in durations_of(raw):
            if not 0 <= seconds <= LONGEST_S:
                told = f"must be between 0 and {LONGEST_S} seconds (10 years), not {quoted(seconds)}"
                yield Finding(place, "out_of_range", told)
    references = references_of(raw)
    if references is None:
        return
    if len(references.tasks or ()) > limits.max_tasks:
        count = len(references.tasks or ())
        yield Finding(
            "/tasks", "too_many_tasks", f"{count} tasks, at most {limits.max_tasks} are accepted in a version"
        )
    for rule in RULES:
        yield from rule(references)
    if environment is not None:
        yield from misplaced_approvals(references)
        for what, code, reference, names in (
            ("API version", "unknown_api_version", references.api_version, environment.api_versions),
            ("audio preset", "unknown_audio_preset", references.audio_preset, environment.audio_presets),
        ):
            if reference is not None:
                yield from _Known(what, code, names).missing(reference)


# --- identity ---------------------------------------------------------------------------------


def duplicates(references: References) -> Iterator[Finding]:
    tasks = references.tasks or ()
    for identities in (references.variables, references.checkpoints, [task.identity for task in tasks]):
        yield from _repeated((identity.id for identity in identities or ()), "duplicate_id")
    for task in tasks:
        yield from _repeated((identity.id for identity in task.checkpoints), "duplicate_id")
    servers = [server.identity for server in references.servers or ()]
    named = (references.variables, references.checkpoints, servers, references.reasons, references.results)
    for identities in named:
        yield from _repeated((identity.name for identity in identities or ()), "duplicate_name")


def scorecards(references: References) -> Iterator[Finding]:
    if len(references.scorecards) > MOST_SCORECARDS:
        message = f"at most {MOST_SCORECARDS} are accepted in a version"
        yield Finding("/scorecards", "too_many_scorecards", message)
    yield from _repeated((card.identity.name for card in references.scorecards), "duplicate_name")
    for card in references.scorecards:
        yield from _repeated((criterion.name for criterion in card.criteria), "duplicate_name")
        if not 1 <= len(card.criteria) <= MOST_CRITERIA:
            message = f"1 to {MOST_CRITERIA} criteria are accepted"
            yield Finding(f"{card.place}/criteria", "out_of_range", message)
        for weight, place in card.weights:
            if isinstance(weight, int | float) and not 0 < weight <= GREATEST_WEIGHT:
                message = f"must be above 0 and at most {GREATEST_WEIGHT}, not {quoted(weight)}"
                yield Finding(place, "out_of_range", message)
        low, high = card.scale
        if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
            message = f"must be above 'min', which is {quoted(low)}"
            yield Finding(f"{card.place}/scale/max", "out_of_range", message)


def _repeated(
    references: Iterable[Reference | None], code: str, key: Callable[[str], str] = str
) -> Iterator[Finding]:
    first: dict[str, Reference] = {}
    for reference in references:
        if reference is None:
            continue
        earlier = first.setdefault(key(reference.text), reference)
        if earlier is not reference:
            taken = (
                f"{quoted(reference.text)} is taken already, by {quoted(earlier.text)} at {earlier.pointer}"
            )
            yield Finding(reference.pointer, code, taken)


def task_names(references: References) -> Iterator[Finding]:
    """Names are compared normalised; a task without one is called by its id (F4)."""
    ids: set[str] = set()
    named: list[Reference] = []
    for task in references.tasks or ():
        identity = task.identity
        name = identity.name if identity.name and identity.name.text.strip() else identity.id
        # An unnamed task whose id is taken has been reported as that already.
        if name and not (name is identity.id and name.text in ids):
            named.append(name)
        if identity.id:
            ids.add(identity.id.text)
    yield from _repeated(named, "duplicate_name", normalise_name)


def variable_names(references: References) -> Iterator[Finding]:
    """Callers may use a variable's id or its name, so a name must not be another one's id (F5)."""
    variables = references.variables or ()
    owners = {identity.id.text: identity for identity in variables if identity.id}
    for identity in variables:
        if identity.name is None:
            continue
        owner = owners.get(identity.name.text)
        if owner and owner.id and identity.id and owner.id.text != identity.id.text:
            yield Finding(
                identity.name.pointer,
                "name_is_other_id",
                f"{quoted(identity.name.text)} is the '_id' of another variable, at {owner.id.pointer}",
            )


# --- references -------------------------------------------------------------------------------


def mandatory_channels(references: References) -> Iterator[Finding]:
    if references.channels is None:
        return
    channels = {channel.text for channel in references.channels}
    for channel in references.mandatory_channels:
        if channel.text not in channels:
            yield Finding(
                channel.pointer,
                "mandatory_channel_not_in_channels",
                f"{quoted(channel.text)} is not among 'channels': {listed(channels)}",
            )


def unknown_tasks(references: References) -> Iterator[Finding]:
    if references.tasks is None:
        return
    identities = [task.identity for task in references.tasks]
    ids = _ids(identities)
    if identities and not ids:
        return  # that all ids are missing, as where they are written `id`, is told of each task already
    known = _Known("task", "unknown_task", ids, _named(identities))
    if references.first_task:
        yield from known.missing(references.first_task)
    yield from known.missing(*references.global_tasks)
    for task in references.tasks:
        yield from known.missing(*task.connected, *task.conditioned, *task.excluded)


def unknown_variables(references: References) -> Iterator[Finding]:
    if references.variables is not None:
        variables = references.variables
        known = _Known("variable", "unknown_variable", _ids(variables), _named(variables))
        for task in references.tasks or ():
            yield from known.missing(*task.variables)


def misplaced_approvals(references: References) -> Iterator[Finding]:
    for task in references.tasks or ():
        if task.approval is not None:
            yield Finding(
                task.approval.pointer,
                "approval_not_supervised",
                f"a task of type {quoted(task.approval.text)} has nobody who approves: accepted in tasks of "
                "type 'AIS'",
            )


def unknown_checkpoints(references: References) -> Iterator[Finding]:
    if references.checkpoints is not None:
        known = _Known("checkpoint", "unknown_checkpoint", _ids(references.checkpoints))
        for task in references.tasks or ():
            yield from known.missing(*(identity.id for identity in task.checkpoints if identity.id))


def unknown_servers_and_tools(references: References) -> Iterator[Finding]:
    if references.servers is None:
        return
    tools: dict[str, set[str]] = {}
    for server in references.servers:
        if server.identity.name:
            tools.setdefault(server.identity.name.text, set()).update(server.tools)
    known_servers = _Known("MCP server", "unknown_mcp_server", frozenset(tools))
    known_tools = {
        server: _Known(
            f"tool included from MCP server {quoted(server)}", "unknown_mcp_tool", frozenset(names)
        )
        for server, names in tools.items()
    }
    for task in references.tasks or ():
        yield from known_servers.missing(*task.servers)
        for reference in task.tools:
            if reference.server in known_tools:
                yield from known_tools[reference.server].missing(reference.tool)


@dataclass(frozen=True)
class _Known:
    """The names that references of one kind may use; `named` are ids by the names that are no ids."""

    what: str
    code: str
    names: frozenset[str]
    named: Mapping[str, str] = field(default_factory=dict[str, str])

    def missing(self, *references: Reference) -> Iterator[Finding]:
        for reference in references:
            if reference.text in self.names:
                continue
            wrong = f"{quoted(reference.text)} is no {self.what}"
            if not reference.text.strip():
                wrong = f"no {self.what} is chosen, and one has to be"
            elif (own_id := self.named.get(reference.text)) is not None:
                wrong = f"{quoted(reference.text)} is the name of {quoted(own_id)}, and ids count here"
            yield Finding(reference.pointer, self.code, f"{wrong}; known: {self.alternatives}")

    @cached_property
    def alternatives(self) -> str:
        return listed(self.names)


def _ids(identities: Iterable[Identity]) -> frozenset[str]:
    return frozenset(identity.id.text for identity in identities if identity.id)


def _named(identities: Iterable[Identity]) -> Mapping[str, str]:
    return {each.name.text: each.id.text for each in identities if each.name and each.id}


RULES: tuple[Callable[[References], Iterator[Finding]], ...] = (
    duplicates,
    scorecards,
    variable_names,
    task_names,
    mandatory_channels,
    unknown_tasks,
    unknown_variables,
    unknown_checkpoints,
    unknown_servers_and_tools,
)
"""In the order in which their findings are listed."""
