"""Yes and no, as people say them.

1. A firm phrase answers anywhere, a word where a clause begins; a correction leaves the last.
2. What begins other sentences too ("ok, how much is it?", "I have two cards") is an answer only where the
   rest of its clause says nothing or speaks of the variable, and where nothing is asked behind it.
3. An objection or a condition that says something ("yes, but …", "yes if …") leaves it open, and so does a
   "wait", a greeting ("yes, hello, …"), or what turns to another matter.
"""

import re
from functools import cache

from adapters.extraction.context import Turn
from adapters.extraction.questions import WORD, Profile, is_content, shares
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few

_CLAUSE = re.compile(r"[,.;:?!]")


class _Patterns:
    """Answers in one language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A firm phrase anywhere; a word where a clause begins, after at most three words that lead in.
        tables = vocabulary.answers
        begins = rf"(?:^|(?<=[,.;!?])|(?<=[,.;!?] )|{alternation(vocabulary.turns.corrections)}[ ,.]{{1,2}})"
        leads = rf"(?:{alternation(tables.leading)}[ ,]{{1,2}}){{0,3}}"
        bare = (
            rf"{alternation(tables.bare_yes)}(?=$| ?[,.!]| {alternation(tables.yes)})"
            if tables.bare_yes
            else r"(?!)"
        )
        # "Ok no" and "yes or no?" are no yes.
        either = alternation(vocabulary.turns.alternatives)
        kept = rf"(?! (?:{either} )?{alternation(tables.no)}(?=$| ?[,.;!?]))"
        self.answer = re.compile(
            rf"(?P<firm_no>{alternation(tables.firm_no)})|(?P<firm_yes>{alternation(tables.firm_yes)})"
            rf"|{begins}{leads}(?:(?P<no>{alternation(tables.no)})|(?P<yes>(?:{alternation(tables.yes)}|{bare}){kept}))"
            rf"(?! ?\?| not(?!\w))"
        )
        self.held = re.compile(rf"[ ,.]{{1,2}}{alternation(tables.holding)}")
        self.greets = re.compile(rf"[ ,]{{1,2}}{alternation(tables.greetings)}[ ,.!]{{1,2}}\w")
        asked = alternation(tables.asking)
        self.asks = re.compile(rf"\?|{asked}")
        turns = alternation((*tables.leading, *vocabulary.turns.corrections))
        self.asks_at_once = re.compile(rf"[ ,.]{{0,2}}(?:{turns}[ ,]{{1,2}})?{asked}")
        every = (*tables.yes, *tables.no, *tables.firm_yes, *tables.firm_no, *tables.leading)
        self.determined = re.compile(r" \w+" if vocabulary.code == "en" else r"(?!)")
        self.says_nothing = re.compile(alternation((*every, *vocabulary.turns.choosing)))


_patterns = cache(_Patterns)


def answer(turn: Turn, taker: Profile) -> bool | None:
    """What was answered for `taker`; None for neither, both or unsure."""
    tables = turn.tables.answers
    text = anywhere(tables.neutral).sub(" ", turn.text)
    firm = few(anywhere((*tables.firm_yes, *tables.firm_no)).finditer(text))
    for unsure in anywhere(tables.unsure).finditer(text):  # "i don't know", unlike "magari sì", is not firm
        if not any(each.start() <= unsure.start() and unsure.end() <= each.end() for each in firm):
            return None
    said = few(_patterns(turn.tables).answer.finditer(text))
    for place in range(len(said) - 1, 0, -1):
        # The word of correction may belong to the second answer ("anzi no"); a bare "no" corrects nothing.
        if anywhere(turn.tables.turns.corrections).search(text, said[place - 1].end(), said[place].end()):
            said = said[place:]
            break
    kinds = {bool(found["firm_yes"] or found["yes"]) for found in said}
    # Places stay: what answers, leads in or only chooses is blanked.
    rest = _patterns(turn.tables).says_nothing.sub(lambda found: " " * len(found.group()), text)
    if len(kinds) != 1 or not any(_stands(found, rest, turn.tables, taker) for found in said):
        return None
    condition = anywhere(tables.objections).search(text, 0, said[0].start())  # "if it's free, yes"
    if condition and _says_something(rest[condition.end() : said[0].start()], taker):
        return None
    return None if _is_left_open(text, rest, said[-1].end(), turn.tables, taker) else kinds.pop()


def _stands(found: re.Match[str], rest: str, vocabulary: Vocabulary, taker: Profile) -> bool:
    """Rule 2."""
    tables, patterns = vocabulary.answers, _patterns(vocabulary)
    if not (word := found["yes"] or found["no"]):
        return True
    if anywhere(tables.plain).fullmatch(word) or word in tables.bare_yes:
        if found["yes"]:
            return patterns.asks_at_once.match(found.string, found.end()) is None
        # "No nuts" says what there shall not be of, "no, nuts" does not.
        determined = patterns.determined.match(rest, found.end())
        return not (determined and _says_something(determined.group(), taker))
    clause = _CLAUSE.split(rest[found.end() :], maxsplit=1)[0]
    return not _says_something(clause, taker) and patterns.asks.search(rest, found.end()) is None


def _is_left_open(text: str, rest: str, end: int, vocabulary: Vocabulary, taker: Profile) -> bool:
    """Rule 3, of what is said behind the last answer."""
    patterns, turned = _patterns(vocabulary), anywhere(vocabulary.answers.turning).search(text, end)
    if patterns.held.match(text, end) or patterns.greets.match(text, end):
        return True
    if turned is not None and not shares(WORD.findall(turned.group()), taker):
        return True
    objection = anywhere(vocabulary.answers.objections).search(text, end)
    if objection is None:
        return False
    denied = anywhere(vocabulary.answers.no).search(text, objection.end())
    return denied is not None or _says_something(rest[objection.end() :], taker)


def _says_something(text: str, taker: Profile) -> bool:
    return any(is_content(word) and not shares([word], taker) for word in WORD.findall(text))
