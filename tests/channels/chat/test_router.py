"""The router on its table of utterances, and its rules."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.chat_router import REFUSED_GOAL, TOP_1_GOAL, TOP_3_GOAL, decisions, measured, read_table
from channels.chat.inheritance import effective
from channels.chat.router import STEMMERS, IntentRouter, guessed_language
from channels.chat.rows import StoredRow, whole
from flow_engine.values import JsonValue
from tests.timing import takes_less_than


def router_of(*rows: dict[str, JsonValue]) -> IntentRouter:
    table = {str(row["name"]): StoredRow(1, whole(row)) for row in rows}
    return IntentRouter(effective(name, table) for name in table)


def test_the_agent_that_is_meant_is_found_in_three_languages() -> None:  # C7
    table = read_table()
    assert len(table.utterances) >= 150
    assert len(table.agents) >= 8
    for figures in measured(table, table.router()):
        assert figures.top_1 >= TOP_1_GOAL, figures
        assert figures.top_3 >= TOP_3_GOAL, figures
        assert figures.refused >= REFUSED_GOAL, figures


def test_equal_texts_and_tables_give_equal_decisions() -> None:  # C7
    table = read_table()
    first, second = (decisions(table, table.router()) for _ in range(2))
    assert [decision.reply() for decision in first] == [decision.reply() for decision in second]


def test_no_utterance_of_the_table_is_an_example_of_an_agent() -> None:  # C7
    table = read_table()
    examples = {str(example).casefold() for row in table.agents for example in row["examples"]}  # type: ignore[union-attr]
    assert not [case.text for case in table.utterances if case.text.casefold() in examples]


@pytest.mark.parametrize("text", ["prenotazione", "PRENOTARE", "prenotò", "vorrei delle prenotazioni"])
def test_words_are_compared_by_their_stems_without_accents(text: str) -> None:  # C7
    router = router_of(
        {"name": "a", "languages": ["it-IT"], "examples": ["prenotare una visita"]},
        {"name": "b", "languages": ["it"], "examples": ["comprare un biglietto"]},
    )
    assert router.candidates(text, 2)[0].agent == "a"
    assert router.scores(text)["b"] == 0


def test_a_message_is_compared_in_its_own_language() -> None:  # C7
    """`tall` is an English word, and the stem of a Spanish one for sizes."""
    router = router_of(
        {"name": "sizes", "examples": ["¿Tenéis esta talla en azul?", "Do you have this size in blue?"]},
        {"name": "jobs", "languages": ["en", "es"], "examples": ["¿Cuánto se gana?", "What is the salary?"]},
    )
    assert router.scores("how tall is the tower")["sizes"] < 0.1
    assert router.candidates("¿Hay otra talla?", 1)[0].agent == "sizes"
    lonely = router_of({"name": "a", "languages": ["it"], "examples": ["order a pizza"]})
    assert lonely.scores("vorrei una pizza")["a"] > 0.5


def test_words_without_content_fit_only_texts_that_have_no_others() -> None:  # C7, C10
    router = router_of(
        {"name": "small", "examples": ["how are you?", "thank you very much"]},
        {"name": "parcels", "examples": ["where is my parcel?"]},
    )
    assert router.scores("Hello, how are you?")["small"] > 0.5
    assert router.candidates("thank you, and where is my parcel?", 2)[0].agent == "parcels"
    assert router.scores("how are zeppelins built?")["small"] < 0.1


@pytest.mark.parametrize("word", ["Rechnungskopie", "Kundenrechnung", "Rechnungen"])
def test_a_word_that_is_akin_to_a_known_one_counts_for_a_part_of_it(word: str) -> None:  # C7
    router = router_of(
        {"name": "a", "languages": ["de"], "examples": ["Wo ist die Rechnung?"]},
        {"name": "b", "languages": ["de"], "examples": ["Wo ist das Paket?"]},
    )
    assert router.candidates(word, 2)[0].agent == "a"
    assert router.scores(word)["b"] == 0
    assert router.scores(word)["a"] <= router.scores("Rechnung")["a"]


def test_scores_are_from_0_to_1_and_strange_words_reach_little() -> None:  # C7
    router = router_of({"name": "a", "examples": ["order a pizza"]}, {"name": "b", "examples": ["weather"]})
    assert router.scores("order a pizza")["a"] == 1
    assert 0 < router.scores("order a zeppelin quickly please")["a"] < 0.6
    assert router.scores("zeppelin") == {"a": 0, "b": 0}
    assert router.scores("") == {"a": 0, "b": 0}


def test_of_a_row_its_first_pages_are_read() -> None:  # C7
    lines: list[JsonValue] = [" ".join(f"w{line}x{word}" for word in range(150)) for line in range(400)]
    row = {"name": "a", "description": "The weather.", "examples": lines}
    assert takes_less_than(3, lambda: router_of(row))
    router = router_of(row)
    assert router.scores("weather")["a"] > 0.9
    assert router.scores("w399x149")["a"] == 0.0


def test_a_message_of_many_or_long_words_is_scored_at_once() -> None:  # C7
    router = router_of({"name": "a", "languages": [*STEMMERS][:20], "examples": ["order a pizza"]})
    letters, endings = "bcdfghjklmnpqrst", iter("aeiouwxyzbcdfghjklmn")

    def asked() -> None:  # other words each time: stems are kept
        for last in islice(endings, 5):
            text = " ".join(f"{a}{b}{c}{last}" for a in letters for b in letters for c in "aeiouy")
            assert router.scores(f"{text} {last}{'ing' * 2_000}")["a"] == 0

    assert takes_less_than(1.5, asked)
    assert router.scores("pizza")["a"] > 0


def test_the_language_of_a_message_is_guessed_by_its_commonest_words() -> None:  # C6
    assert guessed_language("where is my parcel and when does it come") == "en"
    assert guessed_language("dove è il mio pacco e quando arriva") == "it"
    assert guessed_language("dónde está mi paquete y cuándo llega") == "es"
    assert guessed_language("pizza") is None
