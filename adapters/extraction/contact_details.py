"""Phone numbers and e-mail addresses, as people say and write them.

A phone number is a run of digits, grouped and spoken as people do, that the numbering plans accept. An
address may be spelled out: "mario punto rossi chiocciola example punto it". Two words without a sign between
them are one part of it only where nothing else can be meant: behind "my address is", or at the beginning of
the answer. Elsewhere its beginning is a guess, and left out. In what the user has typed himself an address
is what stands around its "@".
"""

import re
from collections.abc import Iterator
from functools import cache

import phonenumbers

from adapters.extraction.context import Mention, follows_correction, reference_before
from adapters.extraction.questions import is_content
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few

_FEWEST, _MOST = 6, 15  # digits: short codes are no one's number, and E.164 ends at fifteen
_ABROAD = "00"
"""What most of the world dials before a country's code: said also where another prefix is dialled."""

_DATE = re.compile(r"[0-9]{1,2}([/.-])[0-9]{1,2}\1(?:[0-9]{4}|[0-9]{2})|[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LEADING = re.compile(r"^[0-9]{1,2}, (?=[0-9+]{3})|^[0-9/.-]{6,10},? (?=[0-9+]{3})")
"""A number or a date that was said right before: "on the 6th, 333 …"."""
_NOT_DIGIT = re.compile(r"[^0-9]")


def phones(text: str, vocabulary: Vocabulary, region: str) -> Iterator[Mention]:
    """The numbers of `text` as E.164, at their places in characters. A number whose tail is taken back ("…
    456, I mean 457") is left out: which digits stay is a guess; so is what the numbering plan of `region`, an
    ISO 3166 code, calls invalid."""
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


_PART = r"(?:(?:[a-z0-9] ){2,30}[a-z0-9](?![a-z0-9])|[a-z0-9_+-]{1,64}(?: [0-9]+){0,4})"
"""Spelled letter by letter, or a word with the digits behind it."""

_BEFORE = re.compile(r"(?:^|(?P<boundary>\S+)[ :,]+)(?P<word>[a-z0-9]+) $")
_LOCAL, _DOMAIN = re.compile(r"[\w.%+-]+\Z"), re.compile(r"(?:[\w-]+\.)+[\w-]+")
"""In the letters of any language: what is no address is refused as a value, and not taken for another one."""
_LETTERS = re.compile(r"(?<![a-z0-9-])[a-z](?:-[a-z])+(?![a-z0-9-])")
"""Spelled, as recognisers write it: "j-o-h-n"."""
_PROVIDERS = {"g mail": "gmail", "hot mail": "hotmail", "out look": "outlook", "i cloud": "icloud"}
"""As recognisers write what is one name."""


def emails(text: str, spoken: str, vocabulary: Vocabulary, *, typed: bool = False) -> Iterator[Mention]:
    """In normalised `text`; where `spoken`, the utterance, has the address written its case is kept. A
    mention is `vague` where the word for "@" may be another one and nothing speaks of mail."""
    tables = vocabulary.emails
    if "@" not in text and not anywhere(tables.at).search(text):
        return
    turns = vocabulary.turns
    no_part = anywhere((*turns.corrections, *turns.denials))
    # "M for Milan, rossi at …": the letters are a guess.
    named_letters = re.compile(rf"(?<!\w)[a-z] {alternation(tables.letters)} \w+[ ,]+$")
    surely = tables.at_is_rare or anywhere(tables.words).search(text) is not None
    for found in few(_pattern(vocabulary).finditer(text)):
        start, local = found.start(), _joined(found["local"], vocabulary)
        domain = _joined(found["domain"], vocabulary)
        if typed and "@" in found.group() and (whole := _around(spoken, text.count("@", 0, found.end()))):
            yield Mention("email", start, found.end(), whole)
            continue
        spelled = "@" not in found.group()
        if spelled and (len(local) == 1 or named_letters.search(text[:start])):  # "with an h at …"
            continue
        before = _BEFORE.search(text, 0, start)
        joins = before is not None and _may_begin(before["word"], vocabulary, spelled=spelled)
        if before and joins and not no_part.fullmatch(before["word"]):
            if before["boundary"] and before["boundary"] not in tables.leads:
                continue
            start, local = before.start("word"), before["word"] + local
        address = f"{local}@{domain}"
        written = re.search(re.escape(address), spoken, re.IGNORECASE)
        value = written.group() if written else address
        yield Mention("email", start, found.end(), value, vague=not (surely or written or "." in local))


def _may_begin(word: str, vocabulary: Vocabulary, *, spelled: bool) -> bool:
    """Whether a word right before an address may be a part of it; of one that is spelled, a letter or a
    number too."""
    if word in vocabulary.emails.leads:
        return False
    return is_content(word) if len(word) > 1 else spelled and word not in vocabulary.words.stop


def _around(spoken: str, sign: int) -> str | None:
    """What stands around the `sign`th "@", as it was typed: its words are no digits, and a domain without
    its accents is somebody else's. None where it is no address as it stands."""
    before, after = spoken.split("@")[sign - 1 : sign + 1]
    local, domain = _LOCAL.search(before[-64:]), _DOMAIN.match(after)
    return f"{local.group()}@{domain.group()}" if local and domain else None


@cache
def _pattern(vocabulary: Vocabulary) -> re.Pattern[str]:
    tables = vocabulary.emails
    sign = rf"(?:\.|[ ,]*{alternation((*tables.dot, *tables.dash, *tables.underscore))}[ ,]*)"
    dot = rf"(?:\.|[ ,]*{alternation(tables.dot)}[ ,]*)"
    providers = "|".join(_PROVIDERS)
    name = rf"(?:{providers}|{_PART})"
    return re.compile(
        rf"(?<![\w.@+-])(?P<local>{_PART}(?:{sign}{_PART})*)(?: ?@ ?|[ ,]+{alternation(tables.at)}[ ,]+)"
        rf"(?P<domain>{name}(?:{sign}{_PART})*?(?:{dot}[a-z]{{2,24}})+)(?![\w@])"
    )


def _joined(spelled: str, vocabulary: Vocabulary) -> str:
    tables = vocabulary.emails
    spelled = _LETTERS.sub(lambda found: found.group().replace("-", ""), spelled)
    for phrases, sign in ((tables.underscore, "_"), (tables.dash, "-"), (tables.dot, ".")):
        spelled = anywhere(phrases).sub(sign, spelled)
    for apart, together in _PROVIDERS.items():
        spelled = spelled.replace(apart, together)
    return re.sub(r"[ ,]", "", spelled)
