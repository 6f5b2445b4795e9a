"""How names are compared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.documents import normalise_name


@pytest.mark.parametrize(
    ("name", "normalised"),
    [
        ("Prenotazione", "prenotazione"),
        ("Città Nuova", "citta_nuova"),
        ("  Two   words\n", "two_words"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("Ångström", "angstrom"),
        ("İstanbul", "istanbul"),
        ("ﬁle", "file"),
        ("already_normal", "already_normal"),
        ("한국", "한국"),
        ("", ""),
    ],
)
def test_case_accents_and_spaces_do_not_matter(name: str, normalised: str) -> None:  # F4
    assert normalise_name(name) == normalised


def test_marks_that_make_another_letter_are_kept() -> None:  # F4
    assert normalise_name("が") != normalise_name("か")
    assert normalise_name("कि") != normalise_name("कु")


@settings(deadline=None)
@given(st.text())
def test_a_normalised_name_is_normal(name: str) -> None:  # F4
    assert normalise_name(normalise_name(name)) == normalise_name(name)


@settings(deadline=None)
@given(st.text(st.characters(categories=["Lu", "Ll"], max_codepoint=0x24F)))
def test_case_never_matters(name: str) -> None:  # F4
    assert normalise_name(name.lower()) == normalise_name(name)
