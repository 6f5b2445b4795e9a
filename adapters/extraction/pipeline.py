"""From an utterance to values: normalise → find what is mentioned → leave out what is not meant → give each
variable its own → canonical form.

1. The bot's turn says which variable an answer is for; values come from the user's turn alone.
2. Each variable weighs the mentions of its type. What two variables of a type could both take goes to the one
   that was asked for, else to neither.
3. Two different values without a correction between them are no value: a wrong value costs a caller more than
   a question asked again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from adapters.extraction.answers import answer
from adapters.extraction.contact_details import emails, phones
from adapters.extraction.context import Fit, Mention, Turn, clause, is_former, last_meant
from adapters.extraction.dates import Today, dates
from adapters.extraction.enums import enums, is_rather_anothers
from adapters.extraction.normalising import normalise
from adapters.extraction.numbers import free_of, numbers
from adapters.extraction.questions import (
    Profile,
    asked_for,
    conflict,
    is_content,
    profile,
    question,
    shares,
    topics_of,
)
from adapters.extraction.vocabulary import LANGUAGES, anywhere, right_before, vocabulary
from flow_engine.ports.extraction import ExtractionRequest
from flow_engine.values import JsonValue, ValueRejected, canonical
from flow_engine.vocabulary import VariableType

_WORD = re.compile(r"[^\W\d_]+")
_MONTH_FIRST_REGIONS = frozenset({"US", "PH", "PR", "GU"})
MOST_WEIGHED = 10_000
"""Pairs of a variable and a number that was said; where there are more, only what was asked for is read."""
_MINED = frozenset({"phone", "email", "date", "number", "boolean", "enum"})


def extract(request: ExtractionRequest) -> Mapping[str, JsonValue]:
    """Canonical values by variable id, of those variables alone whose value was said beyond doubt. Of the
    utterance 2,000 characters are read. Empty for an unknown language; never raises for what a user says."""
    code, *others = request.language.replace("_", "-").lower().split("-")  # BCP 47
    if code not in LANGUAGES:
        return {}
    tables = vocabulary(code)
    region = next((part.upper() for part in others if len(part) == 2 and part.isalpha()), tables.region)
    text = normalise(request.utterance, tables)
    try:
        now = request.said_at.astimezone(request.timezone)
    except OverflowError:  # at an end of the calendar
        return {}
    profiles = [profile(spec) for spec in request.variables if spec.type in _MINED]
    asked = question(request.previous_bot_turn, tables)
    asked_ids = asked_for(profiles, asked) if asked else frozenset[str]()
    order = "DMY" if code == "en" and region not in _MONTH_FIRST_REGIONS else tables.date_order
    found_emails = list(emails(text, request.utterance, tables, typed=request.typed))
    found_phones = free_of(phones(text, tables, region), found_emails)
    found_dates = free_of(dates(text, tables, Today(now, order)), found_phones)
    found_numbers = free_of(numbers(text, tables), [*found_phones, *found_dates, *found_emails])
    turn = Turn(text, tables, asked, profiles, asked_ids, now.date(), topics_of(text), found_dates)
    raw = {
        **_emails(turn, found_emails),
        **_phones(turn, found_phones),
        **_dates(turn, found_dates),
        **_numbers(turn, found_numbers),
        **enums(turn, found_numbers),
        **_booleans(turn),
    }
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


def _emails(turn: Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    taker = _contact_asked_for(turn, "email")
    if taker is None:
        return {}
    asked = turn.is_asked(taker)
    sender = right_before(turn.tables.emails.senders)
    meant = [
        mention
        for mention in found
        if not turn.declines(mention)
        and (asked or not (mention.vague or sender.search(turn.text, 0, mention.start)))
    ]
    return turn.one_value(taker, turn.own(taker, meant, strict=not asked))


def _phones(turn: Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    taker = _contact_asked_for(turn, "phone")
    meant = [mention for mention in found if not turn.declines(mention)]
    says_so = anywhere(turn.tables.turns.number_words).search(turn.text) is not None
    if taker is None or (_answers_another(turn, taker, meant) and not says_so):
        return {}
    return turn.one_value(taker, turn.own(taker, meant, strict=not turn.is_asked(taker)))


def _contact_asked_for(turn: Turn, kind: VariableType) -> Profile | None:
    """The variable that was asked for, or the only one where nothing that it is not was asked for."""
    profiles = turn.of_type(kind)
    taker = next((each for each in profiles if turn.is_asked(each)), None)
    if taker is not None or len(profiles) != 1:
        return taker
    elsewhere = turn.asked is not None and conflict(turn.asked.topics, profiles[0])
    return None if elsewhere else profiles[0]


def _dates(turn: Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    profiles = turn.of_type("date")
    meant = [mention for mention in found if not turn.declines(mention)]
    read: dict[Profile, Sequence[Mention]] = {}
    for each in profiles:  # as a variable of the past, or of what is to come, reads them
        days = [replace(m, value=m.looking_back) for m in meant] if _is_past(each) else meant
        read[each] = [mention for mention in days if mention.value is not None]
    asked = [each for each in profiles if turn.is_asked(each)]
    fitting = {each: [m for m in read[each] if _fits(turn, each, m)] for each in asked or profiles}
    takers = [each for each, days in fitting.items() if days]
    if len(takers) != 1:
        return {}
    taker = takers[0]
    return turn.one_value(taker, turn.own(taker, fitting[taker], strict="birth" in taker.topics))


def _on_its_side(turn: Turn, profile: Profile, mention: Mention) -> bool:
    day = date.fromisoformat(str(mention.value)[:10])
    return day <= turn.today if _is_past(profile) else day >= turn.today


def _is_past(profile: Profile) -> bool:
    return bool(profile.topics & {"past", "birth"})


def _fits(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """A day that was not asked for must be on the variable's side of today, and what is said about the past
    or a birth must speak of it."""
    past, on_its_side = _is_past(profile), _on_its_side(turn, profile, mention)
    if not past and is_former(turn.text, mention, turn.tables):
        return False
    if (past and not on_its_side) or (turn.topics & {"birth"}) - profile.topics:
        return False
    if _is_of_a_call(turn, profile, mention):
        return False
    if turn.is_asked(profile):
        is_ahead = turn.asked is not None and turn.asked.looks_ahead and not past
        return on_its_side if is_ahead else not (mention.vague and "birth" in profile.topics)
    if mention.vague or not on_its_side or _answers_another(turn, profile, [mention]):
        return False
    if past and not turn.topics & (profile.topics & {"birth"} or {"past"}):
        return False
    # Unasked, a day to come is the user's choice when he asks for something or speaks of the variable.
    if not past and not (
        anywhere(turn.tables.turns.wishes).search(turn.text) is not None
        or shares(_WORD.findall(turn.text), profile)
    ):
        return False
    return turn.asked is None or turn.is_open or "date" not in turn.asked.asks


def _is_of_a_call(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """ "Call me tomorrow", for a variable that is not about calls."""
    where = clause(turn.text, mention.start, mention.end, turn.tables)
    found = anywhere(turn.tables.turns.calls).search(turn.text, *where)
    return found is not None and not shares(_WORD.findall(found.group()), profile)


def _answers_another(turn: Turn, profile: Profile, mentions: Sequence[Mention]) -> bool:
    """A value and nothing else, after a question that was not for this variable."""
    if turn.asked is None or turn.is_open or turn.is_asked(profile) or not mentions:
        return False
    around = turn.text[: mentions[0].start] + " " + turn.text[mentions[-1].end :]
    return not any(is_content(word) for word in _WORD.findall(around))


def _numbers(turn: Turn, found: Sequence[Mention]) -> Mapping[str, JsonValue]:
    values: dict[str, JsonValue] = {}
    if turn.names_two(found):
        return values
    meant = [mention for mention in found if not turn.declines(mention)]
    asks_back = turn.asked is not None and bool(turn.asked.topics & {"past", "earlier"})
    profiles = turn.of_type("number")
    if len(profiles) * len(meant) > MOST_WEIGHED:
        profiles = [each for each in profiles if turn.is_asked(each)]
    for each in profiles:
        taken = [m for m in meant if turn.takes(each, m) and not is_rather_anothers(turn, each, m)]
        if not (asks_back or _is_past(each)):
            taken = [m for m in taken if not is_former(turn.text, m, turn.tables)]
        taken = turn.own(each, taken, strict=bool(each.topics & {"price", "age"}))
        fitting = last_meant(taken, turn.text, turn.tables)
        best = max((turn.fit(each, mention) for mention in fitting), default=Fit.OTHERS)
        values |= turn.one_value(each, [mention for mention in fitting if turn.fit(each, mention) == best])
    # Variables may each take a number of their own, but not the same one twice.
    shared = len({repr(value) for value in values.values()}) < len(values)
    return {key: value for key, value in values.items() if not shared or key in turn.asked_ids}


def _booleans(turn: Turn) -> Mapping[str, JsonValue]:
    """Yes and no answer the one boolean that was asked for, by a question that they can answer."""
    asked = turn.asked
    taker = next((each for each in turn.of_type("boolean") if turn.is_asked(each)), None)
    if asked is None or taker is None or asked.offers_choice or asked.is_open_form:
        return {}
    if asked.stems & taker.when_false and not asked.stems & taker.words:
        return {}
    said = answer(turn, taker)
    return {} if said is None or (said and asked.is_negated) else {taker.spec.id: said}
