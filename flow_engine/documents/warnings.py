"""All rules by which a version that can run is called suspicious (F9). None of them refuses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flow_engine.documents.checks import ReviewEnvironment
from flow_engine.documents.model import FlowVersion, Task
from flow_engine.documents.naming import normalise_name
from flow_engine.documents.wording import listed, quoted
from flow_engine.errors import Finding, pointer

MANY_CONNECTIONS = 20
"""Connections of one task beyond which a model chooses badly between them."""


def review_version(version: FlowVersion, *, environment: ReviewEnvironment) -> list[Finding]:
    """Every warning about a version that passed the checks. Empty for a draft: it never runs (F8)."""
    if version.draft:
        return []
    rules: tuple[Iterable[Finding], ...] = (
        _languages(version, environment),
        _channels(version),
        _enums(version),
        _unreachable_tasks(version),
        _dead_ends(version),
        _many_connections(version),
        _first_task_parameters(version),
        _ambiguous_names(version),
        _unread_values(version),
    )
    return [finding for rule in rules for finding in rule]


def _languages(version: FlowVersion, environment: ReviewEnvironment) -> Iterator[Finding]:
    # It can run: the default language is used, only no caller can ever be found to speak it.
    if version.default_language not in version.supported_languages:
        yield Finding(
            "/defaultLanguage",
            "default_language_not_supported",
            f"{quoted(version.default_language)} is not among 'supportedLanguages': "
            f"{listed(version.supported_languages)}",
        )
    if version.system_prompts_language not in environment.system_prompt_languages:
        yield Finding(
            "/systemPromptsLanguage",
            "system_prompts_language_unavailable",
            f"there are no system prompts in {quoted(version.system_prompts_language)}, another language's "
            f"are used; available: {listed(environment.system_prompt_languages)}",
        )


def _channels(version: FlowVersion) -> Iterator[Finding]:
    if not version.channels:
        yield Finding("/channels", "no_channels", "no contact can start: there is no channel")
        return
    for number, task in enumerate(version.tasks):
        if task.channels is not None and not set(task.channels) & set(version.channels):
            yield Finding(
                pointer("tasks", number, "channels"),
                "task_without_channel",
                f"{quoted(task.effective_name)} cannot be entered on any channel of the version: "
                f"{listed(set(version.channels))}",
            )
    first = _by_id(version).get(version.first_task)
    if first is None or first.channels is None:
        return
    for number, channel in enumerate(version.channels):
        if channel not in first.channels:
            yield Finding(
                pointer("channels", number),
                "channel_without_first_task",
                f"no contact can start on {channel!r}: the first task accepts {listed(set(first.channels))}",
            )


def _enums(version: FlowVersion) -> Iterator[Finding]:
    for number, variable in enumerate(version.variables):
        if variable.type == "enum" and not variable.enum_values:
            yield Finding(
                pointer("variables", number, "enumValues"),
                "enum_cannot_match",
                f"enum {quoted(variable.name)} has no values, so that no value can ever be stored in it",
            )


def _unreachable_tasks(version: FlowVersion) -> Iterator[Finding]:
    tasks = _by_id(version)
    reached = {version.first_task}
    waiting = [version.first_task]
    while waiting:
        task = tasks.get(waiting.pop())
        new = [target for target in (task.connected_tasks if task else ()) if target not in reached]
        reached.update(new)
        waiting.extend(new)
    for number, task in enumerate(version.tasks):
        if task.id not in reached:
            yield Finding(
                pointer("tasks", number),
                "unreachable_task",
                f"no chain of 'connectedTasks' leads from the first task to {quoted(task.effective_name)}",
            )


def _dead_ends(version: FlowVersion) -> Iterator[Finding]:
    if len(version.tasks) == 1:
        return  # a flow of one task has nowhere to go by design
    for number, task in enumerate(version.tasks):
        if not set(task.connected_tasks) - {task.id}:
            yield Finding(
                pointer("tasks", number, "connectedTasks"),
                "dead_end",
                f"no task can be entered from {quoted(task.effective_name)}: the contact can only end there",
            )


def _many_connections(version: FlowVersion) -> Iterator[Finding]:
    for number, task in enumerate(version.tasks):
        count = len(set(task.connected_tasks))
        if count > MANY_CONNECTIONS:
            yield Finding(
                pointer("tasks", number, "connectedTasks"),
                "too_many_connections",
                f"{quoted(task.effective_name)} leads to {count} tasks, a model chooses well "
                f"between at most {MANY_CONNECTIONS}",
            )


def _first_task_parameters(version: FlowVersion) -> Iterator[Finding]:
    for number, task in enumerate(version.tasks):
        if task.id != version.first_task:
            continue
        for index, parameter in enumerate(task.transition_parameters):
            if parameter.required:
                yield Finding(
                    pointer("tasks", number, "transitionParameters", index),
                    "first_task_requires_parameter",
                    f"{quoted(parameter.variable_id)} is not asked for when a conversation starts",
                )


def _ambiguous_names(version: FlowVersion) -> Iterator[Finding]:
    """A task asked for by another one's id is that other one, whatever is called so (F4)."""
    ids = _by_id(version)
    for number, task in enumerate(version.tasks):
        name = task.effective_name
        meant = next((key for key in (name, normalise_name(name)) if key in ids), task.id)
        if meant != task.id:
            yield Finding(
                pointer("tasks", number, "name"),
                "ambiguous_name",
                f"{quoted(name)} is the '_id' of another task too, and ids are looked at first",
            )


def _unread_values(version: FlowVersion) -> Iterator[Finding]:
    for number, task in enumerate(version.tasks):
        for name in ("hideTranscriptionToHuman", "suspendTranscription"):
            value = (task.model_extra or {}).get(name, False)
            if not isinstance(value, bool):
                yield Finding(
                    pointer("tasks", number, name),
                    "value_ignored",
                    f"only true and false mean something here, {quoted(value)} counts as false",
                )


def _by_id(version: FlowVersion) -> Mapping[str, Task]:
    return {task.id: task for task in version.tasks}
