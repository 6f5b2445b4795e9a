"""The tables of a language: read once from `languages/<code>.toml`, folded, and checked against these
shapes. The tables hold words; how words become patterns is in this file alone.

1. A phrase is matched as whole words. A space in it also matches a comma, a trailing `*` any ending.
2. Folding lowers case and removes accents, in tables and utterances alike, except from the few words whose
   accent is their meaning (`sì` is "yes", `si` is not).
3. Every pattern made here is linear: alternatives of literal words, no repetition inside a repetition.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby, islice
from typing import Literal, TypeVar, cast

from pydantic import TypeAdapter

LANGUAGES = ("it", "en", "es")
LONGEST_KEPT = 64
"""Characters of a word of an utterance of which it is remembered what it is: strangers say what they like."""

Phrases = tuple[str, ...]
Unit = Literal["minute", "hour", "day", "week", "month", "year"]


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    kept_accents: Phrases
    fillers: Phrases
    articles: Phrases
    """Those that are the number one as well."""
    indefinite: Phrases
    definite: Phrases
    """What stands before a thing that is known: articles, and whose it is."""
    by: Phrases
    """Before what something is done with, or where."""
    having: Phrases
    """Before what somebody has: two baths are not two guests."""
    one: Phrases
    respelled: dict[str, str]
    not_numbers: Phrases
    amounts: dict[str, int]
    double: Phrases
    triple: Phrases
    zero: Phrases
    plus: Phrases
    minus: Phrases
    spans: Phrases
    """Between the two ends of a range ("four to six")."""
    also: Phrases
    """Between two numbers of one thing ("four and six years")."""
    scales: dict[str, int]
    decimal: Phrases
    """The decimal mark, as it is said."""
    parts: Phrases
    part_more: dict[str, float]
    between_digits: Phrases
    stop: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """`yes` and `no` count where a clause begins, the firm ones anywhere; one unsure phrase ends it."""

    yes: Phrases
    no: Phrases
    firm_yes: Phrases
    firm_no: Phrases
    unsure: Phrases
    neutral: Phrases
    greetings: Phrases
    bare_yes: Phrases
    plain: Phrases
    """Those of `yes` and `no` that begin no other sentence."""
    holding: Phrases
    """Right behind an answer they take it back: "no wait"."""
    objections: Phrases
    """What stands behind them leaves the answer open: objections and conditions."""
    turning: Phrases
    """Behind an answer they turn to another matter, and the answer was none but a "yes?"."""
    leading: Phrases
    asking: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """How people take something back, refuse it, or ask for it."""

    corrections: Phrases
    plain_no: Phrases
    alternatives: Phrases
    negations: Phrases
    refusals: Phrases
    busy: Phrases
    postponed: Phrases
    """A day beside these is when the answer will come: "I'll let you know tomorrow"."""
    undecided: Phrases
    """No day of the turn is settled: "I'll call you back"."""
    calls: Phrases
    """A day beside these is that of a call."""
    formerly: Phrases
    """What they stand beside has been: it is not what is wished for now."""
    done: Phrases
    """A thing beside these was chosen or done before; a count is as it is now ("we're already four")."""
    tells: Phrases
    """Right behind a thing that they say something of, which is no choice of it."""
    conditionals: Phrases
    contrasts: Phrases
    openers: Phrases
    wishes: Phrases
    choosing: Phrases
    """What leads up to a choice, or away from it, and is none itself: "I'd go for the …, thank you"."""
    own: Phrases
    """By which the user speaks of himself, behind another person."""
    inquiries: Phrases
    """How a clause begins that asks what there is, with a question mark or without."""
    requests: Phrases
    """How a question begins that asks whether something can be had."""
    denials: Phrases
    """Words that deny what follows, articles and the next verbs between."""
    denied_verbs: Phrases
    """And how much of it: "not too …"."""
    denials_beside: Phrases
    """Words that deny only what follows at once."""
    denials_behind: Phrases
    parts: Phrases
    """What makes the word before it part of another thing: "card of …"."""
    bounds: Phrases
    asks_date: Phrases
    asks_ahead: Phrases
    number_words: Phrases
    asks_phone: Phrases
    asks_number: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """What a number is about, by the words `after` and `before` it; `words` are how a prompt names it."""

    after: Phrases
    before: Phrases
    words: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Dates:
    months: tuple[Phrases, ...]
    weekdays: tuple[Phrases, ...]
    days: dict[str, int]
    next: Phrases
    last: Phrases
    week_after: Phrases
    of: Phrases
    year_after: Phrases
    day_lead: Phrases
    day_tail: Phrases
    bare_day_needs_ordinal: bool
    units: dict[str, Unit]
    ahead: str
    ahead_lead: Phrases
    ahead_tail: Phrases
    ago: str
    ago_lead: Phrases
    ago_tail: Phrases
    not_meant: Phrases
    not_meant_behind: Phrases
    """What makes a day a bound, or another one, behind it: "Friday at the latest"."""
    ranges: Phrases
    links: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Minutes are added to the hour, or, when negative, taken from it; named times are minutes of the day."""

    lead: Phrases
    minutes_after: dict[str, int]
    minutes_before: dict[str, int]
    minute_joint: Phrases
    sharp: Phrases
    named: dict[str, int]
    morning: Phrases
    afternoon: Phrases
    evening: Phrases
    night: Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Emails:
    """How an address is spelled out, and the `words` by which it is spoken of.

    `at_is_rare` says that nothing but an address has the word for "@"; `leads` stand right before one."""

    at: Phrases
    dot: Phrases
    dash: Phrases
    underscore: Phrases
    words: Phrases
    leads: Phrases
    others: Phrases
    """Ahead of an address that is not, or no longer, the user's: "I wrote to …"."""
    letters: Phrases
    """Between a letter and the word that it begins: "m for Milan"."""
    at_is_rare: bool


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    code: str
    region: str
    date_order: Literal["DMY", "MDY"]
    decimal_mark: Literal[",", "."]
    words: Words
    answers: Answers
    turns: Turns
    topics: dict[str, Topic]
    measures: dict[str, dict[str, Phrases]]
    """The words of each unit, by kind of measure: one that was asked for in euros is not told in yen."""
    dates: Dates
    times: Times
    emails: Emails


_T = TypeVar("_T")
_MOST = 40
"""Mentions of one type in a turn: more are a list that was read out, and whatever reads them is quadratic."""
_READER = TypeAdapter(Vocabulary)
_GAP = re.compile(r"[ ,]+")
_NO_ACCENT = re.compile(r"[^\x00-\x7f]\w*|\w+")


@cache
def vocabulary(code: str) -> Vocabulary:
    """The tables of one of `LANGUAGES`, ISO 639-1 codes; read on first use. Raises KeyError for an unknown
    one."""
    table = tomllib.loads(
        files("adapters.extraction").joinpath("languages", f"{code}.toml").read_text("utf-8")
    )
    kept = frozenset(table["words"]["kept_accents"])
    return _READER.validate_python(_folded_table(table, kept))


def fold(text: str, kept: Iterable[str] = ()) -> str:
    """Lower case without accents; a word in `kept` keeps its own. As many characters as before, or fewer."""

    def plain(found: re.Match[str]) -> str:
        word = found.group()
        if word.isascii() or word in kept:
            return word
        parts = unicodedata.normalize("NFD", word)
        return "".join(part for part in parts if not unicodedata.combining(part))

    text = text.lower()
    return text if text.isascii() else _NO_ACCENT.sub(plain, unicodedata.normalize("NFC", text))


def alternation(phrases: Iterable[str]) -> str:
    """A pattern of whole words, the longest first, for use inside a larger one. Never empty."""
    ordered = sorted(set(phrases), key=lambda phrase: (-len(phrase), phrase))
    # One look at its edges for all that have the same: most places of a text are no beginning of a word.
    alike = [
        f"{left}(?:{'|'.join(map(_body, some))}){right}" for (left, right), some in groupby(ordered, _edges)
    ]
    return "(?:" + "|".join(alike) + ")" if alike else r"(?!)"


def few(found: Iterable[_T]) -> Sequence[_T]:
    """All, or none when there are too many to be an answer, where nothing is refused: what is weighed stays
    bounded."""
    first = list(islice(found, _MOST + 1))
    return first if len(first) <= _MOST else []


def as_listed(said: str) -> str:
    """A phrase that was found, as its table has it: a space of it may have been a comma."""
    return _GAP.sub(" ", said)


@cache
def anywhere(phrases: Phrases) -> re.Pattern[str]:
    return re.compile(alternation(phrases))


@cache
def right_before(phrases: Phrases) -> re.Pattern[str]:
    """Found in the text that leads up to something: one of `phrases`, then nothing but a space."""
    return re.compile(alternation(phrases) + r"['’]? ?$")


@cache
def right_after(phrases: Phrases) -> re.Pattern[str]:
    return re.compile(r" ?" + alternation(phrases))


def _body(phrase: str) -> str:
    stem, any_ending = (phrase[:-1], r"\w*") if phrase.endswith("*") else (phrase, "")
    return r"[ ,]{1,2}".join(map(re.escape, stem.split(" "))) + any_ending


def _edges(phrase: str) -> tuple[str, str]:
    """What stands around it: no letter beside a letter of its own."""
    first, last = phrase[0], phrase.removesuffix("*")[-1]
    return r"(?<!\w)" if first.isalnum() else "", r"(?!\w)" if last.isalnum() else ""


def _folded_table(part: object, kept: frozenset[str]) -> object:
    """Codes (a region, a date order) stay, as does what a word is respelled to: it is read, not matched."""
    if isinstance(part, str):
        return part if part.isupper() else fold(part, kept)
    if isinstance(part, dict):
        return {
            fold(key, kept): value if key == "respelled" else _folded_table(value, kept)
            for key, value in cast(dict[str, object], part).items()
        }
    if isinstance(part, list):
        return [_folded_table(item, kept) for item in cast(list[object], part)]
    return part
