"""Numbers, each with the topics (price, age, floor …) that its neighbours give it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from adapters.extraction.context import Mention, in_range
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few, right_after, right_before

_REACH = 40


class _Patterns:
    """How numbers are said in one language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        words, mark = vocabulary.words, re.escape(vocabulary.decimal_mark)
        group = re.escape("." if vocabulary.decimal_mark == "," else ",")
        self.grouped = re.compile(rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+(?:{mark}[0-9]+)?")
        digits = rf"{self.grouped.pattern}|[0-9]+(?:[{mark}.][0-9]+)?"
        minus = alternation(words.minus)
        self.number = re.compile(
            rf"(?<![\w/:.+-])(?:(?P<minus>-|{minus} ))?(?P<digits>{digits})(?![\wº:/-]|[.,][0-9])"
        )
        self.half = re.compile(rf"(?: \w{{2,12}})? {alternation(words.half_more)}")  # "due chili e mezzo"
        # A reference may stand up to three words ahead ("order number is"), other topics right beside.
        self.topics = {
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


_patterns = cache(_Patterns)


def numbers(text: str, vocabulary: Vocabulary) -> Sequence[Mention]:
    """In the order of the text, at places in characters. Digits said one by one are one code, not so many
    numbers; of more than 15 characters, none is a number."""
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
    return sorted((*codes, *alone), key=lambda mention: mention.start)


def _figures(text: str, vocabulary: Vocabulary) -> Iterator[Mention]:
    """Ordinals, parts of words and of codes, and bounds ("at least 3") are no numbers."""
    patterns = _patterns(vocabulary)
    thousand = right_after(vocabulary.words.thousand)
    bounded = right_before(vocabulary.turns.bounds)
    for found in few(patterns.number.finditer(text)):
        lead = text[max(0, found.start() - _REACH) : found.start()]
        digits = found["digits"]
        if patterns.grouped.fullmatch(digits):
            digits = digits.replace("." if vocabulary.decimal_mark == "," else ",", "")
        plain = digits.replace(vocabulary.decimal_mark, ".")  # a point that is nothing else is a decimal mark
        if len(plain) > 15:
            continue  # a code, and more than a float tells apart
        value = float(plain) if "." in plain else int(plain)
        if bounded.search(lead) or in_range(text, found.start(), vocabulary):
            continue
        end = found.end()
        if thousands := thousand.match(text, end):
            value, end = value * 1000, thousands.end()
        if isinstance(value, int) and (more := patterns.half.match(text, end)):
            value, end = value + 0.5, more.end()
        clause = re.split(r"[,.;?!] ", lead)[-1]
        topics = frozenset(
            name
            for name, (before, after) in patterns.topics.items()
            if before.search(clause) or after.match(text, end)
        )
        yield Mention("number", found.start(), end, -value if found["minus"] else value, topics=topics)


_CODE = re.compile(r"(?<![\w.,+-])[0-9](?: [0-9]){2,14}(?![\w.,-])")


def free_of(mentions: Iterable[Mention], taken: Iterable[Mention]) -> list[Mention]:
    """Those that no mention in `taken` overlaps."""
    spans = [(other.start, other.end) for other in taken]
    return [m for m in mentions if not any(m.start < end and start < m.end for start, end in spans)]
