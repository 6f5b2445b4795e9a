"""Numbers, each with the topics (price, age, floor …) that its neighbours give it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from adapters.extraction.context import Mention, in_range
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few, right_after, right_before

_REACH = 40


def numbers(text: str, vocabulary: Vocabulary) -> Sequence[Mention]:
    """In the order of the text. Digits said one by one are one code, not so many numbers."""
    codes = [
        Mention("number", found.start(), found.end(), int(found.group().replace(" ", "")))
        for found in few(_CODE.finditer(text))
    ]
    alone = free_of([*_figures(text, vocabulary), *_articles(text, vocabulary)], codes)
    return sorted((*codes, *alone), key=lambda mention: mention.start)


def _figures(text: str, vocabulary: Vocabulary) -> Iterator[Mention]:
    """Ordinals, parts of words and of codes, and bounds ("at least 3") are no numbers."""
    half = _half(vocabulary)
    thousand = right_after(vocabulary.words.thousand)
    bounded = right_before(vocabulary.turns.bounds)
    for found in few(_number(vocabulary).finditer(text)):
        lead = text[max(0, found.start() - _REACH) : found.start()]
        value = _value(found["digits"], vocabulary.decimal_mark)
        if value is None or bounded.search(lead) or in_range(text, found.start(), vocabulary):
            continue
        end = found.end()
        if thousands := thousand.match(text, end):
            value, end = value * 1000, thousands.end()
        if isinstance(value, int) and (more := half.match(text, end)):
            value, end = value + 0.5, more.end()
        topics = _topics(text, found.start(), end, vocabulary)
        yield Mention("number", found.start(), end, -value if found["minus"] else value, topics=topics)


@cache
def _half(vocabulary: Vocabulary) -> re.Pattern[str]:
    """ "two and a half", "due chili e mezzo"."""
    return re.compile(rf"(?: \w{{2,12}})? {alternation(vocabulary.words.half_more)}")


@cache
def _number(vocabulary: Vocabulary) -> re.Pattern[str]:
    mark, group = (
        re.escape(vocabulary.decimal_mark),
        re.escape("." if vocabulary.decimal_mark == "," else ","),
    )
    digits = rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+(?:{mark}[0-9]+)?|[0-9]+(?:[{mark}.][0-9]+)?"
    minus = alternation(vocabulary.words.minus)
    return re.compile(rf"(?<![\w/:.+-])(?:(?P<minus>-|{minus} ))?(?P<digits>{digits})(?![\wº:/-]|[.,][0-9])")


def _value(digits: str, decimal_mark: str) -> int | float | None:
    """What was written in the language's way; a point that can be nothing else is a decimal mark."""
    group = "." if decimal_mark == "," else ","
    if re.fullmatch(
        rf"[0-9]{{1,3}}(?:{re.escape(group)}[0-9]{{3}})+(?:{re.escape(decimal_mark)}[0-9]+)?", digits
    ):
        digits = digits.replace(group, "")
    plain = digits.replace(decimal_mark, ".")
    if len(plain) > 15:
        return None  # a code, and more than a float tells apart
    return float(plain) if "." in plain else int(plain)


def _topics(text: str, start: int, end: int, vocabulary: Vocabulary) -> frozenset[str]:
    around = _around(vocabulary)
    lead = re.split(r"[,.;?!] ", text[max(0, start - _REACH) : start])[-1]
    return frozenset(
        name for name, (before, after) in around.items() if before.search(lead) or after.match(text, end)
    )


@cache
def _around(vocabulary: Vocabulary) -> dict[str, tuple[re.Pattern[str], re.Pattern[str]]]:
    """A reference may stand up to three words ahead ("order number is"), other topics right beside."""
    return {
        name: (
            re.compile(
                alternation(topic.before)
                + (r"[:#]?(?: [\w.']{1,12}){0,3}[ :#]*$" if name == "reference" else r" ?(?:\w{1,4} )?$")
            ),
            re.compile(r" ?" + alternation(topic.after)),
        )
        for name, topic in vocabulary.topics.items()
        if topic.before or topic.after
    }


def _articles(text: str, vocabulary: Vocabulary) -> Iterator[Mention]:
    """ "una" is an article, and the number when one was asked for."""
    articles = tuple(word for word in vocabulary.words.one if word in vocabulary.words.articles)
    for found in few(anywhere(articles).finditer(text)):
        yield Mention("number", found.start(), found.end(), 1, vague=True)


_CODE = re.compile(r"(?<![\w.,+-])[0-9](?: [0-9]){2,14}(?![\w.,-])")


def free_of(mentions: Iterable[Mention], taken: Iterable[Mention]) -> list[Mention]:
    """Those that no mention in `taken` overlaps."""
    spans = [(other.start, other.end) for other in taken]
    return [m for m in mentions if not any(m.start < end and start < m.end for start, end in spans)]
