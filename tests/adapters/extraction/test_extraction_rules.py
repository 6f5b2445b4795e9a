"""The rules of extraction, each where one utterance shows it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from adapters.extraction import ExtractionRequest, extract, members
from flow_engine.variables import VariableSpec
from tests.adapters.extraction.extraction_requests import BRANCH, DATE, EVERY, PARKING, PEOPLE, PHONE, found

WHEN = "Per quando vuole l'appuntamento?"


class TestPhones:
    def test_are_canonical_with_country_and_line(self) -> None:  # F5 F38
        mobile = {"country": "IT", "type": "mobile", "number": "+393331234567"}
        land = {"country": "IT", "type": "land", "number": "+390248951234"}
        assert found("sono al 333 1234567", PHONE) == {"phone": mobile}
        assert found("lo 02 48951234", PHONE) == {"phone": land}

    @pytest.mark.parametrize(
        ("language", "said", "country"),
        [("en", "212 664 7665", "US"), ("en-GB", "020 7946 0958", "GB"), ("es", "612 345 678", "ES")],
    )
    def test_without_a_prefix_are_of_the_region_of_the_language(
        self, language: str, said: str, country: str
    ) -> None:  # F38
        value = found(said, PHONE, language=language)["phone"]
        assert isinstance(value, dict)
        assert value["country"] == country

    def test_of_a_plan_that_cannot_tell_are_mobile(self) -> None:  # F38
        value = found("call me at 212 664 7665", PHONE, language="en-US")["phone"]
        assert value == {"country": "US", "type": "mobile", "number": "+12126647665"}

    def test_may_follow_a_date(self) -> None:  # F38
        assert found("il 6, 333 1234567", PHONE)["phone"]

    def test_with_a_corrected_tail_are_left_out(self) -> None:  # F38
        assert found("333 123 4567, anzi 4568", PHONE) == {}


class TestDates:
    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("oggi", "2026-03-04"),
            ("mercoledì", "2026-03-11"),
            ("il 4 marzo", "2026-03-04"),
            ("il 3 gennaio", "2027-01-03"),
            ("il 29 febbraio", "2028-02-29"),
            ("tra un mese", "2026-04-04"),
            ("lunedì della settimana prossima", "2026-03-09"),
            ("lunedì 9 marzo", "2026-03-09"),
            ("2026-04-05", "2026-04-05"),
        ],
    )
    def test_count_from_the_day_of_the_turn(self, said: str, expected: str) -> None:  # F38
        assert found(said, DATE, bot=WHEN) == {"date": expected}

    @pytest.mark.parametrize(
        "said",
        ["il 31 aprile", "lunedì 10 marzo", "2026-13-45", "la settimana prossima", "ad aprile", "il 3 marzo"],
    )
    def test_that_no_calendar_has_or_that_are_no_single_day_are_nothing(self, said: str) -> None:  # F38
        assert found(said, DATE, bot=WHEN) == {}

    def test_today_is_the_day_in_the_zone_of_the_user(self) -> None:  # F38
        late = datetime(2026, 3, 4, 23, 30)
        assert found("domani", DATE, bot=WHEN, now=late) == {"date": "2026-03-05"}
        assert found("tomorrow", DATE, bot="What day?", now=late, zone="America/New_York", language="en") == {
            "date": "2026-03-05"
        }

    def test_with_a_time_become_utc_also_after_the_clocks_change(self) -> None:  # F5 F38
        assert found("domani alle 15", DATE, bot=WHEN) == {"date": "2026-03-05T14:00:00Z"}
        assert found("il 2 aprile alle 15", DATE, bot=WHEN) == {"date": "2026-04-02T13:00:00Z"}

    @pytest.mark.parametrize(
        ("said", "local_hour"),
        [("alle 3", 15), ("alle 03:00", 3), ("alle 3 di notte", 3), ("alle 9", 9), ("alle 9 di sera", 21)],
    )
    def test_at_one_to_six_are_meant_in_the_afternoon_unless_said_otherwise(
        self, said: str, local_hour: int
    ) -> None:  # F38
        assert found(f"domani {said}", DATE, bot=WHEN) == {"date": f"2026-03-05T{local_hour - 1:02}:00:00Z"}

    @pytest.mark.parametrize(
        ("language", "expected"), [("en-US", "2026-05-06"), ("en", "2026-05-06"), ("en-GB", "2026-06-05")]
    )
    def test_are_month_first_in_american_english(self, language: str, expected: str) -> None:  # F38
        assert found("05/06", DATE, bot="What day?", language=language) == {"date": expected}

    def test_of_a_variable_of_the_past_look_back(self) -> None:  # F38
        past = VariableSpec("date", "dataSinistro", "date", "Quando è successo il sinistro.")
        assert found("lunedì", past, bot="Quando è successo?") == {"date": "2026-03-02"}
        assert found("domani", past, bot="Quando è successo?") == {}
        midnight = found("oggi a mezzanotte", past, bot="Quando è successo?")
        assert midnight == {"date": "2026-03-03T23:00:00Z"}  # its beginning

    def test_of_a_time_alone_are_nothing(self) -> None:  # F38
        assert found("alle 15:30", DATE, bot=WHEN) == {}

    def test_counted_in_hours_are_hours_whatever_the_clocks_do(self) -> None:  # F38
        night = datetime(2026, 3, 28, 23, 0)
        assert found("tra 5 ore", DATE, bot=WHEN, now=night) == {"date": "2026-03-29T03:00:00Z"}


class TestAssignment:
    def test_of_two_variables_the_asked_one_takes_the_value_else_neither(self) -> None:  # F38
        other = VariableSpec("other", "emergenza", "phone", "Chi avvisare in caso di emergenza.")
        assert list(found("333 1234567", PHONE, other, bot="Chi avvisiamo per un'emergenza?")) == ["other"]
        assert found("333 1234567", PHONE, other) == {}

    def test_one_turn_fills_variables_of_several_types(self) -> None:  # F38
        said = "vorrei prenotare per sabato alle 20, siamo in 4 persone, e il mio numero è 333 1234567"
        assert set(found(said, *EVERY)) == {"date", "people", "phone"}

    def test_the_bot_is_never_a_source(self) -> None:  # F38
        bot = "La aspettiamo lunedì in Centro per 4 persone, al 333 1234567, con parcheggio?"
        assert found("mi scusi?", *EVERY, bot=bot) == {}

    def test_yes_and_no_answer_only_the_boolean_that_was_asked_for(self) -> None:  # F38
        assert found("sì", PARKING, bot="Vuole il parcheggio?") == {"parking": True}
        assert found("sì", PARKING, bot="Mi sente?") == {}
        assert found("sì", PARKING) == {}
        assert found("sì", PARKING, bot="Vuole il parcheggio o viene in treno?") == {}
        assert found("sì", PARKING, bot="Non vuole il parcheggio?") == {}

    def test_a_price_goes_only_to_a_variable_that_speaks_of_one(self) -> None:  # F38
        amount = VariableSpec("amount", "importo", "number", "L'importo della fattura.")
        assert found("25 euro", PEOPLE, bot="Per quante persone?") == {}
        assert found("25 euro", amount, bot="Di quanto è la fattura?") == {"amount": 25}

    def test_custom_and_string_variables_are_left_alone(self) -> None:  # F18 F38
        text = VariableSpec("name", "nome", "string", "Il nome.")
        custom = VariableSpec("cart", "carrello", "custom")
        assert found("Mario Rossi, 333 1234567", text, custom, bot="Il suo nome?") == {}

    def test_a_correction_takes_the_last_member(self) -> None:  # F38
        bot = "Quale sede preferisce?"
        assert found("Centro, anzi Lido", BRANCH, bot=bot) == {"branch": "Lido"}
        assert found("Centro o Lido", BRANCH, bot=bot) == {}

    def test_numbers_among_the_members_keep_their_own_type(self) -> None:  # F5 F38
        bag = VariableSpec("bag", "bagGrams", "enum", "The bag size in grams.", (250, 500))
        bot = "Which bag size?"
        assert found("five hundred", bag, bot=bot, language="en-US") == {"bag": 500}

    @pytest.mark.parametrize(
        ("asked", "said", "expected"),
        [
            ("Which bag size would you like?", "The 500 gram bags.", {"bag": 500}),
            ("How many bags would you like?", "Two 500 gram bags.", {"bag": 500, "many": 2}),
            (None, "I'd like two 500 gram bags.", {"bag": 500}),
            ("How many bags would you like?", "Three bags.", {"many": 3}),
        ],
    )
    def test_a_member_is_not_counted_as_a_quantity_too(
        self, asked: str | None, said: str, expected: dict[str, int]
    ) -> None:  # F38
        bag = VariableSpec("bag", "bagGrams", "enum", "The bag size in grams.", (250, 500))
        many = VariableSpec("many", "quantity", "number", "How many bags the customer wants.")
        assert found(said, bag, many, bot=asked, language="en-US") == expected


class TestRequests:
    @pytest.mark.parametrize("utterance", ["", "   ", "…", "\ud800", "?" * 5000])
    def test_that_say_nothing_find_nothing(self, utterance: str) -> None:  # F38
        assert found(utterance, *EVERY, bot="Per quante persone?") == {}

    def test_in_another_language_find_nothing(self) -> None:  # F38
        assert found("le 3 avril, 333 1234567", *EVERY, language="fr-FR") == {}

    def test_need_a_moment_with_a_zone(self) -> None:  # F38
        with pytest.raises(ValueError, match="time zone"):
            ExtractionRequest("x", None, "it", datetime(2026, 1, 1), ZoneInfo("Europe/Rome"), ())

    def test_are_read_up_to_two_thousand_characters(self) -> None:  # F38
        assert found(" " * 1990 + "al 333 1234567", PHONE) == {}

    def test_the_package_is_imported_without_the_slow_library(self) -> None:  # F38
        code = "import sys, adapters.extraction; sys.exit('dateparser' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_moment_at_an_end_of_the_calendar_gives_nothing() -> None:  # A9
    request = ExtractionRequest(
        "il 333 1234567",
        None,
        "it-IT",
        datetime(9999, 12, 31, 23, tzinfo=UTC),
        ZoneInfo("Pacific/Kiritimati"),
        [PHONE],
    )
    assert extract(request) == {}


@pytest.mark.parametrize(
    ("language", "said", "number"),
    [
        ("en-US", "my phone number is 415 555 2671", "+14155552671"),
        ("en-US", "my number is (212) 736-5000", "+12127365000"),
        ("en-US", "my mobile number is 0044 7911 123456", "+447911123456"),
        ("en-GB", "the landline is 020 7946 0958", "+442079460958"),
        ("it-IT", "il mio numero di telefono è 333 1234567", "+393331234567"),
        ("it-IT", "il fisso di casa è lo 06 6982 1234", "+390669821234"),
        ("it-IT", "chiamatemi allo zero zero quattro uno, 44 668 18 00", "+41446681800"),
        ("es-ES", "mi número de teléfono es el 612 345 678", "+34612345678"),
        ("es-ES", "mi número es el 91 123 45 67", "+34911234567"),
        ("es-ES", "apunte el +39 06 6982 1234", "+390669821234"),
    ],
)
def test_a_number_is_read_whatever_leads_to_it(language: str, said: str, number: str) -> None:
    """F38, contract 26, peers 1"""
    value = found(said, PHONE, bot="Come posso contattarla?", language=language)["phone"]
    assert isinstance(value, dict)
    assert value["number"] == number


@pytest.mark.parametrize(
    ("language", "bot", "said"),
    [
        ("en-US", "When would you like to come?", "I'll let you know tomorrow"),
        ("en-US", "When would you like to come?", "last time I came on May 2nd"),
        ("it-IT", WHEN, "le faccio sapere domani"),
        ("it-IT", WHEN, "l'altra volta sono venuto il 2 maggio"),
        ("es-ES", "¿Cuándo quiere venir?", "ya le diré mañana"),
        ("es-ES", "¿Cuándo quiere venir?", "la otra vez vine el 2 de mayo"),
    ],
)
def test_a_day_of_another_occasion_is_no_answer(language: str, bot: str, said: str) -> None:
    """F38, contract 26"""
    assert found("mañana" if language == "es-ES" else "2026-03-09", DATE, bot=bot, language=language)
    assert found(said, DATE, bot=bot, language=language) == {}


def test_an_enum_of_many_members_is_read_by_what_was_said() -> None:  # F38
    """One pattern is made for a member that may be meant, whatever the number of members."""
    streets = tuple(f"via {name}{number}" for name in ("Garibaldi", "Mazzini") for number in range(2_000))
    street = VariableSpec("street", "via", "enum", "La via.", (*streets, "piazza Cavour"))
    made = members._whole.cache_info().misses
    assert found("abito in piazza cavour", street, bot="In che via abita?") == {"street": "piazza Cavour"}
    assert members._whole.cache_info().misses - made < 10


def test_members_that_could_all_be_meant_are_none() -> None:  # F38
    letters = tuple(f"a{'b' * number}" for number in range(1, 700))
    many = VariableSpec("many", "lettere", "enum", "Le lettere.", letters)
    assert found("a" + "b" * 1_500, many, bot="Quali lettere?") == {}


def test_of_many_numbers_and_many_variables_what_was_asked_for_is_read() -> None:  # F38
    people = VariableSpec("people", "persone", "number", "Per quante persone è la prenotazione.")
    others = [
        VariableSpec(f"n{number}", f"numero{number}", "number", "Un numero.") for number in range(9_999)
    ]
    assert found("siamo in 4, no, 5", people, *others, bot="Per quante persone?") == {"people": 5}
    assert found("3 persone", people, *others) == {"people": 3}
    assert found("3 persone e 4 euro", people, *others[:9]) == {"people": 3}
    assert found("3 persone e 4 euro", people, *others) == {}


@pytest.mark.parametrize("said", ["contanti", "carta", "in contanti o carta"])
def test_what_several_enums_could_take_is_no_ones(said: str) -> None:  # F38
    ways = [VariableSpec(f"way{n}", f"modo{n}", "enum", "Il modo.", ("contanti", "carta")) for n in range(50)]
    assert found(said, *ways) == {}


def test_the_night_of_a_day_is_not_one_of_so_many() -> None:  # F38
    nights = VariableSpec("nights", "nights", "number", "How many nights the guest stays.")
    assert found("A table for four on Saturday night", nights, language="en-US") == {}
    assert found("Three nights from Saturday", nights, language="en-US") == {"nights": 3}


def test_what_happened_yesterday_is_no_birth() -> None:  # F38
    birth = VariableSpec("birth", "nascita", "date", "La data di nascita del cliente.")
    assert found("Ho avuto un incidente ieri", birth) == {}
    assert found("Sono nata il 3 marzo 1990", birth) == {"birth": "1990-03-03"}


@pytest.mark.parametrize(
    "said",
    ["invoice 2125550147 is wrong", "my customer id's 2125550147", "your number 212 555 0147 is not working"],
)
def test_what_names_a_reference_is_no_number_to_call(said: str) -> None:  # F38
    assert found(said, PHONE, language="en-US") == {}
