"""Requests as a conversation makes them, for the tests of rules extraction."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from adapters.extraction import ExtractionRequest, extract
from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec

WEDNESDAY = datetime(2026, 3, 4, 10, 30)

PHONE = VariableSpec("phone", "telefono", "phone", "Il numero di telefono a cui richiamare.")
DATE = VariableSpec("date", "appuntamento", "date", "Il giorno e l'ora dell'appuntamento.")
PEOPLE = VariableSpec("people", "persone", "number", "Per quante persone è la prenotazione.")
PARKING = VariableSpec("parking", "parcheggio", "boolean", "Vero se il cliente vuole il parcheggio.")
BRANCH = VariableSpec("branch", "sede", "enum", "La sede preferita.", ("Centro", "Stazione", "Lido"))
EVERY = (PHONE, DATE, PEOPLE, PARKING, BRANCH)


def found(
    utterance: str,
    *variables: VariableSpec,
    bot: str | None = None,
    language: str = "it-IT",
    zone: str = "Europe/Rome",
    now: datetime = WEDNESDAY,
    typed: bool = False,
) -> dict[str, JsonValue]:
    """What is found in `utterance`, said at `now` on the wall clock of `zone`."""
    local = ZoneInfo(zone)
    request = ExtractionRequest(utterance, bot, language, now.replace(tzinfo=local), local, variables, typed)
    return dict(extract(request))
