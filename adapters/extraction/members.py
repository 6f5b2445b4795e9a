"""Members of an enum in a text, whether they are meant or not.

A member is matched by its words that say something, without case, accents, articles, prepositions and
inflection, however they are divided; a word that only one member has stands for it in a short answer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.extraction.context import Mention
from adapters.extraction.normalising import normalise
from adapters.extraction.questions import is_content
from adapters.extraction.vocabulary import Vocabulary, few
from flow_engine.values import JsonValue

_DIVISIBLE = 5
"""Letters from which on a word may be said in two ("pick up", "pick-up"): shorter ones meet other words."""

_PART_LETTERS = 4
"""A word that stands for its member has at least so many."""

_BETWEEN = r"[ -]?(?:\w{1,4}[ '-]){0,2}"
"""Between two words of a member: nothing, or prepositions and articles, whichever."""

_MOST_MEMBERS = 10_000
"""Texts of an enum: to read more of them takes seconds, and is left to a model."""
_MOST_TRIED = 500
"""Patterns of members whose letters are all in the text; where there are more, no member was meant."""
_DIVIDER = re.compile(r"[ -]")


def members(text: str, values: Sequence[str | int | float], vocabulary: Vocabulary) -> Sequence[Mention]:
    """In the order of the text, at places in characters; of two that overlap the longer, and neither when
    they are equally long. A mention is `vague` where it is a letter or two ("M", "B"), or one word of a
    longer member."""
    said, code, tried = _DIVIDER.sub("", text), vocabulary.code, 0
    found: list[Mention] = []
    for name in _names(tuple(values), vocabulary):
        patterns: list[tuple[re.Pattern[str], bool]] = []
        if name.words and all(stem in said for stem in name.stems):
            patterns.append((_whole(name.words, code), is_brief(name.member)))
        if len(name.words) > 1 and any(stem in said for stem in name.own_stems):
            patterns.append((_part(name.own, code), True))
        tried += len(patterns)
        if tried > _MOST_TRIED:
            return []
        for pattern, vague in patterns:
            places = few(pattern.finditer(text))
            found += [
                Mention("member", place.start(), place.end(), name.member, vague=vague) for place in places
            ]
    found = list(few(found))
    longest = [
        mention
        for mention in found
        if not any(
            _overlap(other, mention) and other.end - other.start > mention.end - mention.start
            for other in found
            if other is not mention
        )
    ]
    return sorted(longest, key=lambda mention: mention.start)


@dataclass(frozen=True, slots=True)
class _Name:
    """A member by its words; `own` are those that no other member has and that stand for it."""

    member: str
    words: tuple[str, ...]
    stems: tuple[str, ...]
    own: tuple[str, ...]
    own_stems: tuple[str, ...]


@lru_cache(maxsize=2048)  # as many as profiles: members are read in each turn of their conversations
def _names(values: tuple[str | int | float, ...], vocabulary: Vocabulary) -> Sequence[_Name]:
    texts = dict.fromkeys(value for value in values if isinstance(value, str))
    if len(texts) > _MOST_MEMBERS:
        return []
    words = {member: _words_of(member, vocabulary) for member in texts}
    owners = Counter(word for each in words.values() for word in set(each))
    names: list[_Name] = []
    for member, its in words.items():
        whole = any(_denies(word, vocabulary) for word in its)  # "phone" is no "no phone"
        own = tuple(word for word in its if owners[word] == 1 and len(word) >= _PART_LETTERS and not whole)
        stems_of, own_stems = (tuple(_stem(word, vocabulary.code) for word in some) for some in (its, own))
        names.append(_Name(member, its, stems_of, own, own_stems))
    return names


def _overlap(first: Mention, second: Mention) -> bool:
    return first.start < second.end and second.start < first.end


@lru_cache(maxsize=1024)
def _whole(words: tuple[str, ...], code: str) -> re.Pattern[str]:
    """Linear: literal letters with an optional divider between two of them."""
    return re.compile(r"(?<!\w)" + _BETWEEN.join(_word(word, code) for word in words) + r"(?!\w)")


@lru_cache(maxsize=1024)
def _part(words: tuple[str, ...], code: str) -> re.Pattern[str]:
    """Of a member with several words those that no other member has."""
    return re.compile(r"(?<!\w)(?:" + "|".join(_word(word, code) for word in words) + r")(?!\w)")


def _stem(word: str, code: str) -> str:
    """Letters that are in every form of the word, where nothing divides them."""
    return word if _is_fixed(word) else _inflected(word, code)[0]


def _is_fixed(word: str) -> bool:
    return len(word) <= 3 or not word.isalpha()


def _words_of(member: str, vocabulary: Vocabulary) -> tuple[str, ...]:
    """Those that say something, count or deny ("terminal 2", "no internet"); all where none does."""
    spoken = re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]+", " ", member)
    words = re.findall(r"\w+", normalise(spoken, vocabulary))
    telling = [w for w in words if is_content(w) or w.isdigit() or _denies(w, vocabulary)]
    return tuple(telling or words)


def _denies(word: str, vocabulary: Vocabulary) -> bool:
    return word in vocabulary.turns.denials or word in vocabulary.turns.denials_beside


def _word(word: str, language: str) -> str:
    """A pattern for the word in singular and plural, feminine and masculine."""
    if _is_fixed(word):
        return re.escape(word)
    stem, ending = _inflected(word, language)
    if len(word) < _DIVISIBLE:
        return re.escape(stem) + ending
    return "[ -]?".join(map(re.escape, stem)) + ending


def _inflected(word: str, language: str) -> tuple[str, str]:
    """The stem, and a pattern of what may follow it."""
    if language == "it" and word[-1] in "aeiou":
        return word[:-1], "h?[aeiou]"
    if language == "es":
        if word[-1] in "aeo":
            return word[:-1], "[aeo]s?"
        if word[-1] == "s" and len(word) > 4:
            return word[:-2], f"(?:[aeo]s?|{word[-2:]}(?:es|as?)?)"
        return word, "(?:es|as?|s)?"
    if language == "en" and word[-1] == "y":
        return word[:-1], "(?:y|ies)"
    if word[-1] == "s" and word[-2] != "s" and len(word) > 4:
        return word[:-1], "(?:s|es)?"
    return word, "(?:e?s)?"


def is_brief(member: JsonValue) -> bool:
    return len(str(member).strip()) <= 2
