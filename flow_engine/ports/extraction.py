"""The port to rules that find values in what a user says (F38)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Protocol

from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec


@dataclass(frozen=True, slots=True)
class ExtractionRequest:
    """`utterance` is the only source; `previous_bot_turn` tells what was asked, and is never one.
    Raises ValueError for a `said_at` without a zone.

    Relative dates count from `said_at` (aware), times without a zone are in `timezone`. `language` is a
    BCP 47 tag. `variables` are those that may be filled. `typed`: the user has written it himself, so that
    nothing in it is a guess of a recogniser.
    """

    utterance: str
    previous_bot_turn: str | None
    language: str
    said_at: datetime
    timezone: tzinfo
    variables: Sequence[VariableSpec]
    typed: bool = False

    def __post_init__(self) -> None:
        if self.said_at.utcoffset() is None:
            raise ValueError("said_at needs a time zone: relative dates count from that moment")


class Extractor(Protocol):
    """Canonical values by variable id. Never raises for a text; may take some milliseconds of CPU."""

    def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]: ...


class ExtractsNothing:
    """Implements `Extractor` where rules are turned off."""

    def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]:
        return {}
