"""Values that are named and not meant, each beside one that is: a wrong value costs more than none (F38)."""

from __future__ import annotations

import pytest

from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec
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

PHONE = {
    "it": (VariableSpec("telefono", "telefono", "phone", "Il telefono del cliente."), "Il suo telefono?"),
    "en": (VariableSpec("phone", "phone", "phone", "The customer's phone."), "Your phone number?"),
    "es": (VariableSpec("telefono", "telefono", "phone", "El teléfono del cliente."), "¿Su teléfono?"),
}
EMAIL = VariableSpec("email", "email", "email", "The customer's e-mail address.")
BUDGET = {
    "it": (VariableSpec("spesa", "spesa", "number", "Quanto spende, in euro."), "Quanto vuole spendere?"),
    "en": (VariableSpec("budget", "budget", "number", "The budget in dollars."), "What is your budget?"),
    "es": (VariableSpec("gasto", "gasto", "number", "Cuánto gasta, en €."), "¿Cuánto quiere gastar?"),
}
INSURED = {
    "it": (VariableSpec("animali", "animali", "boolean", "Se ci sono animali."), "Avete animali?"),
    "en": (VariableSpec("insured", "insured", "boolean", "Whether it is insured."), "Is it insured?"),
    "es": (VariableSpec("seguro", "seguro", "boolean", "Si tiene seguro."), "¿Tiene seguro?"),
}
OPEN = {"it": "Come posso aiutarla?", "en": "How can I help?", "es": "¿En qué puedo ayudarle?"}


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
        ("en", "the card is easiest", "card"),
        ("en", "I'd like to use the card I have on file", "card"),
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
        ("es", "me dijeron que el lunes tenían hueco", "2026-03-09"),
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


@pytest.mark.parametrize(
    ("language", "said", "number"),
    [
        ("it", "il numero di mio cognato è 347 1234567", None),
        ("it", "il telefono di mia moglie è rotto. Il mio è 347 1234567", "+393471234567"),
        ("en", "my boss can be reached at 415 555 2671", None),
        ("en", "my wife and I can be reached at 415 555 2671", "+14155552671"),
        ("es", "mi madre tiene el 612 345 678", None),
        ("es", "pueden llamarme al 612 345 678", "+34612345678"),
    ],
)
def test_another_persons_number_is_not_the_users_where_nobody_asked(
    language: str, said: str, number: str | None
) -> None:  # F38
    variable, _ = PHONE[language]
    given = found(said, variable, bot=OPEN[language], language=CODES[language]).get(variable.id)
    assert (given["number"] if isinstance(given, dict) else given) == number


@pytest.mark.parametrize(
    ("language", "said", "number"),
    [
        ("it", "le do quello di mia moglie, 347 1234567", "+393471234567"),
        ("en", "my husband's is 415 555 2671, mine's 415 555 3482", "+14155553482"),
        ("es", "el de mi mujer es 612 345 678, el mío 699 887 766", "+34699887766"),
    ],
)
def test_asked_for_another_persons_number_counts_where_it_is_the_only_one(
    language: str, said: str, number: str
) -> None:  # F38
    given = answer(PHONE[language], language, said)
    assert isinstance(given, dict)
    assert given["number"] == number


def test_what_was_asked_about_another_person_is_not_the_users() -> None:  # F38
    variable, _ = PHONE["it"]
    asked = {"bot": "Qual è il telefono di suo figlio?"}
    child = VariableSpec("telefonoFiglio", "telefonoFiglio", "phone", "Il telefono del figlio.")
    assert found("347 1234567", variable, **asked) == {}
    assert found("347 1234567", variable, child, **asked).keys() == {"telefonoFiglio"}
    assert found("sue@mail.com", EMAIL, bot="Your daughter's email?", language="en-US") == {}


def test_a_birthday_of_another_person_is_not_the_users() -> None:  # F38
    birth = VariableSpec("birth", "birth", "date", "The customer's date of birth.")
    bot = "What is your date of birth?"
    assert found("my son was born on May 4, 2012", birth, bot=bot, language="en-US") == {}
    said = "my wife's is May 4 1982 and mine is June 7 1980"
    assert found(said, birth, bot=bot, language="en-US") == {"birth": "1980-06-07"}


def test_the_address_a_mail_came_from_is_not_the_users() -> None:  # F38
    said = "I got a mail from billing@carfix.com and it makes no sense"
    assert found(said, EMAIL, bot=OPEN["en"], language="en-US") == {}
    assert found("write to ann@carfix.com", EMAIL, bot=OPEN["en"], language="en-US") != {}


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "duecento sterline", None),
        ("it", "duecento euro", 200),
        ("it", "20k", 20_000),
        ("en", "20,000 yen", None),
        ("en", "€500", None),
        ("en", "$500", 500),
        ("en", "2.5k", 2500),
        ("en", "my brother spent 900 dollars", None),
        ("en", "it was 300 dollars last time", None),
        ("es", "doscientas libras", None),
        ("es", "doscientos", 200),
    ],
)
def test_an_amount_in_another_currency_of_another_person_or_time_is_none(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(BUDGET[language], language, said) == value


def test_a_count_is_as_it_is_now() -> None:  # F38
    people = VariableSpec("people", "people", "number", "How many people are coming, cuántas personas.")
    assert found("ya somos cuatro", people, bot="¿Cuántas personas?", language="es-ES") == {"people": 4}
    assert found("last time we were six", people, bot="How many people?", language="en-US") == {}


def test_a_distance_in_another_unit_is_none() -> None:  # F38
    miles = VariableSpec("mileage", "mileage", "number", "How many miles are on the car.")
    bot = "How many miles does it have?"
    assert found("100,000 kilometers", miles, bot=bot, language="en-US") == {}
    assert found("62,500 miles", miles, bot=bot, language="en-US") == {"mileage": 62_500}


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "sì buongiorno, volevo parlare con un operatore", None),
        ("it", "sì, dicevo, il contatore è rotto", None),
        ("it", "no no, va benissimo", None),
        ("it", "sì, un cane", True),
        ("en", "yes hello, can you hear me?", None),
        ("en", "yeah right, and I'm the Queen", None),
        ("en", "no no, that's great", None),
        ("en", "yes, hi", True),
        ("en", "yes, with Allianz", True),
        ("es", "sí, bueno, pues eso, que me duele la rodilla", None),
        ("es", "sí hola, quería hablar con recepción", None),
        ("es", "sí, con Sanitas", True),
    ],
)
def test_yes_on_the_way_to_another_matter_is_no_answer(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(INSURED[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "vi ho scritto a assistenza@example.it e nessuno risponde", None),
        ("it", "la vecchia mail era mario@example.it", None),
        ("it", "la mail di mia moglie è anna@example.it", None),
        ("it", "di solito uso mario@example.it", "mario@example.it"),
        ("en", "I wrote to info@example.com", None),
        ("en", "my accountant's email is paul@example.com", None),
        ("en", "is your address help@example.com?", None),
        ("en", "I changed my email, it's now a.lee@example.com", "a.lee@example.com"),
        ("es", "os he escrito a info@example.es", None),
        ("es", "ahora uso ana@example.es", "ana@example.es"),
    ],
)
def test_an_address_that_is_not_the_users_own_is_none_even_when_asked_for(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer((EMAIL, "E-mail?"), language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "la carta mi è stata rifiutata", None),
        ("it", "il signore prima di me ha pagato in contanti", None),
        ("it", "se avessi la carta pagherei con quella", None),
        ("it", "la carta va benissimo", "carta"),
        ("en", "the cash was short, if I remember well", None),
        ("en", "if I had a card I'd use it", None),
        ("en", "the guy before me paid in cash", None),
        ("en", "card if possible", "card"),
        ("es", "la tarjeta me la rechazaron", None),
        ("es", "con tarjeta, si es posible", "tarjeta"),
    ],
)
def test_what_is_told_of_a_thing_or_supposed_is_no_choice_of_it(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(PAYMENT[language], language, said) == value


@pytest.mark.parametrize(
    ("language", "said", "value"),
    [
        ("it", "sì la sento", None),
        ("it", "sì un attimo", None),
        ("it", "sì, cioè, quanto costa?", None),
        ("it", "no scusi, può ripetere?", None),
        ("it", "certo, un gatto", True),
        ("en", "yes I can hear you", None),
        ("en", "if it's free, yes", None),
        ("en", "no, say that again", None),
        ("en", "yes, with Allianz I think", True),
        ("es", "sí, un momento", None),
    ],
)
def test_an_answer_to_the_talk_itself_or_under_a_condition_is_none(
    language: str, said: str, value: JsonValue
) -> None:  # F38
    assert answer(INSURED[language], language, said) == value


@pytest.mark.parametrize(
    ("said", "value"), [("abbiamo due bagni", None), ("ho tre cani", None), ("due adulti", 2)]
)
def test_what_somebody_has_is_no_count_of_people(said: str, value: JsonValue) -> None:  # F38
    people = VariableSpec("persone", "persone", "number", "Per quante persone è la prenotazione.")
    assert answer((people, "Per quante persone?"), "it", said) == value
