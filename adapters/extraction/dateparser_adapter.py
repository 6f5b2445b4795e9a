"""The one place where dateparser is imported: on the first date that is read, since the import and its
language tables take about a tenth of a second that a service should not pay at its start."""

from __future__ import annotations

from datetime import date, datetime, time


def read_day(phrase: str, *, language: str, today: date, order: str, back: bool) -> date | None:
    """The day that `phrase` names ("3 aprile", "05/12", "in 2 weeks"), None when there is no such day.

    Without a year it is the nearest one from `today` on, or with `back` the nearest up to `today`.
    """
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
