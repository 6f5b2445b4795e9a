"""The IntentRouter (C7): agents by how well a message fits what their rows say. No model, no decision.

1. For each language of the table there is an index (BM25): description, role, task, tools and examples of the
   agents that speak it, folded to plain letters and stemmed. An agent that names no language speaks every one
   that another agent names, and English.
2. The score is the share of what the message could reach at most: the sum of what its words are worth for
   this agent by the sum of the most that each is worth for any agent. A word that no agent knows counts as
   `UNKNOWN_WORTH` of a known one, so that a message of strange words reaches little.
3. An agent's score is its best over the languages. Equal texts and tables give equal scores, to the digit.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import log
from typing import Any, Final, cast

import bm25s
import snowballstemmer
from bm25s import stopwords

from channels.chat.inheritance import Effective
from flow_engine.values import JsonValue

UNKNOWN_WORTH: Final = 0.4
DIGITS: Final = 4
MOST_WORDS: Final = 200
DEFAULT_LANGUAGE: Final = "en"

_WORD: Final = re.compile(r"[^\W_]+")
_TOKENS: Final = 50_000

STEMMERS: Final[Mapping[str, str]] = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "et": "estonian", "eu": "basque", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
"""Languages by their two letters; words of any other are compared as they are."""

_LISTS: Any = stopwords  # literal types of thousands of words
_STOPWORDS: Final[Mapping[str, Sequence[str]]] = {
    "da": _LISTS.STOPWORDS_DANISH,
    "de": _LISTS.STOPWORDS_GERMAN,
    "en": _LISTS.STOPWORDS_EN_PLUS,
    "es": _LISTS.STOPWORDS_SPANISH,
    "fr": _LISTS.STOPWORDS_FRENCH,
    "it": _LISTS.STOPWORDS_ITALIAN,
    "nl": _LISTS.STOPWORDS_DUTCH,
    "no": _LISTS.STOPWORDS_NORWEGIAN,
    "pt": _LISTS.STOPWORDS_PORTUGUESE,
    "ru": _LISTS.STOPWORDS_RUSSIAN,
    "sv": _LISTS.STOPWORDS_SWEDISH,
    "tr": _LISTS.STOPWORDS_TURKISH,
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """`score` is from 0 to 1."""

    agent: str
    score: float


@dataclass(frozen=True, slots=True)
class _Index:
    """Of one language. `names` are the agents in the order of the index's documents; `rarest` is what a word
    would be worth that one agent more had, and nobody else."""

    language: str
    names: tuple[str, ...]
    bm25: Any
    vocabulary: frozenset[str]
    rarest: float
    known: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])

    def worths(self, word: str) -> list[float]:
        """What a word of the vocabulary is worth for each agent."""
        found = self.known.get(word)
        if found is None:
            found = self.known[word] = self.bm25.get_scores([word]).tolist()
        return found


class IntentRouter:
    """For one table of agents, as it was when this was made."""

    def __init__(self, agents: Iterable[Effective]) -> None:
        texts = {agent.name: (_languages(agent), _text(agent)) for agent in agents}
        self._names = tuple(sorted(texts))
        every = {DEFAULT_LANGUAGE}.union(*(languages for languages, _ in texts.values()))
        indexes = (
            _index(
                language, {name: text for name, (own, text) in texts.items() if language in (own or every)}
            )
            for language in sorted(every)
        )
        self._indexes = [index for index in indexes if index is not None]

    def scores(self, text: str) -> dict[str, float]:
        """For every agent of the table, its share of the words that speak for it, from 0 to 1."""
        best = dict.fromkeys(self._names, 0.0)
        for index in self._indexes:
            for name, score in _shares(index, text):
                best[name] = max(best[name], score)
        return best

    def words_for(self, agent: str, text: str) -> int:
        """How many different words of the text speak for an agent, in the language where they are most."""
        found = [
            sum(
                index.worths(word)[index.names.index(agent)] > 0
                for word in set(_tokens(index.language, text)) & index.vocabulary
            )
            for index in self._indexes
            if agent in index.names
        ]
        return max(found, default=0)

    def candidates(self, text: str, most: int) -> list[Candidate]:
        """The best `most`, best first, equal ones in the order of the alphabet; scores from 0 to 1."""
        ranked = sorted(self.scores(text).items(), key=lambda pair: (-pair[1], pair[0]))
        return [Candidate(name, score) for name, score in ranked[:most]]


def guessed_language(text: str, languages: Sequence[str] = ("en", "it", "es")) -> str | None:
    """The language, a BCP 47 tag of `languages`, most of whose commonest words stand in the text; None where
    none or two do best."""
    words = set(_WORD.findall(_fold(text)))
    counts = sorted(((len(words & _stopwords(language)), language) for language in languages), reverse=True)
    return counts[0][1] if counts[0][0] > counts[1][0] else None


def _shares(index: _Index, text: str) -> list[tuple[str, float]]:
    words = list(dict.fromkeys(_tokens(index.language, text)))[:MOST_WORDS]
    known = [word for word in words if word in index.vocabulary]
    if not known:
        return []
    worths = [index.worths(word) for word in known]
    most = [max(worth) for worth in worths]
    reachable = sum(most) + UNKNOWN_WORTH * index.rarest * (len(words) - len(known))
    return [
        (name, round(sum(worth[place] for worth in worths) / reachable, DIGITS))
        for place, name in enumerate(index.names)
    ]


def _index(language: str, texts: Mapping[str, str]) -> _Index | None:
    names = tuple(sorted(texts))
    documents = [_tokens(language, texts[name]) for name in names]
    vocabulary = frozenset(word for document in documents for word in document)
    if not vocabulary:
        return None
    bm25: Any = bm25s.BM25(method="lucene", k1=1.2, b=0.5)
    bm25.index(documents, show_progress=False)
    return _Index(language, names, bm25, vocabulary, rarest=log(1 + (len(names) + 0.5) / 0.5))


def _text(agent: Effective) -> str:
    fields = agent.fields
    lists = (cast("Sequence[JsonValue]", fields[name] or ()) for name in ("examples", "tools"))
    names = cast("Mapping[str, JsonValue]", fields["http_tools"] or {})
    tools = (str(cast("Mapping[str, JsonValue]", tool).get("description") or "") for tool in names.values())
    parts = [str(fields[name] or "") for name in ("description", "role", "task")]
    return "\n".join([agent.name, *parts, *(str(item) for each in lists for item in each), *names, *tools])


def _languages(agent: Effective) -> frozenset[str]:
    named = cast("Sequence[str]", agent.fields["languages"] or ())
    return frozenset(tag.partition("-")[0].lower() for tag in named)


def _fold(text: str) -> str:
    """In lower case, without accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _tokens(language: str, text: str) -> list[str]:
    words = _WORD.findall(_fold(text.replace("_", " ")))
    kept = [word for word in words if word not in _stopwords(language) and not word.isdecimal()]
    return [_stem(language, word) for word in kept]


@cache
def _stopwords(language: str) -> frozenset[str]:
    return frozenset(part for word in _STOPWORDS.get(language, ()) for part in _WORD.findall(_fold(word)))


@cache
def _stemmer(language: str) -> Any:
    name = STEMMERS.get(language)
    return None if name is None else snowballstemmer.stemmer(name)


@lru_cache(_TOKENS)
def _stem(language: str, word: str) -> str:
    stemmer = _stemmer(language)
    return word if stemmer is None else _fold(stemmer.stemWord(word))
