"""Rules about what can be done on which channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flow_engine.documents import Channel
from flow_engine.documents.wording import listed
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection

Channels = frozenset[Channel]


@dataclass(frozen=True, slots=True)
class Presence:
    """`offered`: the version's channels on which each task may be entered; `entered`: those on which a
    chain of tasks leads into it."""

    offered: Mapping[str, Channels]
    entered: Mapping[str, Channels]


def presence(inspection: Inspection) -> Presence:
    """Follow contacts from the first task, where they start on every channel of the version.

    A contact keeps its channel, but a conversation that outlives it goes on in the same task with a
    contact on any other (F28).
    """
    every: Channels = frozenset(inspection.version.channels)
    offered = {
        task.id: every if task.channels is None else every & frozenset(task.channels)
        for task in inspection.version.tasks
    }
    entered: dict[str, Channels] = dict.fromkeys(inspection.tasks, frozenset())
    entered[inspection.version.first_task] = every
    waiting = [inspection.version.first_task]
    while waiting:
        task_id = waiting.pop()
        left_on = every if inspection.tasks[task_id].closure_config.multi_contact else entered[task_id]
        for target in inspection.connections[task_id]:
            now = entered[target] | (left_on & offered[target])
            if now != entered[target]:
                entered[target] = now
                waiting.append(target)
    return Presence(offered, entered)


def channel_rules(inspection: Inspection) -> Findings:
    """The rules of this file that share what `presence` worked out."""
    if not inspection.version.channels:
        yield LintFinding("/channels", "no_channels", "no contact can start: there is no channel")
        return
    if inspection.version.first_task not in inspection.tasks:
        return
    found = presence(inspection)
    yield from _tasks_without_channel(inspection, found)
    yield from _first_task(inspection)
    yield from _unreachable_on_channel(inspection, found)
    yield from _dead_ends_on_channel(inspection, found)
    yield from _channels_without_end(inspection, found)


def _tasks_without_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        if not found.offered[task.id]:
            yield LintFinding(
                pointer("tasks", number, "channels"),
                "task_without_channel",
                f"{inspection.name(task.id)} cannot be entered on any channel of the version: "
                f"{listed(set(inspection.version.channels))}",
            )


def _first_task(inspection: Inspection) -> Findings:
    version = inspection.version
    first = inspection.tasks[version.first_task]
    if first.channels is None:
        return
    meant = f"{inspection.name(first.id)}, which is meant for {listed(set(first.channels))}"
    for number, channel in enumerate(version.channels):
        if channel not in first.channels:
            yield LintFinding(
                pointer("channels", number),
                "channel_without_first_task",
                f"contacts on {channel!r} start in {meant}",
            )
    for number, channel in enumerate(version.mandatory_channels):
        if channel not in first.channels:
            yield LintFinding(
                pointer("mandatoryChannels", number),
                "mandatory_channel_not_covered",
                f"{channel!r} is mandatory, but contacts on it start in {meant}",
            )


def _unreachable_on_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        missing = found.offered[task.id] - found.entered[task.id]
        if task.id not in inspection.reachable or not missing:
            continue
        if task.channels is None:
            # Meant for wherever it is reached. Only where such a stretch begins is it worth a word.
            before = [p for p in inspection.offered_by[task.id] if p in inspection.reachable]
            missing = frozenset(c for c in missing if any(c not in found.offered[p] for p in before))
        if missing:
            place = ("tasks", number) if task.channels is None else ("tasks", number, "channels")
            yield LintFinding(
                pointer(*place),
                "task_unreachable_on_channel",
                f"{inspection.name(task.id)} is offered on {listed(missing)}, but every chain of tasks that "
                "leads to it passes a task which is not",
            )


def _dead_ends_on_channel(inspection: Inspection, found: Presence) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        entered = found.entered[task.id]
        onward = _union(found.offered[target] for target in inspection.connections[task.id])
        stuck = entered - onward
        if stuck and entered & onward and not inspection.closes(task):
            yield LintFinding(
                pointer("tasks", number, "connectedTasks"),
                "dead_end_on_channel",
                f"on {listed(stuck)} no task can be entered from {inspection.name(task.id)}: none of those "
                "that it leads to is available there",
            )


def _channels_without_end(inspection: Inspection, found: Presence) -> Findings:
    served = _union(found.entered[task_id] for task_id in inspection.ends)
    if not served:
        return
    ends = listed(inspection.tasks[end].effective_name for end in inspection.ends if found.entered[end])
    for number, channel in enumerate(inspection.version.channels):
        if channel not in served:
            yield LintFinding(
                pointer("channels", number),
                "channel_without_end",
                f"on {channel!r} no contact can reach a task in which this flow ends: {ends}",
            )


def _union(sets: Iterable[Channels]) -> Channels:
    none: Channels = frozenset()
    return none.union(*sets)


RULES: tuple[Rule, ...] = (channel_rules,)
