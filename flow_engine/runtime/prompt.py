"""Composition of the prompt (F24), in this order:

    prefix    system sections · global prompt · task prompt · reachable tasks · checkpoints · channel ·
              transfer notice · previous contacts
    volatile  contact data · state of the human part · now · what conditions open and close · what to go on
              with · questions in vain · age of the memory · memory, with what is old in it or contradicted

The prefix stays the same, byte for byte, from the entry of a task to its end as long as the contact
stays the same, so that a model's prompt cache keeps it; its hash tells when it has changed. It is composed
once for all that are equal, so that a prompt costs what is new in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from hashlib import sha256
from operator import is_
from typing import cast

import msgspec
import orjson

from flow_engine.documents import Checkpoint
from flow_engine.masking import Secrets
from flow_engine.runtime.commands import one_line
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.memory import Conflict, MemoryEntry, PreviousContact, is_stale
from flow_engine.runtime.rules import channel_available, missing_variables
from flow_engine.runtime.session import Session
from flow_engine.runtime.storage import Composed
from flow_engine.runtime.tables import memory_rows, render_markdown, render_toon, value_text
from flow_engine.runtime.times import (
    age_of,
    end_of,
    minute_of,
    now_line,
    tenant_zone,
    told_age,
    updated_line,
)
from flow_engine.values import JsonValue
from flow_engine.vocabulary import MemoryFormat

ATTEMPTS_SHOWN_FROM = 2
HISTORY_LINES = 20
HISTORY_CHARACTERS = 8_000
HISTORY_REST_CHARACTERS = 300
"""What is left for the line about the earlier contacts."""
MAX_FIELD_NAME = 200
PREFIX_BYTES = 32 * 1024 * 1024
"""Of composed prefixes that a process keeps."""

PromptSections = Mapping[str, str]
NamedText = tuple[str, str]
"""A section of the prompt: what it is called, and its text, empty for one that is left out."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Prefix:
    """What stays the same. `hash`: 32 hexadecimal digits of the SHA-256 of `text` in UTF-8; `json`: the text
    as it stands in JSON, without its quotes."""

    text: str
    hash: str
    json: bytes

    @classmethod
    def of(cls, text: str) -> "Prefix":
        return cls(text, sha256(text.encode()).hexdigest()[:32], orjson.dumps(text)[1:-1])


@dataclass(frozen=True, slots=True)
class PromptConditions:
    """What the conditions of a flow come to. `unmet`: name and reason of each task that one closes;
    `checkpoints`: the enabled ones that are judged now; `by_the_clock`: all may be otherwise in a moment."""

    unmet: tuple[tuple[str, str], ...]
    checkpoints: tuple[Checkpoint, ...]
    by_the_clock: bool


class Prompt(msgspec.Struct, frozen=True):
    """`conditions`: what they came to, which the clock may change. `suggested`: ids of the tasks that it
    tells the model to go on with, `stale` of the variables that it tells it to confirm."""

    stable: Prefix
    volatile: str
    conditions: PromptConditions | None = None
    suggested: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        return self.stable.text

    @property
    def prefix_hash(self) -> str:
        return self.stable.hash

    @property
    def text(self) -> str:
        return f"{self.prefix}\n\n{self.volatile}"


class PromptInput(msgspec.Struct, frozen=True):
    """Everything a prompt is made from. `memory` is the merged memory (F18), masked already; `secrets` mask
    what others have written, None for a flow without sensitive variables. `conflicts` are by variable id and
    masked as well. Times are in UTC. `conditions` is None for a flow without any, `returns_to` outside of a
    digression. `composed` is what earlier prompts of the conversation have made."""

    flow: CompiledFlow
    session: Session
    sections: PromptSections
    memory: Mapping[str, MemoryEntry]
    memory_updated_at: datetime | None
    previous_contacts: tuple[PreviousContact, ...]
    tenant: Mapping[str, object]
    now: datetime
    memory_format: MemoryFormat
    attempts: Mapping[str, int]
    conditions: PromptConditions | None = None
    returns_to: str | None = None
    suggested: tuple[TaskPlan, ...] = ()
    secrets: Secrets | None = None
    composed: Composed = msgspec.field(default_factory=Composed)
    conflicts: Mapping[str, Conflict] = {}

    def without_secrets(self, text: str) -> str:
        """What a caller or a summary has said."""
        return text if self.secrets is None else self.secrets.text(text)


class Composer:
    """Composes the prompts of one installation, whose sections are the same for a version and a channel.

    Keeps the prefixes that were used last, by all that they are made from: at most `PREFIX_BYTES`."""

    def __init__(self) -> None:
        # a prefix with its text and those of its key: up to four bytes a character
        self._prefixes = Kept[tuple[object, ...], Prefix](
            PREFIX_BYTES, lambda prefix: len(prefix.json) + 2 * len(prefix.text)
        )

    def compose(self, inputs: PromptInput) -> Prompt:
        """Every section in its order. Raises KeyError for a section that the platform's prompts lack."""
        known_by, contact = _of_session(inputs)
        prefix = self._prefixes.get(known_by)
        if prefix is None:
            prefix = Prefix.of(_joined(prefix_sections(inputs)))
            self._prefixes.put(known_by, prefix)
        return Prompt(
            prefix,
            _joined((("contact", contact), *moment_sections(inputs))),
            inputs.conditions,
            tuple([task.id for task in inputs.suggested]) if inputs.suggested else (),
            stale_of(inputs.flow, inputs.memory, inputs.now) if inputs.flow.ageing else (),
        )


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A section of the prompt as it was composed. `volatile`: it may be another with each prompt."""

    name: str
    volatile: bool
    text: str


def prompt_parts(inputs: PromptInput) -> Sequence[PromptPart]:
    """The sections that a prompt has, in its order: joined by an empty line they are its text. Raises
    KeyError for a section that the platform's prompts lack."""
    return [
        PromptPart(name, changes, text)
        for changes, sections in (
            (False, prefix_sections(inputs)),
            (True, contact_sections(inputs)),
            (True, moment_sections(inputs)),
        )
        for name, text in sections
        if text
    ]


def _of_session(inputs: PromptInput) -> tuple[tuple[object, ...], str]:
    """What follows from the session and what never changes beside it: by what its prefix is known, and the
    text of `contact_sections`. Kept while it is the same session, as `_contact`."""
    session, task = inputs.session, inputs.session.task
    made_of = (inputs.flow, session, inputs.previous_contacts, inputs.tenant)
    kept = inputs.composed.of_session
    if kept is not None and all(map(is_, kept[0], made_of)):
        return kept[1:]
    known_by = (
        *(inputs.flow.content_hash, task.task_id, session.latest_contact.channel, session.language),
        *(task.global_prompt, task.prompt, *task.descriptions, *task.descriptions.values()),
        _history(inputs),
        inputs.returns_to,
    )
    contact = _joined(contact_sections(inputs))
    if inputs.secrets is None:
        inputs.composed.of_session = made_of, known_by, contact
    return known_by, contact


def recall(inputs: PromptInput, known_by: tuple[object, ...], table: str | None) -> None:
    """Take up what the prompt of another conversation has made, whose texts and memory are the same, and in
    which nothing is masked. `table` None: it is made each time."""
    made_of = (inputs.flow, inputs.session, inputs.previous_contacts, inputs.tenant)
    inputs.composed.of_session = made_of, known_by, _joined(contact_sections(inputs))
    if table is not None:
        inputs.composed.table = (inputs.flow, inputs.memory, inputs.memory_format), table


def _history(inputs: PromptInput) -> tuple[str, ...]:
    return tuple(_history_lines(inputs)) if inputs.previous_contacts else ()


def _joined(sections: Iterable[NamedText]) -> str:
    return "\n\n".join([section for _, section in sections if section])


def _section(heading: str, lines: Iterable[str]) -> str:
    body = "\n".join(filter(None, lines))
    return f"{heading}\n{body}" if body else ""


def prefix_sections(inputs: PromptInput) -> Iterator[NamedText]:
    """What stays the same while task and contact do, in its order; empty sections are left out later. Texts
    of one or more lines. Raises KeyError for a section that the platform's prompts lack."""
    sections, session = inputs.sections, inputs.session
    plan = inputs.flow.tasks[session.task.task_id]
    for name in ("role", "commands", "task_change", "memory_reference", "style"):
        yield name, sections[name]
    yield "language", sections["language"].format(language=session.language)
    yield "global_prompt", _section(sections["heading_global"], [session.task.global_prompt])
    yield "task_prompt", _section(sections["heading_task"], [session.task.prompt])
    yield "reachable_tasks", _section(sections["heading_reachable"], _reachable_lines(inputs, plan))
    conditional = _conditional(inputs.flow)
    always = (c for c in plan.document.enabled_checkpoints if c.id not in conditional and c.when is None)
    yield "checkpoints", _section(sections["heading_checkpoints"], _checkpoint_lines(sections, always))
    channel = session.latest_contact.channel
    yield "channel", _section(sections["heading_channel"], [sections[f"channel_{channel}"]])
    transfer: list[str] = []
    if (section := plan.kind.prompt_section) is not None:
        transfer.append(sections[section])
        for kind, values in plan.transfer_tags:
            names = {"agents" if kind == "agents" else "skills": ", ".join(values)}
            transfer.append(sections[f"transfer_{kind}"].format(**names))
    yield "transfer", _section(sections["heading_transfer"], transfer)
    yield "previous_contacts", _section(sections["heading_previous_contacts"], _history(inputs))


def _checkpoint_lines(sections: PromptSections, checkpoints: Iterable[Checkpoint]) -> Iterator[str]:
    return (sections["checkpoint"].format(name=c.name, prompt=c.prompt) for c in checkpoints)


def _conditional(flow: CompiledFlow) -> frozenset[str]:
    """Ids of the checkpoints that the version puts under a condition."""
    return frozenset(c.id for c in flow.document.checkpoints if c.when is not None)


def _history_lines(inputs: PromptInput) -> Iterator[str]:
    """The latest contacts; how many came before them in one line, when they are too many or too long."""
    contacts = inputs.previous_contacts
    lines = [
        inputs.sections["previous_contact"].format(
            date=_day(contact.date, inputs),
            channel=contact.channel,
            resume=as_data(inputs.without_secrets(contact.resume)),
        )
        for contact in contacts[-HISTORY_LINES:]
    ]
    if len(lines) == len(contacts) and sum(len(line) + 1 for line in lines) <= HISTORY_CHARACTERS:
        yield from lines
        return
    shown, room = 0, HISTORY_CHARACTERS - HISTORY_REST_CHARACTERS
    for line in reversed(lines[1 - HISTORY_LINES :]):
        room -= len(line) + 1
        if room < 0:
            break
        shown += 1
    earlier = contacts[: len(contacts) - shown]
    yield inputs.sections["previous_contacts_earlier"].format(
        n=len(earlier),
        first=_day(earlier[0].date, inputs),
        last=_day(earlier[-1].date, inputs),
        channels=", ".join(dict.fromkeys(contact.channel for contact in earlier)),
    )
    yield from lines[len(lines) - shown :]


def _day(instant: datetime, inputs: PromptInput) -> str:
    return instant.astimezone(tenant_zone(inputs.tenant)).strftime("%Y-%m-%d %H:%M")


def as_data(text: str) -> str:
    """Text that came from a caller, quoted on one line: no part of it reads as a line of the prompt."""
    return "«" + " ".join(text.split()).replace("«", '"').replace("»", '"') + "»"


def _reachable_lines(inputs: PromptInput, plan: TaskPlan) -> Iterator[str]:
    sections, described = inputs.sections, inputs.session.task.descriptions
    channel = inputs.session.latest_contact.channel
    targets = [inputs.flow.tasks[task_id] for task_id in described if task_id != plan.id]
    shown = [task for task in targets if channel_available(task, channel)]
    if not shown and inputs.returns_to is None:
        yield sections["reachable_none"]
    for task in shown:
        yield sections["reachable_task"].format(
            name=task.name, type=task.type, description=described[task.id]
        )
        if task.required:
            names = ", ".join(inputs.flow.variables.name_of(var_id) for var_id in task.required)
            yield sections["reachable_requires"].format(variables=names)
    if inputs.returns_to is not None:
        yield sections["reachable_back"].format(name=inputs.returns_to)


def contact_sections(inputs: PromptInput) -> Sequence[NamedText]:
    """What may be another with each step, in its order; empty sections are left out later. Texts of one or
    more lines. Raises KeyError for a section that the platform's prompts lack."""
    session = inputs.session
    status = session.status
    kind = inputs.flow.tasks[session.task.task_id].kind
    told = "" if status is None else _status_line(inputs, inputs.sections[kind.status_sections[status]])
    return ("contact", _contact(inputs)), ("human_part", told)


def _contact(inputs: PromptInput) -> str:
    """Kept while the contact's data are the same, whatever the task; sensitive values are of the memory."""
    sections, data = inputs.sections, inputs.session.latest_contact.data
    kept = inputs.composed.contact if inputs.secrets is None else None
    if kept is not None and kept[0] is sections and kept[1] is data:
        return kept[2]
    field = sections["contact_field"]
    fields: list[str] = []
    for name, value in data.items():
        if value not in (None, ""):
            text = value if isinstance(value, str) else value_text("custom", cast("JsonValue", value))
            told = " ".join(text.split())
            if inputs.secrets is not None:
                told = inputs.secrets.text(told)
            fields.append(field.format(name=" ".join(name.split())[:MAX_FIELD_NAME], value=told))
    text = _section(sections["heading_contact"], fields)
    if inputs.secrets is None:
        inputs.composed.contact = sections, data, text
    return text


def moment_sections(inputs: PromptInput) -> Sequence[NamedText]:
    """What may be another with each prompt, as `contact_sections`, which these follow."""
    sections, zone = inputs.sections, tenant_zone(inputs.tenant)
    line = now_line(sections["now"], sections["weekdays"], minute_of(inputs.now), zone)
    told = [("now", f"{sections['heading_now']}\n{line}")]
    if inputs.conditions is not None:
        conditional = _conditional(inputs.flow)
        open_now = (c for c in inputs.conditions.checkpoints if c.id in conditional or c.when is not None)
        lines = _checkpoint_lines(sections, open_now)
        told.append(("checkpoints_now", _section(sections["heading_checkpoints"], lines)))
        unmet = (
            sections["condition_unmet"].format(name=n, reason=" ".join(r.split()))
            for n, r in inputs.conditions.unmet
        )
        told.append(("unmet_conditions", _section(sections["conditions_heading"], unmet)))
    if inputs.suggested:
        names = [sections["suggested_task"].format(name=task.name) for task in inputs.suggested]
        told.append(("suggested_tasks", _section(sections["suggested_heading"], names)))
    if inputs.attempts or inputs.session.refused:
        told.append(("attempts", _section(sections["attempts_heading"], _attempt_lines(inputs))))
    table = _table(inputs) or sections["memory_empty"]
    told.append(("memory", f"{sections['heading_memory']}\n{_memory_age(inputs, zone)}\n\n{table}"))
    return told


def _table(inputs: PromptInput) -> str:
    """Empty without rows. Kept while the memory is the same, where its rows follow from its values alone."""
    made_of = (inputs.flow, inputs.memory, inputs.memory_format)
    remarked = inputs.flow.ageing or inputs.conflicts
    kept = inputs.composed.table
    if kept is not None and not remarked and all(map(is_, kept[0], made_of)):
        return kept[1]
    rows = memory_rows(inputs.memory, inputs.flow.variables, dict(_remarks(inputs)) if remarked else {})
    render = render_toon if inputs.memory_format == "toon" else render_markdown
    table = render(rows) if rows else ""
    if not remarked:
        inputs.composed.table = made_of, table
    return table


def _status_line(inputs: PromptInput, section: str) -> str:
    """With the text that was put before a person, where the section tells of it."""
    approval = inputs.session.approval
    if approval is None:
        return section
    return section.format(
        text=as_data(inputs.without_secrets(approval.text)),
        reason=as_data(inputs.without_secrets(approval.reason or "–")),
        until=approval.until.astimezone(tenant_zone(inputs.tenant)).strftime("%H:%M"),
    )


def stale_of(flow: CompiledFlow, memory: Mapping[str, MemoryEntry], now: datetime) -> tuple[str, ...]:
    """Ids of the variables whose values are older than their `freshFor`. `now` is aware."""
    return tuple([id for id, spec in flow.ageing.items() if is_stale(spec, memory.get(id), now)])


def _remarks(inputs: PromptInput) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    """By variable id: property and value of the rows that tell what is old, and what is contradicted."""
    sections = inputs.sections
    stale = stale_of(inputs.flow, inputs.memory, inputs.now)
    for var_id in dict.fromkeys((*stale, *inputs.conflicts)):
        rows: list[tuple[str, str]] = []
        if var_id in stale:
            age = told_age(sections, inputs.memory[var_id].updated_at or inputs.now, inputs.now)
            rows.append((sections["stale_property"], sections["stale_value"].format(ago=age)))
        if (conflict := inputs.conflicts.get(var_id)) is not None:
            other = conflict.other
            value = as_data(value_text(inputs.flow.contested[var_id].type, other.value))
            if conflict.by_tool:
                told = sections["conflict_user"].format(value=value)
            else:
                told = sections["conflict_tool"].format(
                    value=value, tool=one_line(value_text("custom", other.updated_by))
                )
            rows.append((sections["conflict_property"], told))
        yield var_id, rows


def _attempt_lines(inputs: PromptInput) -> Iterator[str]:
    for var_id, count in inputs.attempts.items():
        missing = var_id not in inputs.memory or not inputs.memory[var_id].has_value
        if count >= ATTEMPTS_SHOWN_FROM and missing:
            name = inputs.flow.variables.name_of(var_id)
            yield inputs.sections["attempt"].format(name=name, n=count)
    if not inputs.session.refused:
        return
    for task_id in inputs.session.task.descriptions:
        refused = inputs.session.refused.get(task_id, 0)
        if refused >= ATTEMPTS_SHOWN_FROM and missing_variables(inputs.flow.tasks[task_id], inputs.memory):
            yield inputs.sections["attempt_task"].format(name=inputs.flow.tasks[task_id].name, n=refused)


def _memory_age(inputs: PromptInput, zone: tzinfo) -> str:
    updated = inputs.memory_updated_at
    if updated is None:
        return inputs.sections["memory_never"]
    unit, number, _ = age_of(updated, inputs.now)
    template, ago = inputs.sections["memory_updated"], inputs.sections[f"ago_{unit}"]
    return updated_line(template, int(updated.timestamp()), zone, ago, number)


def same_until(inputs: PromptInput) -> datetime:
    """Before that moment, in UTC, the same inputs make the same prompt whatever the time: the next minute, or
    when an age is told otherwise, or when a search for a person is over."""
    if inputs.conditions is not None and inputs.conditions.by_the_clock:
        return inputs.now
    moments = [end_of(minute_of(inputs.now))]
    updated, deadline = inputs.memory_updated_at, inputs.session.task.routing_deadline
    if updated is not None:
        moments.append(age_of(updated, inputs.now)[2])
    for var_id, spec in inputs.flow.ageing.items():
        entry = inputs.memory.get(var_id)
        if entry is not None and entry.has_value and entry.updated_at is not None:
            moments.append(age_of(entry.updated_at, inputs.now)[2])
            if not is_stale(spec, entry, inputs.now):
                moments[-1] = entry.updated_at + timedelta(seconds=spec.fresh_for or 0)
    if deadline is not None:
        moments.append(deadline)
    return min(moments)
