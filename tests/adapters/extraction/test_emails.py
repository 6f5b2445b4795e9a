"""E-mail addresses, written and spelled out (F38)."""

from __future__ import annotations

import pytest

from flow_engine.variables import VariableSpec
from tests.adapters.extraction.extraction_requests import PEOPLE, found

MAIL = VariableSpec("mail", "mail", "email", "L'indirizzo a cui mandare la conferma.")
ASKED = {"it": "Mi dà la sua mail?", "en": "What is your email address?", "es": "¿Cuál es su correo?"}


@pytest.mark.parametrize(
    ("language", "said", "address"),
    [
        ("it", "mario punto rossi chiocciola example punto it", "mario.rossi@example.it"),
        (
            "it",
            "la mia mail è mario punto rossi ottantadue chiocciola libero punto it",
            "mario.rossi82@libero.it",
        ),
        ("it", "Mario.Rossi@Example.it. Grazie", "Mario.Rossi@example.it"),
        ("it", "è mario rossi chiocciola g mail punto com", "mariorossi@gmail.com"),
        ("it", "info chiocciola studio trattino rossi punto com", "info@studio-rossi.com"),
        ("it", "m r o s chiocciola gmail punto com", "mros@gmail.com"),
        ("it", "a chiocciola example punto it, anzi bi chiocciola example punto it", "bi@example.it"),
        ("en", "john dot smith at example dot com", "john.smith@example.com"),
        ("en", "it's jane underscore doe at example dot co dot uk", "jane_doe@example.co.uk"),
        ("en", "jsmith42@mail.example.org", "jsmith42@mail.example.org"),
        ("es", "ana guión bajo lópez arroba ejemplo punto es", "ana_lopez@ejemplo.es"),
        ("es", "es pedro arroba hot mail punto com", "pedro@hotmail.com"),
    ],
)
def test_an_address_is_read_as_people_give_it(language: str, said: str, address: str) -> None:  # F38
    assert found(said, MAIL, PEOPLE, bot=ASKED[language], language=language) == {"mail": address}


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("it", "scrivete pure rossi chiocciola gmail punto com"),  # where it begins is a guess
        ("it", "il sito è example punto it"),
        ("it", "non mario chiocciola example punto it"),
        ("en", "look at example dot com"),
        ("es", "la web es ejemplo punto es"),
    ],
)
def test_what_may_be_no_address_or_another_one_is_left_out(language: str, said: str) -> None:  # F38
    assert found(said, MAIL, bot=None, language=language) == {}


def test_an_address_is_taken_unasked_by_the_only_variable_of_its_type() -> None:  # F38
    said = "richiamatemi, o scrivete a anna@example.it"
    assert found(said, MAIL, bot="Come posso aiutarla?") == {"mail": "anna@example.it"}
    assert found(said, MAIL, VariableSpec("other", "altra", "email"), bot="Come posso aiutarla?") == {}


@pytest.mark.parametrize(
    ("language", "said", "address"),
    [
        ("it", "usa bob@example.it grazie", "bob@example.it"),
        ("it", "potete usare Bob.Rossi@Example.it", "Bob.Rossi@example.it"),
        ("en", "use bob@example.com", "bob@example.com"),
        ("en", "Contact: Bob Smith bob@example.com", "bob@example.com"),
        ("en", "my mail is bob smith@example.com", "smith@example.com"),
        ("en", "call 020 7946 0000, or write bob_42+x@example.co.uk.", "bob_42+x@example.co.uk"),
        ("es", "puede escribir bob@example.es", "bob@example.es"),
        ("es", "es pedro arroba hot mail punto com", "pedro@hotmail.com"),
        ("it", "scrivi a due@example.it", "due@example.it"),
        ("en", "one.two@example.com, or call", "one.two@example.com"),
        ("es", "mi correo es Ana@Perché.es.", "Ana@xn--perch-fsa.es"),
    ],
)
def test_a_typed_address_begins_where_it_is_written(language: str, said: str, address: str) -> None:  # F38
    assert found(said, MAIL, language=language, typed=True) == {"mail": address}


def test_of_a_typed_address_with_letters_that_none_can_have_no_other_one_is_made() -> None:  # F38
    assert found("müller@example.it", MAIL, typed=True) == {}


def test_a_typed_address_that_is_denied_or_is_one_of_two_is_left_out() -> None:  # F38
    assert found("please not bob@example.com", MAIL, language="en", typed=True) == {}
    assert found("use bob@example.com write eve@example.com", MAIL, language="en", typed=True) == {}
