"""Members of an enum in what was said: whole words, singular or plural, however they are divided."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.extraction.normalising import normalise
from adapters.extraction.vocabulary import Vocabulary, few

_ENDINGS = {"it": "aeiou", "es": "aeo", "en": ""}
_DIVISIBLE = 5
"""Letters from which on a word may be said in two ("pick up", "pick-up"): shorter ones meet other words."""


@dataclass(frozen=True, slots=True)
class MemberMention:
    start: int
    end: int
    member: str
    brief: bool
    """A letter or two ("M", "B"): counts only as the answer to the variable's own question."""


def members(
    text: str, values: Sequence[str | int | float], vocabulary: Vocabulary
) -> Sequence[MemberMention]:
    """In the order of the text; of two that overlap the longer, and neither when they are equally long."""
    found = [
        mention for value in values if isinstance(value, str) for mention in _named(text, value, vocabulary)
    ]
    longest = [
        mention
        for mention in found
        if not any(_covers(other, mention) for other in found if other is not mention)
    ]
    return sorted(longest, key=lambda mention: mention.start)


def _covers(other: MemberMention, mention: MemberMention) -> bool:
    overlap = other.start < mention.end and mention.start < other.end
    return overlap and other.end - other.start > mention.end - mention.start


def _named(text: str, member: str, vocabulary: Vocabulary) -> Iterator[MemberMention]:
    pattern = _pattern(member, vocabulary)
    if pattern is None:
        return
    for found in few(pattern.finditer(text)):
        yield MemberMention(found.start(), found.end(), member, brief=len(member.strip()) <= 2)


@lru_cache(maxsize=1024)
def _pattern(member: str, vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """Linear: literal letters with an optional divider between two of them."""
    spoken = re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]+", " ", member)
    words = re.findall(r"[\w]+", normalise(spoken, vocabulary))
    if not words:
        return None
    return re.compile(r"(?<!\w)" + r"[ -]?".join(_word(word, vocabulary.code) for word in words) + r"(?!\w)")


def _word(word: str, language: str) -> str:
    endings = _ENDINGS[language]
    if len(word) <= 3 or not word.isalpha():
        return re.escape(word)
    if endings and word[-1] in endings:
        stem, ending = word[:-1], f"[{endings}]s?" if language == "es" else f"h?[{endings}]"
    else:
        stem, ending = word, "(?:e?s)?"
    if len(word) < _DIVISIBLE:
        return re.escape(stem) + ending
    return "[ -]?".join(map(re.escape, stem)) + ending
