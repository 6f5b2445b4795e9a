"""E-mail addresses, written and spelled out: "mario punto rossi chiocciola example punto it".

Two words without a sign between them are one part of the address only where nothing else can be meant:
behind "my address is", or at the beginning of the answer. Elsewhere its beginning is a guess, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from adapters.extraction.context import Mention
from adapters.extraction.questions import is_content
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few

_PART = r"(?:(?:[a-z0-9] ){2,30}[a-z0-9](?![a-z0-9])|[a-z0-9_+-]{1,64}(?: [0-9]+){0,4})"
"""Spelled letter by letter, or a word with the digits behind it."""

_BEFORE = re.compile(r"(?:^|(?P<boundary>\S+)[ :,]+)(?P<word>[a-z]+) $")
_PROVIDERS = {"g mail": "gmail", "hot mail": "hotmail", "out look": "outlook", "i cloud": "icloud"}
"""As recognisers write what is one name."""


def emails(text: str, spoken: str, vocabulary: Vocabulary) -> Iterator[Mention]:
    """In normalised `text`; where `spoken`, the utterance, has the address written its case is kept. A
    mention is `vague` where the word for "@" may be another one and nothing speaks of mail."""
    tables = vocabulary.emails
    if "@" not in text and not anywhere(tables.at).search(text):
        return
    turns = vocabulary.turns
    no_part = anywhere((*turns.corrections, *turns.denials))
    surely = tables.at_is_rare or anywhere(tables.words).search(text) is not None
    for found in few(_pattern(vocabulary).finditer(text)):
        start, local = found.start(), _joined(found["local"], vocabulary)
        before = _BEFORE.search(text, 0, start)
        joins = before is not None and is_content(before["word"]) and before["word"] not in tables.leads
        if before and joins and not no_part.fullmatch(before["word"]):
            if before["boundary"] and before["boundary"] not in tables.leads:
                continue
            start, local = before.start("word"), before["word"] + local
        address = f"{local}@{_joined(found['domain'], vocabulary)}"
        written = re.search(re.escape(address), spoken, re.IGNORECASE)
        value = written.group() if written else address
        yield Mention("email", start, found.end(), value, vague=not (surely or written or "." in local))


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
    for phrases, sign in ((tables.underscore, "_"), (tables.dash, "-"), (tables.dot, ".")):
        spelled = anywhere(phrases).sub(sign, spelled)
    for apart, together in _PROVIDERS.items():
        spelled = spelled.replace(apart, together)
    return re.sub(r"[ ,]", "", spelled)
