"""From an utterance to values: normalise → find what is mentioned → leave out what is not meant → give each
variable its own → canonical form.

1. The bot's turn says which variable an answer is for; values come from the user's turn alone.
2. Each variable weighs the mentions of its type. What two variables of a type could both take goes to the one
   that was asked for, else to neither.
3. Two different values without a correction between them are no value: a wrong value costs a caller more than
   a question asked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise

from adapters.extraction.booleans import answer
from adapters.extraction.context import alternatives, clause, declined, last_meant
from adapters.extraction.dates import Today, dates
from adapters.extraction.enums import MemberMention, members
from adapters.extraction.mentions import Mention
from adapters.extraction.normalising import normalise
from adapters.extraction.numbers import free_of, numbers
from adapters.extraction.phones import phones
from adapters.extraction.questions import (
    Profile,
    Question,
    asked_for,
    conflict,
    is_content,
    profile,
    question,
    shares,
    topics_of,
)
from adapters.extraction.vocabulary import LANGUAGES, Vocabulary, anywhere, right_before, vocabulary
from flow_engine.ports.extraction import ExtractionRequest
from flow_engine.values import JsonValue, ValueRejected, canonical
from flow_engine.vocabulary import VariableType

_REACH = 40
_WORD = re.compile(r"[^\W\d_]+")
_SUPPORT_WORDS = 3
_SHORT_ANSWER = 4
"""Words up to which an answer is to the point: a number in it needs no word of the variable beside it."""
_MONTH_FIRST_REGIONS = frozenset({"US", "PH", "PR", "GU"})
_MINED = frozenset({"phone", "date", "number", "boolean", "enum"})


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """What all variables of a request are weighed against."""

    text: str
    tables: Vocabulary
    asked: Question | None
    profiles: Sequence[Profile]
    asked_ids: frozenset[str]
    today: date
    topics: frozenset[str]

    def of_type(self, kind: VariableType) -> Sequence[Profile]:
        return [each for each in self.profiles if each.spec.type == kind]

    def is_asked(self, profile: Profile) -> bool:
        return profile.spec.id in self.asked_ids

    @property
    def is_open(self) -> bool:
        """Nothing in particular was asked, so that any variable may be what the turn is about."""
        return self.asked is None or self.asked.opens


def extract(request: ExtractionRequest) -> Mapping[str, JsonValue]:
    """Canonical values by variable id, of those variables alone whose value was said beyond doubt."""
    code, region = _language(request.language)
    if code not in LANGUAGES:
        return {}
    tables = vocabulary(code)
    region = region or tables.region
    text = normalise(request.utterance, tables)
    now = request.said_at.astimezone(request.timezone)
    profiles = [profile(spec) for spec in request.variables if spec.type in _MINED]
    asked = question(request.previous_bot_turn, tables)
    asked_ids = asked_for(profiles, asked) if asked else frozenset[str]()
    turn = _Turn(text, tables, asked, profiles, asked_ids, now.date(), topics_of(text))
    order = "DMY" if code == "en" and region not in _MONTH_FIRST_REGIONS else tables.date_order
    found_phones = list(phones(text, tables, region))
    found_dates = free_of(dates(text, tables, Today(now, order)), found_phones)
    found_numbers = free_of(numbers(text, tables), [*found_phones, *found_dates])
    raw = {
        **_phones(turn, found_phones),
        **_dates(turn, found_dates),
        **_numbers(turn, found_numbers),
        **_enums(turn, found_numbers),
        **_booleans(turn),
    }
    return _canonical(raw, request, region)


def _canonical(
    raw: Mapping[str, JsonValue], request: ExtractionRequest, region: str
) -> Mapping[str, JsonValue]:
    values: dict[str, JsonValue] = {}
    for spec in request.variables:
        if spec.id not in raw:
            continue
        try:
            value = canonical(spec, raw[spec.id], default_region=region, timezone=request.timezone)
        except ValueRejected:  # said, but no value that the variable can hold
            continue
        if value is not None:
            values[spec.id] = value
    return values


def _language(tag: str) -> tuple[str, str | None]:
    """The language and the region, when there is one, of a BCP 47 tag."""
    first, *others = tag.replace("_", "-").split("-")
    return first.lower(), next((part.upper() for part in others if len(part) == 2 and part.isalpha()), None)


def _phones(turn: _Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    profiles = turn.of_type("phone")
    taker = next((each for each in profiles if turn.is_asked(each)), None)
    if taker is None and len(profiles) == 1:
        elsewhere = turn.asked is not None and conflict(turn.asked.topics, profiles[0])
        taker = None if elsewhere else profiles[0]
    meant = [mention for mention in found if not _declined(turn, mention)]
    if taker is None or _answers_another(turn, taker, meant):
        return {}
    return _one_value(taker, meant, turn)


def _dates(turn: _Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    profiles = turn.of_type("date")
    meant = [mention for mention in found if not _declined(turn, mention)]
    read = {each: _read_by(each, meant) for each in profiles}
    asked = [each for each in profiles if turn.is_asked(each)]
    takers = asked or [each for each in profiles if any(_on_its_side(turn, each, m) for m in read[each])]
    if len(takers) != 1:
        return {}
    taker = takers[0]
    return _one_value(taker, [mention for mention in read[taker] if _fits(turn, taker, mention)], turn)


def _read_by(profile: Profile, mentions: Sequence[Mention]) -> Sequence[Mention]:
    """The days as a variable of the past, or of what is to come, reads them."""
    if _is_past(profile):
        mentions = [replace(mention, value=mention.looking_back) for mention in mentions]
    return [mention for mention in mentions if mention.value is not None]


def _on_its_side(turn: _Turn, profile: Profile, mention: Mention) -> bool:
    day = _day_of(mention)
    return day <= turn.today if _is_past(profile) else day >= turn.today


def _day_of(mention: Mention) -> date:
    return date.fromisoformat(str(mention.value)[:10])


def _is_past(profile: Profile) -> bool:
    return bool(profile.topics & {"past", "birth"})


def _fits(turn: _Turn, profile: Profile, mention: Mention) -> bool:
    """A day that was not asked for must be on the variable's side of today, and what is said about the past
    or a birth must speak of it."""
    past, on_its_side = _is_past(profile), _on_its_side(turn, profile, mention)
    if (past and not on_its_side) or (turn.topics & {"birth"}) - profile.topics:
        return False
    if turn.is_asked(profile):
        return not (mention.vague and "birth" in profile.topics)
    if mention.vague or not on_its_side or _answers_another(turn, profile, [mention]):
        return False
    if past and not turn.topics & profile.topics & {"past", "birth"}:
        return False
    if not past and not _wished(turn, profile):
        return False
    return turn.asked is None or turn.is_open or "date" not in turn.asked.asks


def _wished(turn: _Turn, profile: Profile) -> bool:
    """Unasked, a day to come is the user's choice when he asks for something or speaks of the variable."""
    return anywhere(turn.tables.turns.wishes).search(turn.text) is not None or shares(
        _WORD.findall(turn.text), profile
    )


def _answers_another(turn: _Turn, profile: Profile, mentions: Sequence[Mention]) -> bool:
    """A value and nothing else, after a question that was not for this variable."""
    if turn.asked is None or turn.is_open or turn.is_asked(profile) or not mentions:
        return False
    around = turn.text[: mentions[0].start] + " " + turn.text[mentions[-1].end :]
    return not any(is_content(word) for word in _WORD.findall(around))


def _numbers(turn: _Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    values: dict[str, JsonValue] = {}
    profiles = turn.of_type("number")
    if _names_two(found, turn):
        return values
    for each in profiles:
        meant = [mention for mention in found if not _declined(turn, mention)]
        ranked = [(_rank(turn, each, m), m) for m in meant if not _rather_anothers(turn, each, m)]
        least = _least(turn, each)
        fitting = last_meant([mention for rank, mention in ranked if rank >= least], turn.text, turn.tables)
        best = max((rank for rank, mention in ranked if mention in fitting), default=0)
        values |= _one_value(
            each, [mention for rank, mention in ranked if rank == best and mention in fitting], turn
        )
    return values if len(values) < 2 else _told_apart(values, turn)


def _least(turn: _Turn, profile: Profile) -> int:
    """The rank from which on a variable takes a number."""
    return 1 if turn.is_asked(profile) else 2


def _rather_anothers(turn: _Turn, profile: Profile, mention: Mention) -> bool:
    """ "The 500 gram bags": a number that is a member of an enum belongs to the enum or to the variable that
    counts, whichever has more of the words behind it, then to the one that was asked for, else to neither."""
    rivals = "enum" if profile.spec.type == "number" else "number"
    return any(
        _rank(turn, each, mention) >= _least(turn, each)
        and _nearness(turn, each, mention) >= _nearness(turn, profile, mention)
        for each in turn.of_type(rivals)
        if rivals == "number" or mention.value in each.spec.enum_values
    )


def _nearness(turn: _Turn, profile: Profile, mention: Mention) -> tuple[int, bool]:
    words = _words_behind(turn, mention)
    return sum(shares([word], profile) for word in words), turn.is_asked(profile)


def _told_apart(values: Mapping[str, JsonValue], turn: _Turn) -> Mapping[str, JsonValue]:
    """Two variables may each take a number of their own, but not the same one twice."""
    shared = len({repr(value) for value in values.values()}) < len(values)
    return {key: value for key, value in values.items() if not shared or key in turn.asked_ids}


def _rank(turn: _Turn, profile: Profile, mention: Mention) -> int:
    """2: the words around the number are the variable's; 1: it stands alone, or the answer is short; 0: it
    counts something else."""
    if mention.topics:
        return 2 if mention.topics & profile.topics else 0
    behind = _words_behind(turn, mention)
    alone = not behind or not is_content(behind[0])
    short = len(turn.text.split()) <= _SHORT_ANSWER
    if mention.vague:
        return 1 if short and (alone or shares(behind[:1], profile)) else 0
    if shares(behind, profile):
        return 2
    if alone and shares(_words_ahead(turn, mention), profile):
        return 2
    return 1 if alone or short else 0


def _words_behind(turn: _Turn, mention: Mention | MemberMention) -> Sequence[str]:
    _, end = clause(turn.text, mention.start, mention.end, turn.tables)
    text = re.split("[0-9]", turn.text[mention.end : min(end, mention.end + _REACH)])[0]
    return _WORD.findall(text)[:_SUPPORT_WORDS]


def _words_ahead(turn: _Turn, mention: Mention | MemberMention) -> Sequence[str]:
    start, _ = clause(turn.text, mention.start, mention.end, turn.tables)
    text = re.split("[0-9]", turn.text[max(start, mention.start - _REACH) : mention.start])[-1]
    return _WORD.findall(text)[-_SUPPORT_WORDS:]


def _enums(turn: _Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    """A member that two variables have in common is the asked one's, else no one's."""
    fitting = {each: _members_for(turn, each, found) for each in turn.of_type("enum")}
    values: dict[str, JsonValue] = {}
    for each, mentions in fitting.items():
        others = {m.start for other, theirs in fitting.items() if other is not each for m in theirs}
        if turn.is_asked(each) or not any(mention.start in others for mention in mentions):
            values |= _one_value(each, mentions, turn)
    return values


def _members_for(turn: _Turn, profile: Profile, found: Sequence[Mention]) -> Sequence[Mention]:
    asked = turn.is_asked(profile)
    values = profile.spec.enum_values
    named = [
        Mention("number", mention.start, mention.end, mention.member)
        for mention in members(turn.text, values, turn.tables)
        if _named_on_purpose(turn, profile, mention, asked)
    ]
    numeric = {value for value in values if not isinstance(value, str)}
    counted = [
        m
        for m in found
        if m.value in numeric
        and _rank(turn, profile, m) >= _least(turn, profile)
        and not _rather_anothers(turn, profile, m)
    ]
    mentions = sorted((*named, *counted), key=lambda mention: mention.start)
    return [] if _names_two(mentions, turn) else [m for m in mentions if not _declined(turn, m)]


def _named_on_purpose(turn: _Turn, profile: Profile, mention: MemberMention, asked: bool) -> bool:
    """Unasked, a member before a noun ("a small problem") is said of something else."""
    behind = _words_behind(turn, mention)
    if asked:
        return not mention.brief or not behind or not is_content(behind[0])
    if mention.brief:
        return False
    if shares((*behind, *_words_ahead(turn, mention)), profile):
        return True
    said_of_another = (
        behind and is_content(behind[0]) and (turn.tables.code == "en" or _indefinite(turn, mention))
    )
    return turn.is_open and not said_of_another


def _indefinite(turn: _Turn, mention: MemberMention) -> bool:
    return (
        right_before(turn.tables.words.articles).search(
            turn.text[max(0, mention.start - _REACH) : mention.start]
        )
        is not None
    )


def _booleans(turn: _Turn) -> Mapping[str, JsonValue]:
    """Yes and no answer the one boolean that was asked for, by a question that they can answer."""
    asked = turn.asked
    taker = next((each for each in turn.of_type("boolean") if turn.is_asked(each)), None)
    if asked is None or taker is None or asked.offers_choice or asked.is_open_form:
        return {}
    if asked.stems & taker.when_false and not asked.stems & taker.words:
        return {}
    said = answer(turn.text, turn.tables)
    return {} if said is None or (said and asked.is_negated) else {taker.spec.id: said}


def _declined(turn: _Turn, mention: Mention) -> bool:
    return declined(turn.text, mention, turn.tables)


def _names_two(mentions: Sequence[Mention], turn: _Turn) -> bool:
    """ "two or three": any two that follow each other as alternatives."""
    return any(alternatives(first, second, turn.text, turn.tables) for first, second in pairwise(mentions))


def _one_value(taker: Profile | None, mentions: Sequence[Mention], turn: _Turn) -> Mapping[str, JsonValue]:
    """The one value that is left after corrections, when it is one."""
    meant = last_meant(mentions, turn.text, turn.tables)
    values = {repr(mention.value): mention.value for mention in meant}
    return {taker.spec.id: next(iter(values.values()))} if taker is not None and len(values) == 1 else {}
