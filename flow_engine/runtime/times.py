"""Moments and ages as a prompt tells them, and until when it tells them so."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

_LONGEST_NAME = 64
"""Of a zone, in characters: the longest has 38, and what is longer is not worth keeping."""


def tenant_zone(tenant: Mapping[str, object]) -> tzinfo:
    """`tenant.timezone` when it names a zone, in whatever case, else UTC."""
    name = tenant.get("timezone")
    return _zone(name) if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME else UTC


@lru_cache(maxsize=1_024)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # `Europe` is a directory of the database
        known = _names_by_lower_case().get(name.lower())
        return UTC if known is None else ZoneInfo(known)


@cache
def _names_by_lower_case() -> Mapping[str, str]:
    return {name.lower(): name for name in available_timezones()}


def minute_of(moment: datetime) -> int:
    """Minutes since 1970."""
    return int(moment.timestamp()) // 60


@lru_cache(maxsize=64)
def now_line(template: str, weekdays: str, minute: int, zone: tzinfo) -> str:
    """The same for all conversations of a zone until the minute is over: offsets are of whole minutes."""
    now = datetime.fromtimestamp(60 * minute, zone)
    return template.format(
        weekday=weekdays.split(",")[now.weekday()].strip(),
        date=now.date().isoformat(),
        time=f"{now.hour:02}:{now.minute:02}",
        timezone=str(now.tzinfo),
    )


@lru_cache(maxsize=64)
def end_of(minute: int) -> datetime:
    """In UTC; minutes since 1970."""
    return datetime.fromtimestamp(60 * (minute + 1), UTC)


@lru_cache(maxsize=256)
def updated_line(template: str, second: int, zone: tzinfo, ago: str, number: int) -> str:
    """When something was last written, in seconds since 1970, and how long ago. The same for all that was
    written in that second."""
    when = str(datetime.fromtimestamp(second, zone))[:19]
    return template.format(when=when, ago=ago.format(n=number))


_SECOND = timedelta(seconds=1)
_AGE_UNITS = (
    ("days", timedelta(days=1)),
    ("hours", timedelta(hours=1)),
    ("minutes", timedelta(minutes=1)),
    ("seconds", _SECOND),
)


def age_of(since: datetime, now: datetime) -> tuple[str, int, datetime]:
    """How the age of something is told: the unit and how many of it, and until when."""
    age = now - since
    for unit, length in _AGE_UNITS:
        if age >= length:
            number = age // length
            return unit, number, since + (number + 1) * length
    return "seconds", 0, since + _SECOND


def told_age(sections: Mapping[str, str], since: datetime, now: datetime) -> str:
    """The age of something, from its section `ago_…`. Raises KeyError where the sections lack it."""
    unit, number, _ = age_of(since, now)
    return sections[f"ago_{unit}"].format(n=number)
