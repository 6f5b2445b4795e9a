"""How much is found, and how much of it is right, on the tables of the benchmark."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from benchmarks.extraction import (
    PRECISION,
    RECALL,
    TABLES,
    UNSEEN,
    Outcome,
    Score,
    cases,
    first_sight,
    main,
    measure,
)


@cache
def measured(name: str) -> Outcome:
    return measure(list(cases(TABLES[name])))


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("hold-out", "hard")])
def test_the_tables_of_utterances_meet_both_goals(name: str) -> None:  # F38
    score = measured(name).score()
    assert score.precision >= PRECISION
    assert score.recall >= RECALL


@pytest.mark.parametrize("name", ["plain", "fresh", "apart"])
def test_members_said_plainly_after_an_open_question_are_found(name: str) -> None:
    """F38, contract 26: and none that is negated, asked about, or part of another thing."""
    score = measured(name).score("enum")
    assert score.recall >= RECALL
    assert score.precision >= PRECISION


def test_over_all_tables_of_ordinary_talk_nearly_nothing_is_wrong() -> None:  # F38, contract 26
    scores = [measured(name).score() for name in TABLES if name != "hard"]
    right, wrong = (sum(getattr(score, kind) for score in scores) for kind in ("right", "wrong"))
    assert Score(right, wrong).precision >= PRECISION


def test_of_what_is_made_to_mislead_most_is_left_out() -> None:  # F38
    score, before = measured("hard").score(), first_sight(TABLES["hard"])
    assert before is not None
    assert score.right >= before.right
    assert score.wrong <= before.wrong / 2
    assert score.precision >= 0.78


def test_utterances_that_no_rule_was_written_for_are_read_nearly_as_well() -> None:  # F38
    score = measured("hold-out").score()
    assert score.precision >= 0.94
    assert score.recall >= 0.85


@pytest.mark.parametrize(
    ("name", "least", "negatives"),
    [
        ("cases", 150, 50),
        ("plain", 180, 40),
        ("fresh", 180, 50),
        ("apart", 90, 20),
        ("hold-out", 60, 20),
        ("hard", 200, 100),
    ],
)
def test_a_table_is_large_and_has_enough_utterances_without_a_value(
    name: str, least: int, negatives: int
) -> None:  # F38
    table = list(cases(TABLES[name]))
    assert len(table) >= least
    assert sum(not case.expected for case in table) >= negatives
    by_language = Counter(case.request.language[:2] for case in table)
    assert by_language.keys() == {"it", "en", "es"}
    assert name not in ("plain", "fresh") or min(by_language.values()) >= 60


def test_what_was_made_of_the_fresh_table_at_first_sight_is_written_down() -> None:  # contract 26
    before = first_sight(TABLES["fresh"])
    assert before is not None
    assert before.right + before.missed <= sum(len(case.expected) for case in cases(TABLES["fresh"]))


def test_no_utterance_stands_in_two_tables() -> None:  # F38
    said: list[tuple[str | None, str]] = []
    for path in TABLES.values():
        said += {(case.request.previous_bot_turn, case.request.utterance) for case in cases(path)}
    assert len(said) == len(set(said))


def test_the_report_has_every_table_and_never_the_failures_of_an_unseen_one(
    capsys: pytest.CaptureFixture[str],
) -> None:  # F38
    assert main(["--failures"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in TABLES)
    for unseen in UNSEEN:
        assert "expected" not in printed.split(f"{unseen}: ")[1].split(": ")[0]
