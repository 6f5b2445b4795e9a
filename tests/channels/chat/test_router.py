"""The router on its table of utterances, and its rules."""

from __future__ import annotations

import pytest

from benchmarks.chat_router import TOP_1_GOAL, TOP_3_GOAL, decisions, measured, read_table
from channels.chat.inheritance import effective
from channels.chat.router import IntentRouter, guessed_language
from channels.chat.rows import StoredRow, whole
from flow_engine.values import JsonValue


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


def test_scores_are_from_0_to_1_and_strange_words_reach_little() -> None:  # C7
    router = router_of({"name": "a", "examples": ["order a pizza"]}, {"name": "b", "examples": ["weather"]})
    assert router.scores("order a pizza")["a"] == 1
    assert 0 < router.scores("order a zeppelin quickly please")["a"] < 0.6
    assert router.scores("zeppelin") == {"a": 0, "b": 0}
    assert router.scores("") == {"a": 0, "b": 0}


def test_the_language_of_a_message_is_guessed_by_its_commonest_words() -> None:  # C6
    assert guessed_language("where is my parcel and when does it come") == "en"
    assert guessed_language("dove è il mio pacco e quando arriva") == "it"
    assert guessed_language("dónde está mi paquete y cuándo llega") == "es"
    assert guessed_language("pizza") is None
