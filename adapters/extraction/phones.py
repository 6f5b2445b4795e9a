"""Phone numbers: runs of digits, grouped and spoken as people do, that the numbering plans accept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import phonenumbers

from adapters.extraction.context import Mention, follows_correction, reference_before
from adapters.extraction.vocabulary import Vocabulary, alternation, few

_FEWEST, _MOST = 6, 15  # digits: short codes are no one's number, and E.164 ends at fifteen
_ABROAD = "00"
"""What most of the world dials before a country's code: said also where another prefix is dialled."""

_DATE = re.compile(r"[0-9]{1,2}([/.-])[0-9]{1,2}\1(?:[0-9]{4}|[0-9]{2})|[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LEADING = re.compile(r"^[0-9]{1,2}, (?=[0-9+]{3})|^[0-9/.-]{6,10},? (?=[0-9+]{3})")
"""A number or a date that was said right before: "on the 6th, 333 …"."""
_NOT_DIGIT = re.compile(r"[^0-9]")


def phones(text: str, vocabulary: Vocabulary, region: str) -> Iterator[Mention]:
    """A number whose tail is taken back ("… 456, I mean 457") is left out: which digits stay is a guess."""
    run = _run(vocabulary)
    runs = few(run.finditer(text))
    for place, found in enumerate(runs):
        number = _valid(found.group(), region) or _valid(_LEADING.sub("", found.group()), region)
        if number is None or reference_before(text, found.start(), vocabulary):
            continue
        later = runs[place + 1] if place + 1 < len(runs) else None
        if (
            later is not None
            and follows_correction(text, found.end(), later.start(), vocabulary)
            and _valid(later.group(), region) is None
            and _NOT_DIGIT.sub("", later.group()) == later.group().replace(" ", "")
        ):
            continue
        yield Mention("phone", found.start(), found.end(), number)


@cache
def _run(vocabulary: Vocabulary) -> re.Pattern[str]:
    joint = rf"(?:[ ,./()-]|{alternation(vocabulary.words.between_digits)})"
    return re.compile(rf"(?<![\w+])\+?\(?[0-9]+(?:{joint}{{1,6}}[0-9]+)*(?!\w)")


def _valid(said: str, region: str) -> str | None:
    digits = _NOT_DIGIT.sub("", said)
    if not _FEWEST <= len(digits) <= _MOST + len(_ABROAD) or _DATE.fullmatch(said):
        return None
    if said.startswith(("+", "(+")):
        return _e164("+" + digits, region)
    abroad = "+" + digits.removeprefix(_ABROAD) if digits.startswith(_ABROAD) else None
    return _e164(digits, region) or (abroad and _e164(abroad, region))


def _e164(digits: str, region: str) -> str | None:
    try:
        number = phonenumbers.parse(digits, region)
    except phonenumbers.NumberParseException:
        return None
    if not phonenumbers.is_valid_number(number):
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
