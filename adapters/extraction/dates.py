"""Days, and days with a time, as `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM` in the user's own zone.

1. Relative days count from the day on which the turn was said. A bare weekday is the next one, never today;
   for a variable that speaks of the past it is the last one.
2. A day without a year is the next such day, today included; for the past, the last one. One that was within
   the last month is not meant of the next year.
3. A weekday beside a day of the month must agree with it, else what was meant is unknown.
4. A time counts only beside a day, or when it corrects the time of a day. A part of the day adds no time.
   "Today at midnight" is the end of today; for the past, its beginning.
5. What is no single day is nothing: "next week", "since Monday", "from the 3rd to the 5th", "on Mondays", "a
   Monday next month".
"""

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, lru_cache

from adapters.extraction.context import Mention, follows_correction, in_range
from adapters.extraction.numbers import TimeMention, part_of_day, times
from adapters.extraction.vocabulary import Dates, Vocabulary, alternation, as_listed, few, right_before

_REACH = 40
_HALF_DAY = 12
_JUST_PAST = 31
"""Days after which a day without a year may be that of the next year."""
_WORD = re.compile(r"[\wº']+")


@dataclass(frozen=True, slots=True)
class Today:
    """When and how the turn is read: the user's local clock and the order of day and month."""

    now: datetime
    order: str

    @property
    def day(self) -> date:
        return self.now.date()


@dataclass(frozen=True, slots=True)
class _Day:
    start: int
    end: int
    day: date | None
    """As a variable of what is to come reads it, and `back` as one of the past does; None: no such day."""
    back: date | None
    vague: bool = False
    clock: time | None = None
    """Only of moments counted from now: "in two hours"."""


_YEAR = r"(?:19|20) ?[0-9]{2}(?![0-9])"
_NUMBER = r"(?<![\w.,/:+-])"


def _of_a_month(tables: Dates) -> Iterator[str]:
    for of in (*tables.of, *tables.ahead_lead):
        for names in tables.months:
            yield from (f"{of} {month}" for month in names)


class _Patterns:
    """How days are named in one language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tables = vocabulary.dates
        months = alternation(name for names in tables.months for name in names)
        units = alternation(tables.units)
        one = alternation((*vocabulary.words.one, *vocabulary.words.indefinite))
        count = rf"[0-9]{{1,4}}|{one}"
        in_year = rf"(?:,? (?:{alternation(tables.year_after)}['’]? ?)?)"
        # "Marzo ottantacinque": no day of a month, and nothing that it could count.
        bare_year = r" '?(?P<{}>3[2-9]|[4-9][0-9])(?=$| ?[,.;?!])"
        tail = rf"(?=$| ?[,.;?!]| {alternation(tables.day_tail)})"
        mark = "º" if tables.bare_day_needs_ordinal else "º?"
        # Before the amount or behind it, as the language has it.
        ago = rf"(?P<ago_n>{count}) (?P<ago_unit>{units})"
        lead = tables.ago_lead and f"{alternation(tables.ago_lead)} "
        ago = f"{lead}{ago}" if lead else rf"(?<![\w.,+-]){ago} {alternation(tables.ago_tail)}"
        self.day = re.compile(
            rf"(?<!\w)(?:"  # one look for all
            rf"(?<![\w/.-])(?P<iso>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?![\w-])"
            rf"|(?<![\w/.-])(?P<numeric>[0-9]{{1,2}}([/.-])[0-9]{{1,2}}\3(?:[0-9]{{4}}|[0-9]{{2}}))(?![\w/-])"
            rf"|(?<![\w/.-])(?P<short>[0-9]{{1,2}}/[0-9]{{1,2}})(?![\w/-])"
            rf"|{_NUMBER}(?P<day>[0-9]{{1,2}})º?(?: {alternation(tables.of)})? (?P<month>{months})"
            rf"(?:{in_year}(?P<year>{_YEAR})"
            rf"|[ ,]{alternation(tables.year_after)} ?'?(?P<short_year>[0-9]{{2}})(?![\w:.])"
            rf"|{bare_year.format('bare_year')})?"
            rf"|(?P<month_before>{months}) (?:the )?(?P<day_after>[0-9]{{1,2}})º?"
            rf"(?![\wº:/]|[.,][0-9]| (?!{_YEAR})[0-9]{{3}})"
            rf"(?:{in_year}(?P<year_behind>{_YEAR})|{bare_year.format('bare_year_behind')})?"
            rf"|(?P<relative>{alternation(tables.days)})"
            rf"|{alternation(tables.ahead_lead)} (?P<ahead_n>{count}) (?P<ahead_unit>{units})"
            rf"|(?<![\w.,+-])(?P<from_now_n>{count}) (?P<from_now_unit>{units})"
            rf" {alternation(tables.ahead_tail)}"
            rf"|{ago}"
            rf"|{alternation(tables.day_lead)} (?P<bare>[0-9]{{1,2}}){mark}{tail})"
        )
        names = alternation(name for spellings in tables.weekdays for name in spellings)
        ahead, back, lead = map(alternation, (tables.next, tables.last, tables.day_lead))
        self.weekday = re.compile(
            rf"(?<!\w)(?:(?P<next>{ahead}) |(?P<last>{back}) )?(?P<weekday>{names})"
            rf"(?: (?P<week_after>{alternation(tables.week_after)})"
            rf"| (?P<next_behind>{ahead})| (?P<last_behind>{back})"
            rf"|,? (?:{lead} )?(?P<number>[0-9]{{1,2}})º?{tail})?"
        )
        self.beside = re.compile(rf",? (?:{lead} )?")
        self.not_meant = re.compile(rf"{alternation(tables.not_meant)}['’]?(?: {lead})? ?$")
        behind = alternation((*tables.not_meant_behind, *_of_a_month(tables)))
        self.not_meant_behind = re.compile(rf"(?:,? (?:{lead} )?[0-9]{{1,2}}º?)? ?{behind}")
        self.of = re.compile(rf" {alternation(tables.of)}['’]? ?")
        self.bare_hour = _bare_hour(vocabulary)
        self.negated = right_before(vocabulary.turns.negations)
        self.links = frozenset(word for phrase in tables.links for word in phrase.split(" "))

    def are_linked(self, text: str, day: _Day, clock: TimeMention) -> bool:
        """Whether a time is that of the day: nothing but linking words stands between the two."""
        gap = text[day.end : clock.start] if clock.start >= day.end else text[clock.end : day.start]
        if len(gap) > _REACH or re.search(r"[.;?!]", gap):
            return False
        return all(word in self.links for word in _WORD.findall(gap))

    def are_beside(self, text: str, weekday: re.Match[str], day: _Day) -> bool:
        """ "Monday the 9th of March" or "the 9th of March, Monday"; not "not tomorrow, Monday"."""
        if day.start >= weekday.end():
            return self.beside.fullmatch(text, weekday.end(), day.start) is not None
        if day.end > weekday.start() or text[day.end : weekday.start()] not in (", ", " "):
            return False
        return self.negated.search(text[max(0, day.start - _REACH) : day.start]) is None

    def is_meant(self, text: str, day: _Day, clocks: Sequence[TimeMention]) -> bool:
        """Rule 5. "Di venerdì" is each Friday, "alle 9 di venerdì" is one."""
        if self.not_meant_behind.match(text, day.end):
            return False
        if self.not_meant.search(text[max(0, day.start - _REACH) : day.start]) is None:
            return True
        return any(self.of.fullmatch(text, clock.end, day.start) for clock in clocks)


_patterns = cache(_Patterns)


def dates(text: str, vocabulary: Vocabulary, today: Today) -> Sequence[Mention]:
    """Days in normalised `text`, in its order, each with the time that belongs to it: ISO 8601, `YYYY-MM-DD`
    or `YYYY-MM-DDTHH:MM` in the user's zone. What is no single day is left out."""
    patterns = _patterns(vocabulary)
    days = _days(text, vocabulary, today)
    if not days:
        return []
    clocks = sorted(times(text, vocabulary), key=lambda clock: clock.start)
    found = [
        day
        for day in days
        if patterns.is_meant(text, day, clocks) and not in_range(text, day.start, vocabulary)
    ]
    clocks = [
        clock
        for clock in clocks
        if not any(clock.start < d.end and d.start < clock.end for d in found)
        and not patterns.not_meant.search(
            text[max(0, clock.start - _REACH) : clock.start]
        )  # "after 3pm tomorrow"
    ]
    return [
        _with_time(day, place, found, clocks, text, vocabulary, today.day) for place, day in enumerate(found)
    ]


def _with_time(
    day: _Day,
    place: int,
    days: Sequence[_Day],
    clocks: Sequence[TimeMention],
    text: str,
    vocabulary: Vocabulary,
    today: date,
) -> Mention:
    clock = next((clock for clock in clocks if _patterns(vocabulary).are_linked(text, day, clock)), None)
    start, end, minutes = day.start, day.end, None
    if clock is not None:
        start, end = min(start, clock.start), max(end, clock.end)
        # A later time may replace it ("at 10, no, at 11"), unless a day was named in between.
        until = days[place + 1].start if place + 1 < len(days) else len(text)
        corrected = _corrected(clock, clocks, text, until, vocabulary)
        around = (
            text[max(0, start - 4) : end + _REACH]
            if corrected is clock
            else text[corrected.start : corrected.end + _REACH]
        )
        part = part_of_day(re.split(r"[.;?!]", around)[0], vocabulary)
        end = max(end, corrected.end)
        minutes = corrected.of_day(part)

    def written(which: date | None, minutes: int | None) -> str | None:
        if which is None:
            return None
        if day.clock is not None:
            return datetime.combine(which, day.clock).isoformat(timespec="minutes")
        if minutes is None:
            return which.isoformat()
        moment = datetime.combine(_plus(which, minutes // 1440), time(minutes // 60 % 24, minutes % 60))
        return moment.isoformat(timespec="minutes")

    return Mention(
        "date",
        start,
        end,
        written(day.day, 1440 if minutes == 0 and day.day == today else minutes),
        looking_back=written(day.back, minutes),
        vague=day.vague and clock is None,
    )


def _bare_hour(vocabulary: Vocabulary) -> re.Pattern[str]:
    """ "At 10, no, make it 11"."""
    corrects = alternation((*vocabulary.turns.corrections, *vocabulary.turns.plain_no))
    return re.compile(
        rf"(?:[ ,.]{{1,2}}{corrects}){{1,3}}[ ,.]{{1,2}}(?P<hour>1?[0-9]|2[0-3])(?=$| ?[,.;?!])"
    )


def _corrected(
    clock: TimeMention, clocks: Sequence[TimeMention], text: str, until: int, vocabulary: Vocabulary
) -> TimeMention:
    """The time that stands after all corrections before `until`, in characters."""
    bare = _patterns(vocabulary).bare_hour.match(text, clock.end, until)
    for other in [_at(bare)] if bare else clocks:
        if (
            clock.end <= other.start
            and other.end <= until
            and follows_correction(text, clock.end, other.start, vocabulary)
        ):
            clock = other
    return clock


def _at(bare: re.Match[str]) -> TimeMention:
    hour = int(bare["hour"])
    return TimeMention(bare.start("hour"), bare.end(), hour * 60, open_half=hour <= _HALF_DAY)


def _days(text: str, vocabulary: Vocabulary, today: Today) -> Sequence[_Day]:
    """Every day that is named, in order; a weekday and the day of the month beside it are one."""
    patterns = _patterns(vocabulary)
    found_days = few(patterns.day.finditer(text))
    named = [day for found in found_days if (day := _read(found, vocabulary, today))]
    days: list[_Day] = []
    for found in few(patterns.weekday.finditer(text)):
        beside = next((day for day in named if patterns.are_beside(text, found, day)), None)
        if beside is None:
            days.extend(_read_weekday(found, vocabulary, today))
            named = [day for day in named if day.end <= found.start() or found.end() <= day.start]
            continue
        named.remove(beside)
        wanted = _index(found["weekday"], vocabulary.dates.weekdays)
        ahead, back = (day if day and day.weekday() == wanted else None for day in (beside.day, beside.back))
        if ahead or back:
            start, end = min(found.start(), beside.start), max(found.end(), beside.end)
            days.append(replace(beside, start=start, end=end, day=ahead, back=back, vague=False))
    return sorted((*days, *named), key=lambda day: day.start)


def _read(found: re.Match[str], vocabulary: Vocabulary, today: Today) -> _Day | None:
    start, end = found.span()
    if found["relative"]:
        day = _plus(today.day, vocabulary.dates.days[as_listed(found["relative"])])
        return _Day(start, end, day, day, vague=day == today.day)  # "today" is in every other complaint
    if found["ahead_n"] or found["from_now_n"] or found["ago_n"]:
        return _counted(found, vocabulary, today)
    if found["bare"]:
        ahead, back = (_on(int(found["bare"]), today.day, step) for step in (1, -1))
        return _Day(start, end, ahead, back, vague=True) if ahead and back else None
    ahead, back = (_named(found, vocabulary, today, back) for back in (False, True))
    if ahead is None or back is None:
        return None
    just_past = ahead != back and (today.day - back).days <= _JUST_PAST
    return _Day(start, end, None if just_past else ahead, back, vague=found["short"] is not None)


def _counted(found: re.Match[str], vocabulary: Vocabulary, today: Today) -> _Day | None:
    """So many units from now or ago; minutes and hours are moments, the others days."""
    back = found["ago_n"] is not None
    which = "ago" if back else "ahead" if found["ahead_n"] else "from_now"
    said, unit = found[f"{which}_n"], found[f"{which}_unit"]
    count = int(said) if said.isdigit() else 1
    seconds = {"minute": 60, "hour": 3600}.get(vocabulary.dates.units[unit])
    if seconds is None:
        phrase = (vocabulary.dates.ago if back else vocabulary.dates.ahead).format(n=count, unit=unit)
        day = read_day(phrase, language=vocabulary.code, today=today.day, order=today.order, back=back)
        return _Day(*found.span(), day, day) if day else None
    # Counted in UTC: an hour later is an hour later, also when the clocks change in between.
    moment = today.now.astimezone(UTC) + timedelta(seconds=-count * seconds if back else count * seconds)
    local = moment.astimezone(today.now.tzinfo)
    clock = local.time().replace(second=0, microsecond=0)
    return _Day(*found.span(), local.date(), local.date(), vague=True, clock=clock)


def _named(found: re.Match[str], vocabulary: Vocabulary, today: Today, back: bool) -> date | None:
    """A day that was named by its month, in words or figures."""
    phrase = found["short"]
    if found["iso"]:
        try:
            return date.fromisoformat(found["iso"])
        except ValueError:
            return None
    if found["numeric"]:
        first, second, year = re.split(r"[/.-]", found["numeric"])
        phrase = f"{first}/{second}/{_year(year, today.day, back)}"
    elif not phrase:
        number, month = found["day"] or found["day_after"], found["month"] or found["month_before"]
        years = ("year", "year_behind", "short_year", "bare_year", "bare_year_behind")
        year = next((found[each] for each in years if found[each]), None)
        phrase = f"{number} {month}" + (f" {_year(year.replace(' ', ''), today.day, back)}" if year else "")
    near = _plus(today.day, 1 if back else -1)  # so that today itself is the nearest day
    return read_day(phrase, language=vocabulary.code, today=near, order=today.order, back=back)


def _year(said: str, today: date, back: bool) -> int:
    """Two digits are the year closest to now, no later than this one for the past and ten years on else."""
    year = int(said)
    if len(said) == 4:
        return year
    century = today.year - today.year % 100
    return century + year - (100 if century + year > today.year + (0 if back else 10) else 0)


def _read_weekday(found: re.Match[str], vocabulary: Vocabulary, today: Today) -> Iterator[_Day]:
    start, end = found.span()
    wanted = _index(found["weekday"], vocabulary.dates.weekdays)
    if found["number"]:
        days = [_on(int(found["number"]), today.day, step) for step in (1, -1)]
        ahead, back = (day if day and day.weekday() == wanted else None for day in days)
        if ahead or back:
            yield _Day(start, end, ahead, back)
        return
    ahead = _plus(today.day, (wanted - today.day.weekday() - 1) % 7 + 1)
    back = _plus(today.day, -((today.day.weekday() - wanted - 1) % 7 + 1))
    if found["week_after"]:
        ahead = back = _plus(today.day, 7 - today.day.weekday() + wanted)
    elif found["last"] or found["last_behind"]:
        ahead = back
    elif found["next"] or found["next_behind"]:
        back = ahead
    yield _Day(start, end, ahead, back)


def _on(number: int, today: date, step: int) -> date | None:
    """The nearest day of that number, from today on (`step` 1) or up to today (-1)."""
    year, month = today.year, today.month
    for _ in range(12):
        if 1 <= number <= calendar.monthrange(year, month)[1]:
            day = date(year, month, number)
            if (day - today).days * step >= 0:
                return day
        month += step
        if not 1 <= month <= 12:
            year, month = year + step, (month - 1) % 12 + 1
        if not date.min.year <= year <= date.max.year:
            return None
    return None


def _plus(day: date, days: int) -> date:
    """Clamped to what a calendar holds."""
    return date.fromordinal(min(max(day.toordinal() + days, date.min.toordinal()), date.max.toordinal()))


def _index(name: str, names: Sequence[Sequence[str]]) -> int:
    return next(place for place, spellings in enumerate(names) if name in spellings)


@lru_cache(maxsize=4096)  # a day's conversations name the same few hundred days
def read_day(phrase: str, *, language: str, today: date, order: str, back: bool) -> date | None:
    """The day that `phrase` names ("3 aprile", "05/12", "in 2 weeks"), None when there is no such day.

    Without a year it is the nearest one from `today` on, or with `back` the nearest up to `today`.
    """
    # The one place where dateparser is imported, on the first date that is read: with its language tables
    # that takes about a tenth of a second, which a service should not pay at its start.
    from dateparser.date import DateDataParser  # noqa: PLC0415

    settings = {
        "RELATIVE_BASE": datetime.combine(today, time()),
        "PREFER_DATES_FROM": "past" if back else "future",
        "DATE_ORDER": order,
        "PARSERS": ["relative-time", "absolute-time"],
        "TIMEZONE": "UTC",
    }
    parser = DateDataParser(languages=[language], settings=settings)
    try:
        moment: datetime | None = parser.get_date_data(phrase).date_obj
    except (ValueError, OverflowError):  # a year or an amount beyond what a calendar holds
        return None
    return moment.date() if moment else None
