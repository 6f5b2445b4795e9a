"""What extraction is asked, and the mentions that its scanners find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Literal

from flow_engine.values import JsonValue, VariableSpec

MentionKind = Literal["phone", "date", "time", "number"]


@dataclass(frozen=True, slots=True)
class ExtractionRequest:
    """One turn of the user and what is still open. Raises ValueError for a `said_at` without a zone."""

    utterance: str
    """The user's last turn: the only source of values."""
    previous_bot_turn: str | None
    """What was asked. It decides which variable a value is for and is never a source of one."""
    language: str
    """BCP 47. Italian, English and Spanish are known; in any other language nothing is found."""
    said_at: datetime
    """When the turn was said, aware. Relative dates count from here."""
    timezone: tzinfo
    """Where the user is: "today" is a day there, and times without a zone are meant there."""
    variables: Sequence[VariableSpec]
    """The variables that are open."""

    def __post_init__(self) -> None:
        if self.said_at.utcoffset() is None:
            raise ValueError("said_at needs a time zone: relative dates count from that moment")


@dataclass(frozen=True, slots=True)
class Mention:
    """Something typed at `start:end` of the normalised text."""

    kind: MentionKind
    start: int
    end: int
    value: JsonValue
    looking_back: JsonValue = None
    """A date's value for a variable that speaks of the past; None: the same."""
    topics: frozenset[str] = frozenset()
    """What a number is beyond a number (a price, an age): only a variable of that topic may take it."""
    vague: bool = False
    """Too little on its own ("the 5th"): a value only when it was asked for."""
