"""The IntentRouter (C7): agents by how well a message fits what their rows say. No model, no decision.

1. For each language of the table there is an index (BM25): the lines of description, role, task, tools and
   examples that may be in it, of the agents that speak it, folded to plain letters and stemmed, without the
   language's commonest words. An agent that names no language speaks every one that another agent names, and
   English; one that has no line in a language is found there by all that it has.
2. A message is looked up in the languages that it may be in, by the commonest words that stand in it. One
   that has no other words, such as a greeting, fits only lines of which the same is true.
3. The score is the share of what the message could reach at most: the sum of what its words are worth for
   this agent by the sum of the most that each is worth for any agent. A word that no agent knows counts as
   `UNKNOWN_WORTH` of a known one, so that a message of strange words reaches little; one that is akin to a
   known word counts as `KIN_WORTH` of it.
4. An agent's score is its best over the languages; `WORDS_WORTH` of it is the share of all words in all
   lines, which puts agents in order where nothing else does. Equal texts and tables give equal scores, to the
   digit.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import islice
from math import log
from typing import Any, Final, cast

import bm25s
import snowballstemmer
from bm25s import stopwords

from channels.chat.inheritance import Effective
from flow_engine.values import JsonValue

UNKNOWN_WORTH: Final = 0.4
WORDS_WORTH: Final = 0.1
KIN_WORTH: Final = 0.6
KIN_LETTERS: Final = 5
DIGITS: Final = 4
MOST_WORDS: Final = 200
MOST_READ: Final = 20_000
"""Characters of a row that are read, its description first: nobody is answered meanwhile."""
DEFAULT_LANGUAGE: Final = "en"

_WORD: Final = re.compile(r"[^\W_]{1,64}")
"""Longer ones are none: each of their beginnings and ends would be looked up."""

_LINE: Final = re.compile(r"\n|(?<=[.!?])\s+")
_TOKENS: Final = 50_000

STEMMERS: Final[Mapping[str, str]] = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "et": "estonian", "eu": "basque", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
"""Languages by their two letters; words of any other are compared as they are."""

_MORE: Final[Mapping[str, str]] = {
    "en": (
        "hi hey hello bye goodbye good morning evening thank thanks please lot could tell want like may might"
        " shall today tomorrow now still"
    ),
    "it": (
        "ehi ciao salve buon buona buongiorno buonasera arrivederci grazie prego va bisogna ciò cos cosa cose"
        " così d dimmi fare fatto mai me molto no ogni po poi posso possiamo possono potete potrei potrebbe"
        " potreste può puoi qual quali quando sempre senza solo te vogliamo voglio vorrei vorremmo vuole vuoi"
        " stato stata stati oggi domani adesso ora ancora"
    ),
    "es": (
        "oye hola adiós buen buena buenas buenos días tardes noches gracias ahí así aún cada cosa cosas"
        " cuales cuánta cuántas cuánto cuántos debo dime favor hace hacer nunca podéis podemos podría"
        " podríais pueda puede pueden puedes puedo pues queremos quería quiere quiero quisiera si siempre"
        " sólo tan usted ustedes va vamos hoy mañana ahora todavía"
    ),
}
"""Words of greeting, asking, wishing and time that the lists leave out."""

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
    vocabulary: Sequence[str]
    known: frozenset[str]
    rarest: float
    worth: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])

    def worths(self, word: str) -> Sequence[float]:
        """What a word is worth for each agent; `KIN_WORTH` of that for one that is only akin to a word of the
        vocabulary, the nearest; nothing for any other."""
        kin = word if word in self.known else self._kin(word)
        if kin is None:
            return []
        found = self.worth.get(kin)
        if found is None:
            found = self.worth[kin] = self.bm25.get_scores([kin]).tolist()
        return found if kin == word else [KIN_WORTH * worth for worth in found]

    def _kin(self, word: str) -> str | None:
        """The word of the vocabulary with which this one shares its longest beginning, or of which it is a
        compound; None where they share less than `KIN_LETTERS` letters."""
        parts = (
            part for size in range(len(word) - 1, KIN_LETTERS - 1, -1) for part in (word[:size], word[-size:])
        )
        compound = next((part for part in parts if part in self.known), None)
        if compound is not None:
            return compound
        for size in range(len(word) - 1, max(KIN_LETTERS, len(word) - 4) - 1, -1):
            place = bisect_left(self.vocabulary, word[:size])
            if place < len(self.vocabulary) and self.vocabulary[place].startswith(word[:size]):
                return self.vocabulary[place]
        return None


class IntentRouter:
    """For one table of agents, as it was when this was made."""

    def __init__(self, agents: Iterable[Effective]) -> None:
        texts = {agent.name: (agent.languages, _lines(agent)) for agent in agents}
        self._names = tuple(sorted(texts))
        every = sorted({DEFAULT_LANGUAGE}.union(*(languages for languages, _ in texts.values())))
        indexes: list[_Index | None] = []
        for language in every:
            spoken: dict[str, Sequence[str]] = {}
            for name, (own, lines) in texts.items():
                if language in (own or every):
                    in_it = [line for line in lines if language in _spoken(line, sorted(own or every))]
                    spoken[name] = in_it or lines
            indexes.append(_index(language, spoken))
        self._words = _index("", {name: lines for name, (_, lines) in texts.items()})
        self._indexes = {index.language: index for index in indexes if index is not None}

    def scores(self, text: str) -> dict[str, float]:
        """For every agent of the table, its share of the words that speak for it, from 0 to 1."""
        best, asked = dict.fromkeys(self._names, 0.0), _words(text)
        for language in _spoken(text, tuple(self._indexes)):
            for name, score in _shares(self._indexes[language], asked):
                best[name] = max(best[name], score)
        words = {} if self._words is None else dict(_shares(self._words, asked))
        return {
            name: round((1 - WORDS_WORTH) * score + WORDS_WORTH * words.get(name, 0.0), DIGITS)
            for name, score in best.items()
        }

    def words_for(self, agent: str, text: str) -> int:
        """How many different words of the text speak for an agent, in the language where they are most."""
        asked = _words(text)
        found = [
            sum(
                index.worths(word)[index.names.index(agent)] > 0
                for word in index.known.intersection(_asked(index.language, asked))
            )
            for index in self._indexes.values()
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


def _spoken(text: str, languages: Sequence[str]) -> list[str]:
    """Those of `languages` that a text may be in: where most of their commonest words stand in it; every one
    where none does, and one whose words are not listed always."""
    words = set(_WORD.findall(_fold(text)))
    counts = {language: len(words & _stopwords(language)) for language in languages}
    most = max(counts.values(), default=0)
    return [language for language in languages if counts[language] == most or not _stopwords(language)]


def _shares(index: _Index, asked: Sequence[str]) -> list[tuple[str, float]]:
    words = _asked(index.language, asked)
    worths = [worth for word in words if (worth := index.worths(word))]
    if not worths:
        return []
    reachable = sum(map(max, worths)) + UNKNOWN_WORTH * index.rarest * (len(words) - len(worths))
    return [
        (name, sum(worth[place] for worth in worths) / reachable) for place, name in enumerate(index.names)
    ]


def _index(language: str, texts: Mapping[str, Sequence[str]]) -> _Index | None:
    names = tuple(sorted(texts))
    documents = [[word for line in texts[name] for word in _tokens(language, _words(line))] for name in names]
    vocabulary = sorted({word for document in documents for word in document})
    if not vocabulary:
        return None
    bm25: Any = bm25s.BM25(method="lucene", k1=1.2, b=0.5)
    bm25.index(documents, show_progress=False)
    rarest = log(1 + (len(names) + 0.5) / 0.5)
    return _Index(language, names, bm25, vocabulary, frozenset(vocabulary), rarest)


def _lines(agent: Effective) -> list[str]:
    fields = agent.fields
    lists = (cast("Sequence[JsonValue]", fields[name] or ()) for name in ("examples", "tools"))
    names = cast("Mapping[str, JsonValue]", fields["http_tools"] or {})
    tools = (str(cast("Mapping[str, JsonValue]", tool).get("description") or "") for tool in names.values())
    parts = [str(fields[name] or "") for name in ("description", "role", "task")]
    texts = [agent.name, *parts, *(str(item) for each in lists for item in each), *names, *tools]
    return [line for line in _LINE.split("\n".join(texts)[:MOST_READ]) if line]


def _fold(text: str) -> str:
    """In lower case, without accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(_fold(text.replace("_", " "))) if not word.isdecimal()]


def _tokens(language: str, words: Collection[str], most: int | None = None) -> list[str]:
    """Stems of the first words that are not among the commonest. A text that has no others, such as a
    greeting, is told by all of its words, which stand for themselves: no stem is equal to `=word`."""
    kept = islice((word for word in words if word not in _stopwords(language)), most)
    return [_stem(language, word) for word in kept] or [f"={word}" for word in islice(words, most)]


def _asked(language: str, words: Sequence[str]) -> list[str]:
    """The different ones of a message, `MOST_WORDS` at most."""
    return list(dict.fromkeys(_tokens(language, dict.fromkeys(words), MOST_WORDS)))


@cache
def _stopwords(language: str) -> frozenset[str]:
    words = (*_STOPWORDS.get(language, ()), *_MORE.get(language, "").split())
    return frozenset(part for word in words for part in _WORD.findall(_fold(word)))


@lru_cache(_TOKENS)
def _stem(language: str, word: str) -> str:
    name = STEMMERS.get(language)
    if name is None:
        return word
    stemmer: Any = snowballstemmer.stemmer(name)  # not shared: it has a word in work, and there are threads
    return _fold(stemmer.stemWord(word))
