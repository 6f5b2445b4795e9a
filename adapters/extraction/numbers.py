"""Numbers, each with the topics (price, age, floor …) that its neighbours give it, and times of day:
"at half past three", "alle 15:30", "a las cuatro y media de la tarde"."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Literal

from adapters.extraction.context import TO_A_REFERENCE, Mention, in_range
from adapters.extraction.vocabulary import (
    Phrases,
    Vocabulary,
    alternation,
    anywhere,
    as_listed,
    few,
    right_after,
    right_before,
)

_REACH = 40
_THOUSAND = 1000


class _Patterns:
    """How numbers are said in one language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        words, mark = vocabulary.words, re.escape(vocabulary.decimal_mark)
        group = re.escape("." if vocabulary.decimal_mark == "," else ",")
        self.grouped = re.compile(rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+(?:{mark}[0-9]+)?")
        digits = rf"{self.grouped.pattern}|[0-9]+(?:[{mark}.][0-9]+)?"
        minus = alternation(words.minus)
        self.number = re.compile(
            r"(?<![\w/:.+-])(?<![0-9],)(?!(?<=')(?:3[2-9]|[4-9][0-9])(?![0-9]))"  # not the year of "'80"
            rf"(?:(?P<minus>-|{minus} ))?(?P<digits>{digits})(?![\wº:/-]|[.,][0-9])"
        )
        # "Six plus two children", "four to six", "45 minus 5".
        spans = alternation(words.spans)
        self.more = re.compile(rf" ?\+ ?[0-9]| (?:{spans}|{minus}) [0-9]")
        self.up_to = re.compile(rf"[0-9] {spans} $")
        also = alternation(words.also)
        self.also, self.also_ahead = re.compile(rf" {also} [0-9]+"), re.compile(rf"[0-9]+ {also} $")
        # "Due chili e mezzo".
        self.part_more = re.compile(rf"(?: \w{{2,12}})? (?P<part>{alternation(words.part_more)})")
        self.parts = right_after(words.parts)
        # A reference may stand further ahead, other topics right beside.
        self.topics = {
            name: (
                re.compile(
                    alternation(topic.before)
                    + (TO_A_REFERENCE if name == "reference" else r" ?(?:\w{1,4} )?$")
                ),
                re.compile(r" ?" + alternation(topic.after)),
            )
            for name, topic in vocabulary.topics.items()
            if topic.before or topic.after
        }
        topics = vocabulary.topics.values()
        self.topic_ahead = anywhere(tuple(phrase for topic in topics for phrase in topic.before))
        self.topic_behind = right_after(tuple(phrase for topic in topics for phrase in topic.after))


_patterns = cache(_Patterns)


def numbers(text: str, vocabulary: Vocabulary) -> Sequence[Mention]:
    """In the order of the text, at places in characters. Digits said one by one are one code, not so many
    numbers; none is a number with more than 15 characters, or with zeros ahead that it would lose."""
    codes = [
        Mention("number", found.start(), found.end(), int(found.group().replace(" ", "")))
        for found in few(_CODE.finditer(text))
    ]
    # "una" is an article, and the number when one was asked for.
    articles = tuple(word for word in vocabulary.words.one if word in vocabulary.words.articles)
    ones = [
        Mention("number", found.start(), found.end(), 1, vague=True)
        for found in few(anywhere(articles).finditer(text))
    ]
    alone = free_of([*_figures(text, vocabulary), *ones], codes)
    kept = [each for each in (*codes, *alone) if not _ZERO_AHEAD.match(text, each.start)]
    return sorted(kept, key=lambda mention: mention.start)


def _figures(text: str, vocabulary: Vocabulary) -> Iterator[Mention]:
    """Ordinals, parts of words, of codes and of sums, bounds ("at least 3") and what counts parts of a whole
    ("three quarters", which may be school terms as well) are no numbers."""
    patterns = _patterns(vocabulary)
    scales = vocabulary.words.scales
    scale = right_after(tuple(scales))
    bounded = right_before((*vocabulary.turns.bounds, *vocabulary.words.decimal))
    for found in few(patterns.number.finditer(text)):
        lead = text[max(0, found.start() - _REACH) : found.start()]
        digits = found["digits"]
        if patterns.grouped.fullmatch(digits):
            digits = digits.replace("." if vocabulary.decimal_mark == "," else ",", "")
        plain = digits.replace(vocabulary.decimal_mark, ".")  # a point that is nothing else is a decimal mark
        if len(plain) > 15:
            continue  # a code, and more than a float tells apart
        value = float(plain) if "." in plain else int(plain)
        if (
            bounded.search(lead)
            or in_range(text, found.start(), vocabulary)
            or patterns.up_to.search(lead)
            or (found["minus"] and lead[-2:-1].isdigit())
            or patterns.more.match(text, found.end())
            or patterns.parts.match(text, found.end())
        ):
            continue
        end = found.end()
        if scaled := scale.match(text, end):
            exact = Decimal(plain) * scales[as_listed(scaled.group().strip())]
            value, end = int(exact) if exact == int(exact) else float(exact), scaled.end()
        if isinstance(value, int) and (more := patterns.part_more.match(text, end)):
            if value >= _THOUSAND:
                continue  # a part of which unit is a guess
            value, end = value + vocabulary.words.part_more[as_listed(more["part"])], more.end()
        clause = patterns.also_ahead.sub("", re.split(r"[,.;?!] ", lead)[-1])
        another = patterns.also.match(text, end)
        behind = another.end() if another else end
        ahead, follows = patterns.topic_ahead.search(clause), patterns.topic_behind.match(text, behind)
        topics = frozenset(
            name
            for name, (before, after) in patterns.topics.items()
            if (ahead and before.search(clause)) or (follows and after.match(text, behind))
        )
        yield Mention("number", found.start(), end, -value if found["minus"] else value, topics=topics)


_ZERO_AHEAD = re.compile(r"0 ?[0-9]")
_CODE = re.compile(r"(?<![\w.,+-])[0-9](?: [0-9]){2,14}(?![\w.,-])")


def free_of(mentions: Iterable[Mention], taken: Iterable[Mention]) -> list[Mention]:
    """Those that no mention in `taken` overlaps."""
    spans = [(other.start, other.end) for other in taken]
    return [m for m in mentions if not any(m.start < end and start < m.end for start, end in spans)]


Part = Literal["morning", "afternoon", "evening", "night"]

_HALF_DAY = 12 * 60
_FIRST_WAKING_HOUR = 7


@dataclass(frozen=True, slots=True)
class TimeMention:
    start: int
    end: int
    minutes: int
    """Minutes of the day, from 24:00 on of the next one, or of the half day when `open_half` is true."""
    open_half: bool
    """Nothing said yet whether it is before or after noon."""

    def of_day(self, part: Part | None) -> int:
        """Minutes after midnight; twelve at night is the end of the day. Without a part of the day, 1 to 6
        o'clock is meant in the afternoon: people who call arrange their waking hours."""
        minutes = self.minutes
        late = part in ("evening", "night")
        if not self.open_half:
            return 2 * _HALF_DAY if late and minutes == 0 else minutes
        if part is None:
            return minutes + _HALF_DAY if 60 <= minutes < _FIRST_WAKING_HOUR * 60 else minutes
        if part == "morning" or (part == "night" and minutes < 6 * 60):
            return minutes % _HALF_DAY
        return minutes + _HALF_DAY if late else minutes % _HALF_DAY + _HALF_DAY


def times(text: str, vocabulary: Vocabulary) -> Iterator[TimeMention]:
    """A bare number is no time: a lead ("at"), minutes, a part of the day or a colon makes it one."""
    tables = vocabulary.times
    for found in few(anywhere(tuple(tables.named)).finditer(text)):
        named = tables.named[as_listed(found.group())]
        yield TimeMention(found.start(), found.end(), named, open_half=False)
    for found in few(_time(vocabulary).finditer(text)):
        said = found["hour"]
        hour = int(said) if said.isdigit() else 1
        signs = ("lead", "before", "colon", "after", "sharp", "part")
        if hour > 24 or not any(found[sign] for sign in signs):
            continue
        minutes = _minutes(found, vocabulary)
        if minutes is None:
            continue
        total = hour * 60 + minutes
        total = total if total >= 0 else total + 24 * 60
        part = part_of_day(found["part"], vocabulary) if found["part"] else None
        literal = hour > 12 or hour == 0 or (said.startswith("0") and found["colon"] is not None)
        mention = TimeMention(found.start(), found.end(), total, open_half=not literal)
        yield TimeMention(found.start(), found.end(), mention.of_day(part), False) if part else mention


def part_of_day(text: str, vocabulary: Vocabulary) -> Part | None:
    """The last part of the day that the text names."""
    last: tuple[int, Part] | None = None
    tables = vocabulary.times
    parts: dict[Part, Phrases] = {
        "morning": tables.morning,
        "afternoon": tables.afternoon,
        "evening": tables.evening,
        "night": tables.night,
    }
    for part, phrases in parts.items():
        for found in anywhere(phrases).finditer(text):
            if last is None or found.end() > last[0]:
                last = (found.end(), part)
    return last[1] if last else None


def _minutes(found: re.Match[str], vocabulary: Vocabulary) -> int | None:
    """Minutes to add to the hour, None when no clock shows them."""
    tables = vocabulary.times
    for sign, table in (("before", tables.minutes_before), ("after", tables.minutes_after)):
        if found[sign]:
            return table[as_listed(found[sign])]
    said = found["colon"] or found["spoken"]
    minutes = int(said) if said else 0
    return minutes if minutes < 60 else None


@cache
def _time(vocabulary: Vocabulary) -> re.Pattern[str]:
    tables = vocabulary.times
    one = alternation(word for word in vocabulary.words.one if not word.isdigit())
    parts = alternation((*tables.morning, *tables.afternoon, *tables.evening, *tables.night))
    joint = alternation(tables.minute_joint)
    return re.compile(
        rf"(?<!\w)(?:(?P<lead>{alternation(tables.lead)}) ?)?"
        rf"(?:(?P<before>{alternation(tables.minutes_before)}) )?"
        rf"(?<![\w.,/:+-])(?P<hour>[0-9]{{1,2}}|{one})(?![0-9º/-])"
        rf"(?:[:.h](?P<colon>[0-9]{{2}})(?![0-9.])| (?P<after>{alternation(tables.minutes_after)})"
        rf"|(?: {joint})? (?P<spoken>[0-5]?[0-9])(?![0-9º:/]| [0-9]))?"
        rf"(?: ?(?P<sharp>{alternation(tables.sharp)}))?(?:,? ?(?P<part>{parts}))?(?!\w)"
    )
