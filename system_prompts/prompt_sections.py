"""The sections of which a prompt is composed, and the placeholders each of them holds.

A placeholder is `{name}`, in lower case. The default group holds every section in every language; a model
group holds only those that it says differently. Headings and items bring their own markup, which suits
some models and not others; the composer only puts lines together. Adding a section is backward compatible,
taking one away needs a new API version (F26).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_WITHOUT_PLACEHOLDERS = (
    "role",
    "commands",
    "task_change",
    "memory_reference",
    "style",
    "heading_global",
    "heading_task",
    "heading_reachable",
    "heading_checkpoints",
    "heading_channel",
    "heading_transfer",
    "heading_previous_contacts",
    "heading_contact",
    "heading_now",
    "heading_memory",
    "reachable_none",
    "channel_phone",
    "channel_whatsapp",
    "channel_sms",
    "channel_mail",
    "channel_chat",
    "transfer_hum",
    "transfer_ais",
    "human_routing",
    "human_connected",
    "human_completed",
    "human_failed",
    "human_supervising",
    "human_in_control",
    "weekdays",
    "memory_never",
    "memory_empty",
    "summary_nothing",
    "mining_instructions",
    "mining_checkpoints",
    "speaker_user",
    "speaker_bot",
    "speaker_agent",
    "conclusion_instructions",
    "conclusion_reasons",
    "conclusion_results",
    "attempts_heading",
)

SECTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: frozenset[str]() for name in _WITHOUT_PLACEHOLDERS}
    | {
        "reachable_task": frozenset({"name", "type", "description"}),
        "reachable_requires": frozenset({"variables"}),
        "checkpoint": frozenset({"name", "prompt"}),
        "transfer_skills": frozenset({"skills"}),
        "transfer_optional_skills": frozenset({"skills"}),
        "transfer_agents": frozenset({"agents"}),
        "previous_contact": frozenset({"date", "channel", "resume"}),
        "previous_contacts_earlier": frozenset({"n", "first", "last", "channels"}),
        "contact_field": frozenset({"name", "value"}),
        "now": frozenset({"weekday", "date", "time", "timezone"}),
        "memory_updated": frozenset({"when", "ago"}),
        "ago_seconds": frozenset({"n"}),
        "ago_minutes": frozenset({"n"}),
        "ago_hours": frozenset({"n"}),
        "ago_days": frozenset({"n"}),
        "language": frozenset({"language"}),
        "summary_tasks": frozenset({"tasks"}),
        "summary_said": frozenset({"text"}),
        "summary_known": frozenset({"variables"}),
        "summary_end": frozenset({"reason"}),
        "mining_variable": frozenset({"name", "type", "prompt"}),
        "mining_now": frozenset({"now"}),
        "summary_instructions": frozenset({"tasks"}),
        "attempt": frozenset({"name", "n"}),
        "attempt_task": frozenset({"name", "n"}),
    }
)
"""Piece name → the placeholders that its text holds, all of them and no others."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def placeholders(text: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(text))


def problems_of_section(name: str, text: object) -> Sequence[str]:
    """What is wrong with one section, each with what is expected instead.

    Braces stand for placeholders only: there is no escape for them, so that a text reads the same to
    a composer that substitutes in it and to one that does not.
    """
    expected = SECTIONS.get(name)
    if expected is None:
        return [f"section {name!r} is unknown; the sections are {', '.join(sorted(SECTIONS))}"]
    if not isinstance(text, str) or not text.strip():
        return [f"section {name!r} must be a text that is not empty"]
    found: list[str] = []
    if placeholders(text) != expected:
        wanted = ", ".join(f"{{{each}}}" for each in sorted(expected)) or "no placeholder"
        got = ", ".join(f"{{{each}}}" for each in sorted(placeholders(text))) or "none"
        found.append(f"section {name!r} must hold {wanted}, and holds {got}")
    if re.search(r"[{}]", _PLACEHOLDER.sub("", text)):
        found.append(f"section {name!r} has a brace that belongs to no placeholder such as {{name}}")
    if name == "weekdays" and len([day for day in text.split(",") if day.strip()]) != 7:
        found.append("section 'weekdays' must name seven days, Monday first, separated by commas")
    return found
