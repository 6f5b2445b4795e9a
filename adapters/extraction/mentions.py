"""The mentions that the scanners find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flow_engine.values import JsonValue

MentionKind = Literal["phone", "date", "time", "number"]


@dataclass(frozen=True, slots=True)
class Mention:
    """Something typed at `start:end` of the normalised text."""

    kind: MentionKind
    start: int
    end: int
    value: JsonValue
    looking_back: JsonValue = None
    """A date as a variable that speaks of the past reads it; a date may have only one of the two values."""
    topics: frozenset[str] = frozenset()
    """What a number is beyond a number (a price, an age): only a variable of that topic may take it."""
    vague: bool = False
    """Too little on its own ("the 5th"): a value only when it was asked for."""
