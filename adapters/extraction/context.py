"""What the words around a mention say about it: taken back, refused, one of two, no answer at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from adapters.extraction.mentions import Mention
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, right_before

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
    turns = vocabulary.turns
    taken_back = alternation((*turns.corrections, *turns.plain_no))
    return re.compile(rf"{alternation(turns.conditionals)}|(?P<taken_back>{taken_back})")


def follows_correction(text: str, start: int, end: int, vocabulary: Vocabulary) -> bool:
    """Whether something is taken back between the two places; "if not, …" is another wish, no correction."""
    return any(found["taken_back"] for found in _correction(vocabulary).finditer(text, start, end))


@cache
def _ranges(vocabulary: Vocabulary) -> re.Pattern[str]:
    """From a range's first word to its last: what stands right behind belongs to it. `#` is the first end."""
    both = (
        r"[ ,]{1,2}(?:[\wº.,]+ ){1,4}".join(alternation([part.strip()]) for part in phrase.split("#"))
        for phrase in vocabulary.dates.ranges
    )
    return re.compile("|".join(both))


def in_range(text: str, start: int, vocabulary: Vocabulary) -> bool:
    """Whether it is one end of a range: "from the 3rd to the 5th", "between 50 and 60"."""
    return any(found.start() <= start <= found.end() + 1 for found in _ranges(vocabulary).finditer(text))


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


def declined(text: str, mention: Mention, vocabulary: Vocabulary) -> bool:
    """ "not Monday", "Monday I can't": named, but not as the answer. A day is declined by being busy, too."""
    turns = vocabulary.turns
    if right_before(turns.negations).search(text[max(0, mention.start - _REACH) : mention.start]):
        return True
    begin, end = clause(text, mention.start, mention.end, vocabulary)
    refused = (*turns.refusals, *turns.busy) if mention.kind == "date" else turns.refusals
    return anywhere(refused).search(text, begin, end) is not None
