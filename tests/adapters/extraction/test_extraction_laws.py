"""Laws of extraction over any text, and over texts made of the words that the rules look for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.extraction import ExtractionRequest, extract
from adapters.extraction.vocabulary import LANGUAGES
from flow_engine.values import canonical
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VariableType
from tests.adapters.extraction.extraction_requests import EVERY
from tests.timing import takes_less_than

_SPOKEN = (
    "333 1234567", "3", "12/05", "12", "lunedì", "domani", "alle", "alle 3", "e mezza", "tre", "sei", "o",
    "no", "sì", "anzi", "non", "centro", "lido", "persone", "euro", "dal", "al", "tra", "giorni", "marzo",
    "monday", "at", "double", "oh", "sorry", "I meant", "or", "not", "tomorrow", "half past", "pm", "april",
    "the", "5th", "in", "weeks", "el", "mañana", "a las", "y media", "mejor dicho", "hace", "días", "más",
    ",", ".", "?", "+", "-", "º", "9999", "0", "31", "anni", "2", "ore", "zero", "mila",
)  # fmt: skip
_words = st.lists(st.sampled_from(_SPOKEN), max_size=25).map(" ".join)
_texts = st.one_of(st.text(max_size=200), _words)
_languages = st.sampled_from(["it", "it-IT", "en", "en-US", "en-GB", "es", "es-MX", "fr", "", "x-y-z"])
_moments = st.datetimes(
    min_value=datetime(1971, 1, 2), max_value=datetime(2199, 12, 30), timezones=st.just(UTC)
)
_zones = st.sampled_from(["Europe/Rome", "America/New_York", "Pacific/Kiritimati", "UTC"]).map(ZoneInfo)
_past = VariableSpec("born", "dataNascita", "date", "La data di nascita.")
_requests = st.builds(
    ExtractionRequest,
    utterance=_texts,
    previous_bot_turn=st.none() | _texts | st.sampled_from(["Quando?", "How many people?", "¿Cuándo?"]),
    language=_languages,
    said_at=_moments,
    timezone=_zones,
    variables=st.lists(st.sampled_from([*EVERY, _past]), unique_by=lambda spec: spec.id, max_size=6),
)


@settings(max_examples=300, deadline=timedelta(seconds=20))
@given(_requests)
def test_any_turn_gives_canonical_values_of_open_variables_and_the_same_ones_again(
    request: ExtractionRequest,
) -> None:  # F5 F38
    values = extract(request)
    specs = {spec.id: spec for spec in request.variables}
    assert values.keys() <= specs.keys()
    for name, value in values.items():
        assert value is not None
        assert canonical(specs[name], value) == value
    assert extract(request) == values


@settings(max_examples=100, deadline=timedelta(seconds=20))
@given(_texts, _languages, _moments)
def test_a_user_who_says_nothing_gives_nothing_whatever_the_bot_said(
    bot: str, language: str, said_at: datetime
) -> None:  # F38
    request = ExtractionRequest("…", bot, language, said_at, ZoneInfo("Europe/Rome"), EVERY)
    assert extract(request) == {}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "part",
    ["1 ", "1,", "+", "(", "no ", "o ", "sì ", "lunedì ", "monday ", "el lunes ", "333 1234567 ", "alle 3 ",
     "at 5 ", "a las 3 y media ", "il 5 ", "the 5th of ", "12/05 ", "dal 10 al ", "between 3 and ", "double ",
     "mia moglie lunedì ", "alle 10, anzi 11 ", "la carta ", "sì, dicevo ", "anzi no ", "wife's ", "20k ",
     "centro ", "c e n t r o ", "e mezzo ", "tre", "half past ", "anzi ", "a" , "uno ", "one "],
)  # fmt: skip
def test_the_longest_turn_of_any_word_is_read_in_bounded_time(language: str, part: str) -> None:  # F38
    utterance = (part * 2000)[:2000]
    request = ExtractionRequest(
        utterance, "Per quante persone?", language, datetime(2026, 3, 4, tzinfo=UTC), UTC, [*EVERY, _past]
    )
    extract(request)  # patterns are made on first use
    assert takes_less_than(1.0, lambda: extract(request))


@pytest.mark.parametrize("kind", ["date", "number", "phone", "email", "boolean", "enum"])
@pytest.mark.parametrize("bot", [None, "Quante persone?"])
def test_a_thousand_variables_of_one_type_are_read_in_bounded_time(
    kind: VariableType, bot: str | None
) -> None:  # F38
    members = ("carta", "contanti", "bonifico") if kind == "enum" else ()
    every = [VariableSpec(f"v{n}", f"persone{n}", kind, f"Le persone {n}.", members) for n in range(1000)]
    utterance = "mia moglie lunedì, 4 persone, la carta. " * 39
    request = ExtractionRequest(utterance, bot, "it", datetime(2026, 3, 4, tzinfo=UTC), UTC, every)
    extract(request)  # profiles and patterns are made on first use
    assert takes_less_than(1.0, lambda: extract(request))
