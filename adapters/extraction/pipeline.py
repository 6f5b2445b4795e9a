"""From an utterance to values: normalise → find what is mentioned → leave out what is not meant → give each
variable its own → canonical form.

1. The bot's turn says which variable an answer is for; values come from the user's turn alone.
2. Each variable weighs the mentions of its type. What two variables of a type could both take goes to the one
   that was asked for, else to neither.
3. Two different values without a correction between them are no value: a wrong value costs a caller more than
   a question asked again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache

from adapters.extraction.answers import answer
from adapters.extraction.contact_details import emails, phones
from adapters.extraction.context import (
    MOST_WEIGHED,
    Fit,
    Found,
    Mention,
    Turn,
    last_meant,
)
from adapters.extraction.dates import Today, dates
from adapters.extraction.enums import enums, is_rather_anothers
from adapters.extraction.normalising import normalise
from adapters.extraction.numbers import free_of, numbers
from adapters.extraction.questions import (
    WORD,
    Profile,
    asked_for,
    conflict,
    is_content,
    profile,
    question,
    stems,
)
from adapters.extraction.vocabulary import LANGUAGES, anywhere, vocabulary
from flow_engine.ports.extraction import ExtractionRequest
from flow_engine.values import JsonValue, ValueRejected, canonical
from flow_engine.vocabulary import VariableType

_MONTH_FIRST_REGIONS = frozenset({"US", "PH", "PR", "GU"})
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
    # Looked for when a variable first needs it.
    found_emails: Found = cache(lambda: list(emails(text, request.utterance, tables, typed=request.typed)))
    found_phones: Found = cache(lambda: free_of(phones(text, tables, region), found_emails()))
    found_dates: Found = cache(lambda: free_of(dates(text, tables, Today(now, order)), found_phones()))
    found_numbers: Found = cache(
        lambda: free_of(numbers(text, tables), [*found_phones(), *found_dates(), *found_emails()])
    )
    turn = Turn(text, tables, asked, profiles, asked_ids, now.date(), found_dates)
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


def _emails(turn: Turn, found: Found) -> Mapping[str, JsonValue]:
    taker = _contact_asked_for(turn, "email")
    if taker is None:
        return {}
    asked = turn.is_asked(taker)
    others = anywhere(turn.tables.emails.others)
    meant = [
        mention
        for mention in found()
        if not turn.declines(mention)
        and not others.search(turn.text, turn.clause(mention)[0], mention.start)
        and (asked or not mention.vague)
    ]
    return turn.one_value(taker, turn.own(taker, meant, strict=True))


def _phones(turn: Turn, found: Found) -> Mapping[str, JsonValue]:
    taker = _contact_asked_for(turn, "phone")
    if taker is None:
        return {}
    asked = turn.is_asked(taker)
    meant = [mention for mention in found() if not turn.declines(mention)]
    says_so = anywhere(turn.tables.turns.number_words)
    if not asked and _is_bare_answer(turn, meant) and not says_so.search(turn.text):
        return {}  # to a question that was for another variable
    return turn.one_value(taker, turn.own(taker, meant, strict=not asked))


def _contact_asked_for(turn: Turn, kind: VariableType) -> Profile | None:
    """The variable that was asked for, or the only one where nothing that it is not was asked for."""
    profiles = turn.of_type(kind)
    taker = next((each for each in profiles if turn.is_asked(each)), None)
    if taker is not None or len(profiles) != 1:
        return taker
    elsewhere = turn.asked is not None and conflict(turn.asked.topics, profiles[0])
    return None if elsewhere else profiles[0]


def _dates(turn: Turn, found: Found) -> Mapping[str, JsonValue]:
    profiles = turn.of_type("date")
    meant = [mention for mention in found() if not turn.declines(mention)] if profiles else []
    if not meant:
        return {}
    asked = [each for each in profiles if turn.is_asked(each)]
    if not asked:
        if turn.asked is not None and not turn.is_open and turn.asked.asks("date"):
            return {}
        meant = [m for m in meant if not m.vague and not _is_bare_answer(turn, [m])]
    # As a variable of what is to come reads them, and as one of the past. What is true of a mention for all
    # variables is found out once: both may be many.
    to_come = [m for m in meant if m.value is not None and not turn.is_former(m)]
    been = [replace(m, value=m.looking_back) for m in meant if m.looking_back is not None]
    calls = {mention.start: _call_beside(turn, mention) for mention in meant}
    wanted = anywhere(turn.tables.turns.wishes).search(turn.text) is not None
    words = frozenset[str]() if wanted or asked else stems(turn.text)
    takers: list[tuple[Profile, Sequence[Mention]]] = []
    for each in asked or profiles:
        past = _is_past(each)
        # Unasked, a day to come is the user's choice when he asks for something or speaks of the variable,
        # and what is said about the past or a birth must speak of it.
        topics = each.topics & {"birth"} or {"past"}
        spoken_of = turn.is_asked(each) or (turn.topics & topics if past else wanted or words & each.words)
        days = [
            mention
            for mention in (been if past else to_come)
            if spoken_of
            and _fits(turn, each, mention)
            and (not calls[mention.start] or calls[mention.start] & each.words)
        ]
        takers += [(each, days)] if days else []
        if len(takers) > 1:
            return {}
    if not takers:
        return {}
    taker, days = takers[0]
    return turn.one_value(taker, turn.own(taker, days, strict="birth" in taker.topics))


def _is_past(profile: Profile) -> bool:
    return bool(profile.topics & {"past", "birth"})


def _fits(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """A day must be on the variable's side of today, but for one that was asked for and may be of either."""
    if (turn.topics & {"birth"}) - profile.topics:
        return False
    day, past = date.fromisoformat(str(mention.value)[:10]), _is_past(profile)
    if day <= turn.today if past else day >= turn.today:
        return not (mention.vague and "birth" in profile.topics)
    ahead = turn.asked is None or turn.asked.has(turn.tables.turns.asks_ahead)
    return not past and turn.is_asked(profile) and not ahead


def _call_beside(turn: Turn, mention: Mention) -> frozenset[str]:
    """ "Call me tomorrow": the stems of what says so, for which a variable that is not about calls has no
    use."""
    found = anywhere(turn.tables.turns.calls).search(turn.text, *turn.clause(mention))
    return frozenset() if found is None else stems(found.group())


def _is_bare_answer(turn: Turn, mentions: Sequence[Mention]) -> bool:
    """A value and nothing else, after a question in particular."""
    if turn.asked is None or turn.is_open or not mentions:
        return False
    around = turn.text[: mentions[0].start] + " " + turn.text[mentions[-1].end :]
    return not any(is_content(word) for word in WORD.findall(around))


def _numbers(turn: Turn, found: Found) -> Mapping[str, JsonValue]:
    values: dict[str, JsonValue] = {}
    profiles = turn.of_type("number")
    if not profiles or turn.names_two(found()):
        return values
    meant = [mention for mention in found() if not turn.declines(mention)]
    former = {m.start for m in meant if turn.is_former(m)}
    asks_back = turn.asked is not None and bool(turn.asked.topics & {"past", "earlier"})
    if len(profiles) * len(meant) > MOST_WEIGHED:
        profiles = [each for each in profiles if turn.is_asked(each)]
    for each in profiles:
        taken = [m for m in meant if turn.takes(each, m) and not is_rather_anothers(turn, each, m)]
        if not (asks_back or _is_past(each)):
            taken = [m for m in taken if m.start not in former]
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
    if asked is None or taker is None or asked.has(turn.tables.turns.alternatives) or asked.is_open_form:
        return {}
    if asked.stems & taker.when_false and not asked.stems & taker.words:
        return {}
    said = answer(turn, taker)
    return {} if said is None or (said and asked.is_negated) else {taker.spec.id: said}
