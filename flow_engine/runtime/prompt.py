"""Composition of the prompt (F24), in this order:

    prefix    system sections · global prompt · task prompt · reachable tasks · checkpoints · channel ·
              transfer notice · previous contacts
    volatile  contact data · state of the human part · now · questions in vain · age of the memory ·
              memory

The prefix stays the same, byte for byte, from the entry of a task to its end as long as the contact
stays the same, so that a model's prompt cache keeps it; its hash tells when it has changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from hashlib import sha256
from typing import cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.memory import MemoryEntry, PreviousContact
from flow_engine.runtime.rules import channel_available, missing_variables
from flow_engine.runtime.session import Session
from flow_engine.runtime.tables import memory_rows, render_markdown, render_toon, value_text
from flow_engine.task_types import TASK_KINDS
from flow_engine.values import JsonValue
from flow_engine.vocabulary import MemoryFormat

ATTEMPTS_SHOWN_FROM = 2
HISTORY_LINES = 20
HISTORY_CHARACTERS = 8_000
HISTORY_REST_CHARACTERS = 300
"""What is left for the line about the earlier contacts."""
MAX_FIELD_NAME = 200

PromptSections = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    prefix: str
    volatile: str
    prefix_hash: str

    @property
    def text(self) -> str:
        return f"{self.prefix}\n\n{self.volatile}"


@dataclass(frozen=True, slots=True)
class PromptInput:
    """Everything a prompt is made from. `memory` is the merged memory (F18). Times are in UTC."""

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


def compose(inputs: PromptInput) -> Prompt:
    """Every section in its order. The hash: 32 hexadecimal digits of the SHA-256 of the prefix in UTF-8."""
    prefix, volatile = (
        "\n\n".join(section for section in sections if section)
        for sections in (prefix_sections(inputs), volatile_sections(inputs))
    )
    return Prompt(prefix, volatile, sha256(prefix.encode()).hexdigest()[:32])


def _section(heading: str, lines: Iterable[str]) -> str:
    body = "\n".join(line for line in lines if line)
    return f"{heading}\n{body}" if body else ""


def prefix_sections(inputs: PromptInput) -> Iterator[str]:
    """What stays the same while task and contact do, in its order; empty sections are left out later. Texts
    of one or more lines. Raises KeyError for a section that the platform's prompts lack."""
    sections, session = inputs.sections, inputs.session
    plan = inputs.flow.tasks[session.task.task_id]
    yield from (sections[name] for name in ("role", "commands", "task_change", "memory_reference", "style"))
    yield sections["language"].format(language=session.language)
    yield _section(sections["heading_global"], [session.task.global_prompt])
    yield _section(sections["heading_task"], [session.task.prompt])
    yield _section(sections["heading_reachable"], _reachable_lines(inputs, plan))
    checkpoints = (
        sections["checkpoint"].format(name=c.name, prompt=c.prompt) for c in plan.document.enabled_checkpoints
    )
    yield _section(sections["heading_checkpoints"], checkpoints)
    channel = session.latest_contact.channel
    yield _section(sections["heading_channel"], [sections[f"channel_{channel}"]])
    transfer: list[str] = []
    if (section := TASK_KINDS[plan.type].prompt_section) is not None:
        transfer.append(sections[section])
        for kind, values in plan.transfer_tags:
            names = {"agents" if kind == "agents" else "skills": ", ".join(values)}
            transfer.append(sections[f"transfer_{kind}"].format(**names))
    yield _section(sections["heading_transfer"], transfer)
    yield _section(sections["heading_previous_contacts"], _history_lines(inputs))


def _history_lines(inputs: PromptInput) -> Iterator[str]:
    """The latest contacts; how many came before them in one line, when they are too many or too long."""
    contacts = inputs.previous_contacts
    lines = [
        inputs.sections["previous_contact"].format(
            date=_day(contact.date, inputs), channel=contact.channel, resume=as_data(contact.resume)
        )
        for contact in contacts
    ]
    if len(lines) <= HISTORY_LINES and sum(len(line) + 1 for line in lines) <= HISTORY_CHARACTERS:
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
    return _local(instant, inputs.tenant).strftime("%Y-%m-%d %H:%M")


def as_data(text: str) -> str:
    """Text that came from a caller, quoted on one line: no part of it reads as a line of the prompt."""
    return "«" + " ".join(text.split()).replace("«", '"').replace("»", '"') + "»"


def _reachable_lines(inputs: PromptInput, plan: TaskPlan) -> Iterator[str]:
    sections, described = inputs.sections, inputs.session.task.descriptions
    channel = inputs.session.latest_contact.channel
    targets = [inputs.flow.tasks[task_id] for task_id in described if task_id != plan.id]
    shown = [task for task in targets if channel_available(task, channel)]
    if not shown:
        yield sections["reachable_none"]
    for task in shown:
        yield sections["reachable_task"].format(
            name=task.name, type=task.type, description=described[task.id]
        )
        if task.required:
            names = ", ".join(inputs.flow.variables.name_of(var_id) for var_id in task.required)
            yield sections["reachable_requires"].format(variables=names)


def volatile_sections(inputs: PromptInput) -> Iterator[str]:
    """What may be another with each prompt, in its order; empty sections are left out later. Texts of one or
    more lines. Raises KeyError for a section that the platform's prompts lack."""
    sections, session = inputs.sections, inputs.session
    fields = [
        sections["contact_field"].format(
            name=_one_line(name)[:MAX_FIELD_NAME], value=_one_line(cast("JsonValue", value))
        )
        for name, value in session.latest_contact.data.items()
        if value not in (None, "")
    ]
    yield _section(sections["heading_contact"], fields)
    status = inputs.flow.chart.status(session.states)
    kind = TASK_KINDS[inputs.flow.tasks[session.task.task_id].type]
    yield "" if status is None else sections[kind.status_sections[status]]
    now = _local(inputs.now, inputs.tenant)
    now_line = sections["now"].format(
        weekday=sections["weekdays"].split(",")[now.weekday()].strip(),
        date=now.date().isoformat(),
        time=f"{now.hour:02}:{now.minute:02}",
        timezone=str(now.tzinfo),
    )
    yield _section(sections["heading_now"], [now_line])
    yield _section(sections["attempts_heading"], _attempt_lines(inputs))
    rows = memory_rows(inputs.memory, inputs.flow.variables)
    render = render_toon if inputs.memory_format == "toon" else render_markdown
    table = render(rows) if rows else sections["memory_empty"]
    yield f"{sections['heading_memory']}\n{_memory_age(inputs)}\n\n{table}"


def _one_line(value: JsonValue) -> str:
    return " ".join(value_text("custom", value).split())


def _attempt_lines(inputs: PromptInput) -> Iterator[str]:
    for var_id, count in inputs.attempts.items():
        missing = var_id not in inputs.memory or not inputs.memory[var_id].has_value
        if count >= ATTEMPTS_SHOWN_FROM and missing:
            name = inputs.flow.variables.name_of(var_id)
            yield inputs.sections["attempt"].format(name=name, n=count)
    for task_id in inputs.session.task.descriptions:
        refused = inputs.session.refused.get(task_id, 0)
        if refused >= ATTEMPTS_SHOWN_FROM and missing_variables(inputs.flow.tasks[task_id], inputs.memory):
            yield inputs.sections["attempt_task"].format(name=inputs.flow.tasks[task_id].name, n=refused)


def _local(instant: datetime, tenant: Mapping[str, object]) -> datetime:
    return instant.astimezone(tenant_zone(tenant))


def tenant_zone(tenant: Mapping[str, object]) -> tzinfo:
    """`tenant.timezone` when it names a zone, else UTC."""
    name = tenant.get("timezone")
    if isinstance(name, str) and name:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # `Europe` is a directory of the database
            return UTC
    return UTC


def _memory_age(inputs: PromptInput) -> str:
    updated = inputs.memory_updated_at
    if updated is None:
        return inputs.sections["memory_never"]
    seconds = max(0, int((inputs.now - updated).total_seconds()))
    unit, length = next((u, n) for u, n in _AGE_UNITS if seconds >= n or n == 1)
    ago = inputs.sections[f"ago_{unit}"].format(n=seconds // length)
    when = _local(updated, inputs.tenant).replace(microsecond=0, tzinfo=None).isoformat(" ")
    return inputs.sections["memory_updated"].format(when=when, ago=ago)


_AGE_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
