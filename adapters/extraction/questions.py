"""What the last bot turn asked for, recognised by the words that it shares with a variable's name and prompt.

1. The questions of a turn count; in a turn without a question mark, its last sentence.
2. Words are compared by their stems, without those that every question has. Parts of a prompt that say what
   the variable is not ("Not the date of birth") count against it.
3. A question whose topic (birth, price, age, an order …) the variable's own words lack is for another one.
4. A question without words of its own ("When?", "Your number?") asks the variable of the type that its
   question word is for.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from adapters.extraction.vocabulary import LANGUAGES, LONGEST_KEPT, Phrases, Vocabulary, anywhere, fold
from adapters.extraction.vocabulary import vocabulary as tables_of
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VariableType

WORD = re.compile(r"[^\W\d_]+")
_SENTENCE = re.compile(r"[^.?!;]+[.?!;]*")
_RUN, _ONE_WORD = re.compile(r"\w+"), re.compile(r"\w+\*?")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
_PART = re.compile(r"[.;:,()]")
_NEGATED = re.compile(r"\s*(?:non|not|no|never|nunca|mai)\b")
_FALSE = re.compile(r"\b(?:falso|falsa|false)\b")
_NEGATION = re.compile(r"\b(?:non|not|no)\b|n't\b")
_MAX_CHARS = 2000
SIGNS = str.maketrans({"€": " euro ", "$": " dollar ", "£": " pound ", "¥": " yen "})


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A variable by its words."""

    spec: VariableSpec
    name: frozenset[str]
    words: frozenset[str]
    """Of its name and its prompt."""
    excluded: frozenset[str]
    when_false: frozenset[str]
    """Only in the part of a boolean's prompt that says when it is false."""
    topics: frozenset[str]
    numbers: frozenset[int | float]
    """Of an enum's members those that are no texts."""


@dataclass(frozen=True, eq=False)
class Question:
    """What a bot turn asks, each part of it found when needed; nothing in particular without `stems`."""

    sentences: Sequence[str]
    tables: Vocabulary

    @cached_property
    def text(self) -> str:
        return " ".join(self.sentences)

    @cached_property
    def stems(self) -> frozenset[str]:
        return stems(self.text)

    @cached_property
    def topics(self) -> frozenset[str]:
        return topics_of(self.text)

    def asks(self, kind: str) -> bool:
        """Whether a question word of the type is in it."""
        turns = self.tables.turns
        if kind == "phone" and not self.stems and self.has(turns.number_words):
            return True  # "Your number?"; "your number of …" asks for what it is the number of
        words = {"date": turns.asks_date, "phone": turns.asks_phone, "number": turns.asks_number}
        return self.has(self.tables.emails.words if kind == "email" else words.get(kind, ()))

    @property
    def is_open_form(self) -> bool:
        """Begins with "when", "how many" and the like: yes or no answers something else."""
        asking = anywhere(self.tables.answers.asking)
        return any(asking.match(sentence.strip(" ¿¡,")) for sentence in self.sentences)

    @property
    def is_negated(self) -> bool:
        """ "Don't you need parking?": a plain yes may mean either."""
        return _NEGATION.search(self.text) is not None

    def has(self, phrases: Phrases) -> bool:
        return anywhere(phrases).search(self.text) is not None


@lru_cache(maxsize=2048)  # a version's variables are read in each turn of its conversations
def profile(spec: VariableSpec) -> Profile:
    prompt = fold((spec.prompt or "")[:_MAX_CHARS].translate(SIGNS))
    name = fold(_CAMEL.sub(" ", spec.name or spec.id))
    parts = _PART.split(prompt)
    positive = " . ".join(part for part in parts if not _NEGATED.match(part))
    negative = " . ".join(part for part in parts if _NEGATED.match(part))
    false_part = ""
    if spec.type == "boolean" and (cut := _FALSE.search(positive)):
        positive, false_part = positive[: cut.start()], positive[cut.end() :]
    members = " ".join(str(value) for value in spec.enum_values)
    words = stems(positive) | stems(fold(members))
    topics = topics_of(f"{name} . {positive}")
    return Profile(
        spec,
        name=stems(name),
        words=stems(name) | words,
        excluded=stems(negative) - words,
        when_false=stems(false_part) - words,
        topics=topics | {"earlier"} if topics & {"past", "birth"} else topics,
        numbers=frozenset(value for value in spec.enum_values if not isinstance(value, str)),
    )


def question(turn: str | None, vocabulary: Vocabulary) -> Question | None:
    """None when nothing was asked, or nothing in particular ("How can I help?"). The last 2,000 characters
    count."""
    if turn is None or not turn.strip():
        return None
    sentences: list[str] = _SENTENCE.findall(fold(turn[-_MAX_CHARS:]))
    return Question([each for each in sentences if "?" in each] or sentences[-1:], vocabulary)


def score(profile: Profile, asked: Question) -> int:
    """How many of the question's words are the variable's, those of its name twice; 0 when it asks for what
    the variable is not.

    "Which day for the visit?" does ask for a day that is "not that of earlier visits": words that are
    excluded count one by one against the others, and the type that is asked for decides between equals.
    """
    own = len(asked.stems & profile.name) + len(asked.stems & profile.words)
    against = len(asked.stems & profile.excluded)
    if not own and profile.spec.type == "number" and asked.topics & profile.topics & _DECIDING["number"]:
        own = 1  # "How old are you?" is for the age
    if against > own or (against == own > 0 and not asked.asks(profile.spec.type)):
        return 0
    return 0 if conflict(asked.topics, profile) else own


_LOOKING_BACK = frozenset({"birth", "past"})
_DECIDING: dict[VariableType, frozenset[str]] = {
    "number": frozenset({"price", "reference", "age", "floor", "address", "birth", "clock"}),
    "phone": frozenset({"reference", "age", "floor", "address", "price", "another"}),
    "email": frozenset({"another"}),
    "date": frozenset({"birth", "earlier", "another"}),
}
"""Which topics of a question or a clause another variable of that type cannot answer. The others are only
touched on: "the last visit", "how many days"."""


def conflict(topics: frozenset[str], profile: Profile) -> bool:
    """Whether the topics speak of something that the variable's own words do not."""
    return bool(topics & _DECIDING.get(profile.spec.type, frozenset()) - profile.topics)


def asked_for(profiles: Sequence[Profile], asked: Question) -> frozenset[str]:
    """The ids of the variables that the question is for: of each type at most one, the best match."""
    scores = {each.spec.id: score(each, asked) for each in profiles}
    best = max(scores.values(), default=0)
    ids: set[str] = set()
    for kind in {each.spec.type for each in profiles}:
        same = [each for each in profiles if each.spec.type == kind]
        ranked = sorted(same, key=lambda each: -scores[each.spec.id])
        top = scores[ranked[0].spec.id]
        alone = len(ranked) == 1 or top > scores[ranked[1].spec.id]
        if alone and top > 0 and 2 * top >= best:
            ids.add(ranked[0].spec.id)
        elif best == 0 and asked.asks(kind):
            # Rule 4: the question word of the type, and nothing that speaks of another matter; of several
            # the one that is no birth and nothing of the past.
            free = [each for each in same if not conflict(asked.topics, each)]
            free = free if len(free) == 1 else [each for each in free if not each.topics & _LOOKING_BACK]
            others = asked.stems if kind == "number" else asked.stems & free[0].excluded if free else ()
            if len(free) == 1 and not others:
                ids.add(free[0].spec.id)
    return frozenset(ids)


def stems(text: str) -> frozenset[str]:
    """Of folded text: its content words without their endings, at most five letters of each."""
    return frozenset(
        _stem(word) for word in WORD.findall(text) if word not in _stop_words() and len(word) > 1
    )


def _stem(word: str) -> str:
    cut = (
        word[:-2]
        if word.endswith("es") and len(word) > 4
        else word[:-1]
        if word.endswith("s") and len(word) > 3
        else word
    )
    shorter = cut.rstrip("aeiou")
    return (shorter if len(shorter) >= 3 else cut)[:5]


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(word for code in LANGUAGES for word in tables_of(code).words.stop)


@cache
def _topic_words() -> Mapping[str, Phrases]:
    """A flow's prompts and its conversations may be in different languages, so the three count together."""
    every = [tables_of(code).topics for code in LANGUAGES]
    return {name: tuple(phrase for topics in every for phrase in topics[name].words) for name in every[0]}


@cache
def _of_several_words() -> Phrases:
    phrases = (phrase for some in _topic_words().values() for phrase in some)
    return tuple(phrase for phrase in phrases if not _ONE_WORD.fullmatch(phrase))


def topics_of(text: str) -> frozenset[str]:
    words: list[str] = _RUN.findall(text)
    if anywhere(_of_several_words()).search(text) or max(map(len, words), default=0) > LONGEST_KEPT:
        return _topics_in(text)
    return frozenset[str]().union(*map(_topics_of_word, words))


def _topics_in(text: str) -> frozenset[str]:
    return frozenset(name for name, phrases in _topic_words().items() if anywhere(phrases).search(text))


_topics_of_word = lru_cache(maxsize=8192)(_topics_in)  # most of what is said are a few thousand words


@cache
def measures() -> Sequence[Mapping[str, frozenset[str]]]:
    """The stems of each unit, for each kind of measure, in all languages as with topics."""
    every = [tables_of(code) for code in LANGUAGES]
    kinds: dict[str, dict[str, frozenset[str]]] = {}
    for tables in every:
        times = [("time", unit, word) for word, unit in tables.dates.units.items()]
        others = [
            (kind, unit, " ".join(words))
            for kind, units in tables.measures.items()
            for unit, words in units.items()
        ]
        for kind, unit, words in (*times, *others):
            known = kinds.setdefault(kind, {})
            known[unit] = known.get(unit, frozenset()) | stems(words)
    return list(kinds.values())


def is_content(word: str) -> bool:
    """Whether a word of folded text says what is spoken of, unlike articles, pronouns and verbs of asking."""
    return len(word) > 1 and word not in _stop_words()


def shares(words: Iterable[str], profile: Profile) -> bool:
    return any(is_content(word) and _stem(word) in profile.words for word in words)
