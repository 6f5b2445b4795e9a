"""What the words around a mention say about it: taken back, refused, one of two, no answer at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from extraction.request import Mention
from extraction.vocabulary import Vocabulary, alternation, anywhere, right_before

_REACH = 40
_CLAUSE_END = re.compile(r"[.;?!]|, ")


@cache
def _reference(vocabulary: Vocabulary) -> re.Pattern[str]:
    """ "order number is " and the like, with at most three words between the reference and its digits."""
    before = alternation(vocabulary.topics["reference"].before)
    return re.compile(before + r"[:#]?(?: [\w.']{1,12}){0,3}[ :#]*$")


def reference_before(text: str, start: int, vocabulary: Vocabulary) -> bool:
    return _reference(vocabulary).search(_lead(text, start)) is not None


def _lead(text: str, start: int) -> str:
    """The same clause's text right before `start`."""
    lead = text[max(0, start - _REACH) : start]
    return _CLAUSE_END.split(lead)[-1]


@cache
def _correction(vocabulary: Vocabulary) -> re.Pattern[str]:
    return re.compile(alternation((*vocabulary.turns.corrections, *vocabulary.turns.plain_no)))


def follows_correction(text: str, start: int, end: int, vocabulary: Vocabulary) -> bool:
    """Whether something is taken back between the two places."""
    return _correction(vocabulary).search(text, start, end) is not None


def last_meant(mentions: Sequence[Mention], text: str, vocabulary: Vocabulary) -> Sequence[Mention]:
    """The mentions after the last correction that has one on either side; all without a correction."""
    for place in range(len(mentions) - 1, 0, -1):
        if follows_correction(text, mentions[place - 1].end, mentions[place].start, vocabulary):
            return mentions[place:]
    return mentions


@cache
def _alternative(vocabulary: Vocabulary) -> re.Pattern[str]:
    return re.compile(rf"[ ,]*{alternation(vocabulary.turns.alternatives)} (?:\w{{1,4}} ){{0,2}}")


def alternatives(first: Mention, second: Mention, text: str, vocabulary: Vocabulary) -> bool:
    return _alternative(vocabulary).fullmatch(text, first.end, second.start) is not None


@cache
def _clause_break(vocabulary: Vocabulary) -> re.Pattern[str]:
    return re.compile(rf"[,.;?!]|{alternation(vocabulary.turns.contrasts)}")


def clause(text: str, start: int, end: int, vocabulary: Vocabulary) -> tuple[int, int]:
    """Where the clause around a mention begins and ends."""
    breaks = _clause_break(vocabulary)
    begin = max((found.end() for found in breaks.finditer(text, 0, start)), default=0)
    after = breaks.search(text, end)
    return begin, after.start() if after else len(text)


def declined(text: str, start: int, end: int, vocabulary: Vocabulary) -> bool:
    """ "not Monday", "Monday I can't": named, but not as the answer."""
    if right_before(vocabulary.turns.negations).search(text[max(0, start - _REACH) : start]):
        return True
    begin, finish = clause(text, start, end, vocabulary)
    return anywhere(vocabulary.turns.refusals).search(text, begin, finish) is not None
