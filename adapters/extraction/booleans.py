"""Yes and no, as people say them. Only a variable that was asked for takes one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few

_Answer = tuple[int, int, bool]
"""Where it starts and ends, and which it is."""


def answer(text: str, vocabulary: Vocabulary) -> bool | None:
    """What was answered; None for neither, both or unsure. A correction leaves the last."""
    text = anywhere(vocabulary.answers.neutral).sub(" ", text)
    tables = vocabulary.answers
    telling = anywhere((*tables.unsure, *tables.firm_yes, *tables.firm_no))  # the longest phrase decides
    unsure = anywhere(tables.unsure)
    if any(unsure.fullmatch(found.group()) for found in telling.finditer(text)):
        return None
    given = few(_answers(text, vocabulary))
    for place in range(len(given) - 1, 0, -1):
        # The word of correction may belong to the second answer ("anzi no"); a bare "no" corrects nothing.
        if anywhere(vocabulary.turns.corrections).search(text, given[place - 1][1], given[place][1]):
            given = given[place:]
            break
    kinds = {kind for _, _, kind in given}
    return kinds.pop() if len(kinds) == 1 else None


@cache
def _said(vocabulary: Vocabulary) -> re.Pattern[str]:
    """A firm phrase anywhere; a word where a clause begins, after at most three words that lead in."""
    tables = vocabulary.answers
    begins = rf"(?:^|(?<=[,.;!?])|(?<=[,.;!?] )|{alternation(vocabulary.turns.corrections)}[ ,.]{{1,2}})"
    leads = rf"(?:{alternation(tables.leading)}[ ,]{{1,2}}){{0,3}}"
    bare = (
        rf"{alternation(tables.bare_yes)}(?=$| ?[,.!]| {alternation(tables.yes)})"
        if tables.bare_yes
        else r"(?!)"
    )
    return re.compile(
        rf"(?P<firm_no>{alternation(tables.firm_no)})|(?P<firm_yes>{alternation(tables.firm_yes)})"
        rf"|{begins}{leads}(?:(?P<no>{alternation(tables.no)})|(?P<yes>{alternation(tables.yes)}|{bare}))"
        rf"(?! ?\?| not(?!\w))"
    )


def _answers(text: str, vocabulary: Vocabulary) -> Iterator[_Answer]:
    for found in _said(vocabulary).finditer(text):
        yield found.start(), found.end(), bool(found["firm_yes"] or found["yes"])
