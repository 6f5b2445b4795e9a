"""A turn and what is mentioned in it, and what the words around a mention say about it: whose it is, taken
back, refused, one of two, no answer at all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import IntEnum
from functools import cache, cached_property
from itertools import pairwise
from typing import Literal

from adapters.extraction.questions import (
    SIGNS,
    WORD,
    Profile,
    Question,
    is_content,
    measures,
    shares,
    stems,
    topics_of,
)
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, fold, right_before
from flow_engine.values import JsonValue
from flow_engine.vocabulary import VariableType

_REACH = 40
_SENTENCE = 120
_LONGEST_CLAUSE = 200
"""Characters before a mention, and behind it, that can be its clause."""
_SUPPORT_WORDS = 3
_SHORT_ANSWER = 4
"""Words up to which an answer is to the point: a number in it needs no word of the variable beside it."""
_OLDEST = 130
"""Years that somebody may have."""
MOST_WEIGHED = 10_000
"""Pairs of a variable and a value that was said; where there are more, only what was asked for is read."""
TO_A_REFERENCE = r"(?:'s|[:#])?(?: [\w.']{1,12}){0,3}[ :#]*$"
"""From what names a reference to its digits, "order number is": three words at most. A pattern."""
_CLAUSE_END = re.compile(r"[.;?!]|, ")


MentionKind = Literal["phone", "email", "date", "time", "number", "member"]


@dataclass(frozen=True, slots=True)
class Mention:
    """Something typed at `start:end`, in characters, of the normalised text."""

    kind: MentionKind
    start: int
    end: int
    value: JsonValue
    looking_back: JsonValue = None
    """A date as a variable that speaks of the past reads it; a date may have only one of the two values."""
    topics: frozenset[str] = frozenset()
    """What a number is beyond a number (a price, an age): only a variable of that topic may take it."""
    vague: bool = False
    """Too little on its own ("the 5th"): a value only when it was asked for."""


Found = Callable[[], Sequence[Mention]]
"""What is mentioned of one type: looked for when it is first needed."""


class Fit(IntEnum):
    """How well a number fits a variable."""

    OTHERS = 0
    """It counts something else."""
    ALONE = 1
    """It stands alone, or the answer is short: enough for the variable that was asked for."""
    OWN = 2
    """The words around it are the variable's."""


@dataclass(frozen=True, eq=False)
class Turn:
    """What all variables of a request are weighed against; what not all of them need is found when it is."""

    text: str
    tables: Vocabulary
    asked: Question | None
    profiles: Sequence[Profile]
    asked_ids: frozenset[str]
    today: date
    days: Found
    _clauses: dict[tuple[int, int], tuple[int, int]] = field(
        default_factory=dict[tuple[int, int], tuple[int, int]]
    )
    _scores: dict[tuple[str, int], tuple[Fit, int]] = field(
        default_factory=dict[tuple[str, int], tuple[Fit, int]]
    )

    def of_type(self, kind: VariableType) -> Sequence[Profile]:
        return [each for each in self.profiles if each.spec.type == kind]

    def is_asked(self, profile: Profile) -> bool:
        return profile.spec.id in self.asked_ids

    @cached_property
    def topics(self) -> frozenset[str]:
        return topics_of(self.text)

    @cached_property
    def is_open(self) -> bool:
        """Nothing in particular was asked, so that any variable may be what the turn is about."""
        return self.asked is None or self.asked.has(self.tables.turns.openers)

    @property
    def is_short(self) -> bool:
        return len(self.text.split()) <= _SHORT_ANSWER

    def takes(self, profile: Profile, number: Mention) -> bool:
        least = Fit.ALONE if self.is_asked(profile) else Fit.OWN
        return self.fit(profile, number) >= least

    def fit(self, profile: Profile, number: Mention) -> Fit:
        return self._score(profile, number)[0]

    def nearness(self, profile: Profile, number: Mention) -> tuple[int, bool]:
        """How many of the words behind the number are the variable's (0 to 3), then whether that was asked
        for."""
        return self._score(profile, number)[1], self.is_asked(profile)

    def _score(self, profile: Profile, number: Mention) -> tuple[Fit, int]:
        """Each pair is weighed once."""
        place = (profile.spec.id, number.start)
        if place not in self._scores:
            near = sum(shares([word], profile) for word in self.words_behind(number))
            self._scores[place] = (self._fit(profile, number), near)
        return self._scores[place]

    def _fit(self, profile: Profile, number: Mention) -> Fit:
        if "age" in profile.topics and (
            (isinstance(number.value, int) and number.value > _OLDEST)
            or "birth" in topics_of(" ".join(self.words_ahead(number)))
        ):
            return Fit.OTHERS  # "born in 1980", "born in 80"
        behind = self.words_behind(number)
        if self._is_another_unit(profile, number, behind):
            return Fit.OTHERS
        if number.topics:
            return Fit.OWN if number.topics & profile.topics else Fit.OTHERS
        alone = not behind or not is_content(behind[0])
        if number.vague:
            return Fit.ALONE if self.is_short and (alone or shares(behind[:1], profile)) else Fit.OTHERS
        if shares(behind, profile) or (alone and shares(self.words_ahead(number), profile)):
            return Fit.OWN
        if alone:
            return Fit.ALONE
        lead = self.text[max(0, number.start - _REACH) : number.start]
        if right_before((*self.tables.words.having, *self.tables.turns.wishes)).search(lead):
            return Fit.OTHERS  # "we have two baths"
        others = (each for each in self.of_type("number") if each is not profile)
        return (
            Fit.OTHERS if not self.is_short or any(shares(behind[:1], each) for each in others) else Fit.ALONE
        )

    def _is_another_unit(self, profile: Profile, number: Mention, behind: Sequence[str]) -> bool:
        """ "Two weeks" are not so many months, nor are "20 yen" or "¥20" so many dollars."""
        beside = self.text[max(0, number.start - 1) : number.start] + self.text[number.end :].lstrip()[:1]
        said = stems(f"{behind[0] if behind else ''} {beside.translate(SIGNS)}")
        return any(
            said & frozenset[str]().union(*units.values())
            and profile.words & frozenset[str]().union(*units.values())
            and not any(said & words and profile.words & words for words in units.values())
            for units in measures()
        )

    def words_behind(self, mention: Mention) -> Sequence[str]:
        """Up to three words of the clause behind the mention, before any digit and any day: the night of
        Saturday is not one of so many."""
        end = min(self.clause(mention)[1], mention.end + _REACH)
        if WORD.search(self.text, mention.end, end):
            end = min((day.start for day in self.days() if mention.end <= day.start < end), default=end)
        text = re.split("[0-9]", self.text[mention.end : end])[0]
        return WORD.findall(text)[:_SUPPORT_WORDS]

    def words_ahead(self, mention: Mention) -> Sequence[str]:
        """Up to three words of the clause before the mention, behind any digit."""
        start, _ = self.clause(mention)
        text = re.split("[0-9]", self.text[max(start, mention.start - _REACH) : mention.start])[-1]
        return WORD.findall(text)[-_SUPPORT_WORDS:]

    def declines(self, mention: Mention) -> bool:
        """ "not Monday", "Monday no", "Monday I can't": named, but not as the answer. A day and a
        part of the day are declined by being busy, too, a day by an answer that is put off to it."""
        turns = self.tables.turns
        lead = _CLAUSE_END.split(self.text[max(0, mention.start - _REACH) : mention.start])[-1]
        plain_no = _patterns(self.tables).plain_no
        if right_before(turns.negations).search(lead) or plain_no.match(self.text, mention.end):
            return True
        begin, end = self.clause(mention)
        refused = turns.refusals
        if mention.kind == "date":
            if anywhere(turns.undecided).search(self.text):
                return True
            refused = (*refused, *turns.busy, *turns.postponed)
        elif (
            mention.kind == "member" and stems(fold(str(mention.value))) & _patterns(self.tables).parts_of_day
        ):
            refused = (*refused, *turns.busy)
        return anywhere(refused).search(self.text, begin, end) is not None

    def is_former(self, mention: Mention) -> bool:
        """Whether its clause is about an earlier occasion: "last time I came on the 2nd"."""
        turns = self.tables.turns
        phrases = turns.formerly if mention.kind == "number" else (*turns.formerly, *turns.done)
        return anywhere(phrases).search(self.text, *self.clause(mention)) is not None

    def clause(self, mention: Mention) -> tuple[int, int]:
        """Where the clause around it begins and ends, in characters."""
        place = (mention.start, mention.end)
        if place not in self._clauses:
            self._clauses[place] = self._clause(*place)
        return self._clauses[place]

    def _clause(self, start: int, end: int) -> tuple[int, int]:
        breaks = _patterns(self.tables).clause_break
        least, most = max(0, start - _LONGEST_CLAUSE), min(len(self.text), end + _LONGEST_CLAUSE)
        begin = max((found.end() for found in breaks.finditer(self.text, least, start)), default=least)
        after = breaks.search(self.text, end, most)
        return begin, after.start() if after else most

    def own(self, profile: Profile, mentions: Sequence[Mention], *, strict: bool) -> Sequence[Mention]:
        """Without what is another person's, where something is the user's own; with `strict` in any case. A
        variable about another person takes all."""
        if "another" not in self.topics - profile.topics:
            return mentions
        own = [mention for mention in mentions if not self._is_anothers(mention)]
        return own if own or strict else mentions

    def _is_anothers(self, mention: Mention) -> bool:
        """Whether the last person that the sentence names before it is not the user."""
        sentence = re.split("[.;?!] ", self.text[max(0, mention.start - _SENTENCE) : mention.start])[-1]
        others = list(anywhere(self.tables.topics["another"].words).finditer(sentence))
        turns = self.tables.turns
        return bool(others) and not anywhere((*turns.own, *turns.calls)).search(sentence, others[-1].end())

    def names_two(self, mentions: Sequence[Mention]) -> bool:
        """ "two or three": any two that follow each other as alternatives."""
        alternative = _patterns(self.tables).alternative
        return any(
            alternative.fullmatch(self.text, first.end, second.start) for first, second in pairwise(mentions)
        )

    def one_value(self, taker: Profile | None, mentions: Sequence[Mention]) -> dict[str, JsonValue]:
        """The one value that is left after corrections, by the taker's id, as JSON holds it. Empty without a
        taker, for two values, and for one that is taken back and not replaced ("Monday, no wait")."""
        meant = last_meant(mentions, self.text, self.tables)
        if meant and _patterns(self.tables).withdrawn.match(self.text, meant[-1].end):
            return {}
        values = {repr(mention.value): mention.value for mention in meant}
        return {taker.spec.id: next(iter(values.values()))} if taker is not None and len(values) == 1 else {}


class _Patterns:
    """What surrounds a mention, in one language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        turns = vocabulary.turns
        before = alternation(vocabulary.topics["reference"].before)
        self.reference = re.compile(before + TO_A_REFERENCE)
        taken_back = alternation((*turns.corrections, *turns.plain_no))
        self.correction = re.compile(rf"{alternation(turns.conditionals)}|(?P<taken_back>{taken_back})")
        correction, no = alternation(turns.corrections), alternation(turns.plain_no)
        self.withdrawn = re.compile(
            rf"[ ,.]{{1,3}}(?:{no}[ ,.]{{1,3}}{correction}|{correction}[ ,.]{{1,3}}{no})"
        )
        # From a range's first word to its last: what stands right behind belongs to it. `#` is the first end.
        both = (
            r"[ ,]{1,2}(?:[\wº.,]+ ){1,4}".join(alternation([part.strip()]) for part in phrase.split("#"))
            for phrase in vocabulary.dates.ranges
        )
        self.ranges = re.compile(rf"(?<!\w)(?:{'|'.join(both)})")
        self.alternative = re.compile(rf"[ ,]*{alternation(turns.alternatives)} (?:\w{{1,4}} ){{0,2}}")
        self.plain_no = re.compile(rf" {alternation(turns.plain_no)}(?=$| ?[,.;!])")
        times = vocabulary.times
        self.parts_of_day = stems(" ".join((*times.morning, *times.afternoon, *times.evening, *times.night)))
        self.clause_break = re.compile(rf"[,.;?!]|{alternation(turns.contrasts)}")


_patterns = cache(_Patterns)


def reference_before(text: str, start: int, vocabulary: Vocabulary) -> bool:
    # The same clause's text right before `start`.
    lead = text[max(0, start - _REACH) : start]
    return _patterns(vocabulary).reference.search(_CLAUSE_END.split(lead)[-1]) is not None


def follows_correction(text: str, start: int, end: int, vocabulary: Vocabulary) -> bool:
    """Whether something is taken back between the two places, in characters; "if not, …" is another wish, no
    correction."""
    return any(found["taken_back"] for found in _patterns(vocabulary).correction.finditer(text, start, end))


def in_range(text: str, start: int, vocabulary: Vocabulary) -> bool:
    """Whether `start`, in characters, is one end of a range: "from the 3rd to the 5th", "between 50 and
    60"."""
    return any(
        found.start() <= start <= found.end() + 1 for found in _patterns(vocabulary).ranges.finditer(text)
    )


def last_meant(mentions: Sequence[Mention], text: str, vocabulary: Vocabulary) -> Sequence[Mention]:
    """The mentions after the last correction that has one on either side; all without a correction."""
    for place in range(len(mentions) - 1, 0, -1):
        if follows_correction(text, mentions[place - 1].end, mentions[place].start, vocabulary):
            return mentions[place:]
    return mentions
