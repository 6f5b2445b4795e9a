"""Values that are named and not meant, each beside one that is: a wrong value costs more than none (F38)."""

from __future__ import annotations

import pytest

from flow_engine.values import JsonValue, VariableSpec
from tests.adapters.extraction.extraction_requests import found

CODES = {"it": "it-IT", "en": "en-US", "es": "es-ES"}


def enum(name: str, prompt: str, *members: str) -> VariableSpec:
    return VariableSpec(name, name, "enum", prompt, members)


PAYMENT = {
    "it": (enum("pagamento", "Come paga.", "contanti", "carta", "bonifico"), "Come preferisce pagare?"),
    "en": (enum("payment", "How they pay.", "cash", "card", "check"), "How would you like to pay?"),
    "es": (enum("pago", "Cómo paga.", "efectivo", "tarjeta", "bizum"), "¿Cómo quiere pagar?"),
}
PART = {
    "it": (enum("fascia", "La parte del giorno.", "mattina", "sera"), "Preferisce mattina o sera?"),
    "en": (enum("slot", "Part of the day.", "morning", "evening"), "Morning or evening?"),
    "es": (enum("franja", "La parte del día.", "mañana", "tarde"), "¿Por la mañana o por la tarde?"),
}

VISIT = {
    "it": (
        VariableSpec("visita", "visita", "date", "Il giorno della visita."),
        "Per quando vuole la visita?",
    ),
    "en": (VariableSpec("visit", "visit", "date", "Day of the visit."), "When would you like the visit?"),
    "es": (VariableSpec("visita", "visita", "date", "El día de la visita."), "¿Qué día quiere la visita?"),
}


def answer(asked: tuple[VariableSpec, str], language: str, said: str) -> JsonValue:
    variable, bot = asked
    return found(said, variable, bot=bot, language=CODES[language]).get(variable.id)


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "ho perso la carta", None),
        ("it", "la carta è scaduta", None),
        ("it", "mi hanno rubato la carta, quindi contanti", "contanti"),
        ("it", "pago con la carta che ho in borsa", "carta"),
        ("it", "faccio un bonifico", "bonifico"),
        ("en", "I lost my card", None),
        ("en", "my old card expired", None),
        ("en", "the machine ate my card", None),
        ("en", "put it on my card", "card"),
        ("es", "he perdido la tarjeta", None),
        ("es", "el cajero se tragó la tarjeta", None),
        ("es", "me han robado la tarjeta, así que en efectivo", "efectivo"),
    ],
)
def test_a_thing_that_something_happened_to_is_no_choice(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(PAYMENT[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "l'altra volta ho pagato con bonifico", None),
        ("it", "di solito bonifico ma stavolta in contanti", "contanti"),
        ("en", "last time I paid by card", None),
        ("en", "my card got declined yesterday", None),
        ("es", "la última vez pagué con tarjeta", None),
    ],
)
def test_what_was_done_before_is_no_choice_for_now(language: str, said: str, value: JsonValue) -> None:  # F38
    assert answer(PAYMENT[language], language, said) == value


def test_a_member_within_an_idiom_is_a_word_of_that() -> None:  # F38
    assert answer(PAYMENT["en"], "en", "let me check") is None
    assert answer(PAYMENT["en"], "en", "a check") == "check"
    assert answer(PART["it"], "it", "buona sera, non ho deciso") is None
    assert answer(PART["en"], "en", "good morning, the evening please") == "evening"
    assert answer(PART["es"], "es", "buenas tardes, por la mañana") == "mañana"


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "di mattina lavoro", None),
        ("it", "di mattina lavoro, quindi la sera", "sera"),
        ("en", "mornings I work, so evening", "evening"),
        ("es", "por las mañanas trabajo, así que por la tarde", "tarde"),
    ],
)
def test_a_part_of_the_day_on_which_one_is_busy_is_declined(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(PART[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "bonifico, anzi guardi, facciamo contanti", "contanti"),
        ("it", "bonifico, anzi no", None),
        ("it", "contanti se non le dispiace", "contanti"),
        ("en", "card, no wait", None),
        ("en", "card, actually", "card"),
        ("en", "cash, why not", "cash"),
        ("es", "en efectivo si no le importa", "efectivo"),
    ],
)
def test_words_of_correction_and_of_politeness_say_nothing_themselves(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(PAYMENT[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "l'avevo per il 20 marzo", None),
        ("it", "il medico doveva venire lunedì", None),
        ("it", "ieri non è venuto nessuno, facciamo lunedì", "2026-03-09"),
        ("en", "I was supposed to have it yesterday", None),
        ("en", "you told me the 9th", None),
        ("en", "I had it booked for February 20th", None),
        ("es", "tenía cita ayer y no vine", None),
        ("es", "era para el 20 de febrero", None),
        ("es", "era para el 20 de marzo, por favor", "2026-03-20"),
    ],
)
def test_a_day_that_has_been_is_none_for_what_is_to_come(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(VISIT[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "richiamatemi domani e ne parliamo", None),
        ("it", "venerdì, ma vi faccio sapere", None),
        ("en", "call me tomorrow and we'll sort it out", None),
        ("en", "Friday if my boss lets me, I'll call you back", None),
        ("en", "Friday, and call me when you're on your way", "2026-03-06"),
        ("es", "llámeme mañana y lo hablamos", None),
        ("es", "el viernes si me deja mi jefe, ya le llamo yo", None),
    ],
)
def test_a_day_of_a_call_or_one_that_is_still_to_be_settled_is_none(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(VISIT[language], language, said) == value


def test_the_day_of_a_call_is_that_of_a_variable_about_calls() -> None:  # F38
    call = VariableSpec("call", "call", "date", "The day on which to call the customer.")
    assert found("call me tomorrow", call, bot="When can we call you?", language="en-US") == {
        "call": "2026-03-05"
    }


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Friday at 10, actually make it 11", "2026-03-06T10:00:00Z"),
        ("Friday at 2, no, 3", "2026-03-06T14:00:00Z"),
        ("Friday at 10, sorry, 4 people", "2026-03-06T09:00:00Z"),
    ],
)
def test_a_bare_hour_behind_a_correction_is_that_of_the_day(said: str, value: JsonValue) -> None:  # F38
    assert answer(VISIT["en"], "en", said) == value


def test_a_day_goes_to_the_only_variable_that_it_fits() -> None:  # F38
    started = VariableSpec("started", "started", "date", "When the trouble started.")
    visit, _ = VISIT["en"]
    found_values = found("I'd like the visit on March 20th", visit, started, language="en-US")
    assert found_values == {"visit": "2026-03-20"}
