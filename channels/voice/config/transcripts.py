"""What was said, as a business's API gets it: `[{role, content, timestamp}]`, and its last lines as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from channels.voice.call.ports import Turn
from channels.voice.config.wording import Wording
from flow_engine.values import JsonValue

SUMMARY_LINES: Final = 6


def utc_milliseconds(moment: datetime) -> str:
    """`2026-01-15T19:30:00.000Z`, the form in which JavaScript writes an instant."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def as_entry(turn: Turn) -> JsonValue:
    return {"role": turn.role, "content": turn.text, "timestamp": utc_milliseconds(turn.at)}


def summary(turns: Sequence[Turn], wording: Wording) -> str:
    """The last six turns, a line each, with who spoke."""
    speakers = {"user": wording.caller, "assistant": wording.agent}
    return "\n".join(
        f"{speakers[turn.role]}: {' '.join(turn.text.split())}" for turn in turns[-SUMMARY_LINES:]
    )
