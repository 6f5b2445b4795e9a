"""An utterance as every scanner reads it: folded, number words as digits, hesitations gone.

    "Ehm, tre tre tre, doppio cinque"   →  "3 3 3, 5 5"
    "The twenty-first of May"           →  "the 21º of may"

Ordinals carry `º` and only stand for digits beside a month or after "the": elsewhere ("the first visit") they
are words. Articles that are also "one" stay words.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import accumulate
from typing import Protocol, cast

import text_to_num

from adapters.extraction.vocabulary import LONGEST_KEPT, Vocabulary, alternation, as_listed, fold

MAX_CHARS = 2000
"""An utterance is cut here: longer ones are no speech, and every scanner's work is bounded by it."""

_TOKEN = re.compile(r"[^\W\d_]+|[0-9]+|\s+|.", re.DOTALL)
_ORDINAL = re.compile(r"([0-9])\s?(?:[ºª°]|(?:st|nd|rd|th)(?!\w))")
_UNIT = re.compile(r"([0-9])(?=(?:[ap]\.?m|k)(?!\w))")
"""Before the "pm" of "3pm" and the "k" of "20k"."""
_HALVES = dict.fromkeys(range(0xD800, 0xE000), " ")  # of characters, which no UTF-8 carries
_PLAIN = _HALVES | str.maketrans("’‘`´–—…¿¡", "''''--.  ")
_DOTS = re.compile(r"\.(?:\s?\.)+")
_REACH = 24
"""How far before an ordinal a month is looked for: the longest name and "the" fit."""


class _Found(Protocol):
    """What text_to_num finds: tokens `start` to `end` (exclusive), their value and its digits."""

    start: int
    end: int
    text: str
    value: float
    is_ordinal: bool


class _Token:
    """A word as text_to_num wants it."""

    __slots__ = ("_is_word", "_text")

    def __init__(self, text: str, is_word: bool) -> None:
        self._text = text
        self._is_word = is_word

    def text(self) -> str:
        return self._text

    def nt_separated(self, previous: _Token) -> bool:
        return False

    def not_a_number_part(self) -> bool:
        return self._is_word


class _Patterns:
    def __init__(self, vocabulary: Vocabulary) -> None:
        words, dates = vocabulary.words, vocabulary.dates
        zero, twice, thrice = map(alternation, (words.zero, words.double, words.triple))
        months = alternation(name for names in dates.months for name in names)
        the = r"|(?<!\w)the" if dates.bare_day_needs_ordinal else ""
        self.fillers = re.compile(rf"{alternation(words.fillers)}(?: ?[,.])*")
        # "2 million" is no number and another one.
        self.not_numbers = re.compile(
            rf"{alternation(words.not_numbers)}|(?<=[0-9] ){alternation(words.scales)}"
        )
        self.before_ordinal = re.compile(rf"(?:{months}(?: the)?{the}) $")
        self.after_ordinal = re.compile(rf" (?:{alternation(dates.of)} )?{months}")
        self.zero = re.compile(
            rf"{zero}(?=[ ,]{{1,2}}(?:[0-9]|{zero}|{twice}|{thrice}))|(?<=[0-9] ){zero}(?!['’ ]clock)"
        )
        self.repeated = re.compile(rf"(?:(?P<twice>{twice})|{thrice}) (?P<digit>[0-9])(?![0-9])")
        self.plus = re.compile(rf"{alternation(words.plus)} (?=[0-9])")
        self.amounts = re.compile(alternation(words.amounts))
        # "Point five", but not "at this point five of us".
        self.below_one = re.compile(
            rf"(?P<lead>(?:^|[.,;?!] )(?:{alternation(words.minus)} )?)(?:{zero} )?"
            rf"{alternation(words.decimal)} (?P<digits>[0-9](?: ?[0-9])*)(?![\w.,-])"
        )


_patterns = cache(_Patterns)


def normalise(text: str, vocabulary: Vocabulary) -> str:
    patterns = _patterns(vocabulary)
    text = text[:MAX_CHARS].translate(_PLAIN).lower()
    text = _UNIT.sub(r"\1 ", _ORDINAL.sub(r"\1º", text))
    text = patterns.fillers.sub(" ", fold(text, vocabulary.words.kept_accents))
    text = " ".join(_DOTS.sub(".", text).split()).strip(" ,")
    text = patterns.amounts.sub(lambda found: str(vocabulary.words.amounts[as_listed(found.group())]), text)
    text = patterns.zero.sub("0", _with_digits(text, vocabulary, patterns))
    text = patterns.repeated.sub(lambda found: " ".join(found["digit"] * (2 if found["twice"] else 3)), text)
    text = patterns.below_one.sub(
        lambda found: f"{found['lead']}0{vocabulary.decimal_mark}{found['digits'].replace(' ', '')}", text
    )
    return patterns.plus.sub("+", text)


def _with_digits(text: str, vocabulary: Vocabulary, patterns: _Patterns) -> str:
    """Number words become digits; an ordinal only beside a month or after "the", see above."""
    words = vocabulary.words
    parts: list[str] = _TOKEN.findall(text)
    if not any(len(part) > LONGEST_KEPT or _may_begin(part, vocabulary) for part in parts):
        return text
    no_numbers = {place for found in patterns.not_numbers.finditer(text) for place in range(*found.span())}
    stay = {*words.articles, *words.zero}
    starts = list(accumulate(map(len, parts), initial=0))
    tokens = [
        _Token(words.respelled.get(part, part), part in stay or start in no_numbers)
        for part, start in zip(parts, starts, strict=False)
    ]
    for number in reversed(_found(tokens, vocabulary)):
        start, end = starts[number.start], starts[number.end]
        if not number.is_ordinal:
            text = text[:start] + number.text + text[end:]
        elif patterns.before_ordinal.search(
            text[max(0, start - _REACH) : start]
        ) or patterns.after_ordinal.match(text, end):
            text = f"{text[:start]}{int(number.value)}º{text[end:]}"
    return text


@lru_cache(maxsize=8192)  # most of what is said are a few thousand words
def _may_begin(word: str, vocabulary: Vocabulary) -> bool:
    """Whether a number can: one that is no number alone only goes on with one."""
    return bool(_found([_Token(vocabulary.words.respelled.get(word, word), False)], vocabulary))


def _found(tokens: list[_Token], vocabulary: Vocabulary) -> list[_Found]:
    return cast(list[_Found], text_to_num.find_numbers(tokens, vocabulary.code, threshold=0))
