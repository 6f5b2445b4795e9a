"""The scalar types that the document models are built from.

As JSON Schema has it: no coercion, a boolean is no number, and patterns end with the text, not before a
last line break.
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, cast, get_args
from urllib.parse import urlsplit

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError

from flow_engine.documents.base import listed_within_budget
from flow_engine.documents.findings import json_type, quoted
from flow_engine.vocabulary import SensitiveKind


def wrong_type(expected: str, value: object) -> PydanticCustomError:
    return PydanticCustomError(
        "wrong_type", "must be {expected}, not {given}", {"expected": expected, "given": json_type(value)}
    )


# --- numbers ----------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _number(value: object) -> int | float:
    if not _is_number(value):
        raise wrong_type("a number", value)
    return cast("int | float", value)


def _string_or_number(value: object) -> str | int | float:
    if not isinstance(value, str) and not _is_number(value):
        raise wrong_type("a string or a number", value)
    return cast("str | int | float", value)


LONGEST_DAYS = 3650
LONGEST_S = LONGEST_DAYS * 24 * 60 * 60
"""Seconds of ten years: what is longer was not meant."""


def _lasting(unit: str, most: int) -> pydantic.PlainValidator:
    """A number of at least one of that unit."""

    def check(value: object) -> int | float:
        length = _number(value)
        if not 1 <= length <= most:
            context = {"most": most, "unit": unit, "given": quoted(value)}
            raise PydanticCustomError("not_allowed", "must be from 1 to {most} {unit}, not {given}", context)
        return length

    published = Annotated[float, pydantic.Field(ge=1, le=most)]
    return pydantic.PlainValidator(check, json_schema_input_type=published)


def _sensitive(value: object) -> bool | SensitiveKind:
    if isinstance(value, bool) or value in get_args(SensitiveKind):
        return cast("bool | SensitiveKind", value)
    accepted = ", ".join(map(repr, get_args(SensitiveKind)))
    context = {"accepted": accepted, "given": quoted(value)}
    raise PydanticCustomError("not_allowed", "must be true, false, {accepted}, not {given}", context)


Number = Annotated[int | float, pydantic.PlainValidator(_number, json_schema_input_type=float)]
# The original schema allows strings only, its own description of the enum type numbers as well (F3).
EnumValue = Annotated[
    str | int | float, pydantic.PlainValidator(_string_or_number, json_schema_input_type=str | float)
]
Days = Annotated[int | float, _lasting("days", LONGEST_DAYS)]
Seconds = Annotated[int | float, _lasting("seconds", LONGEST_S)]
Sensitive = Annotated[
    bool | SensitiveKind,
    pydantic.PlainValidator(_sensitive, json_schema_input_type=bool | SensitiveKind),
]
Flag = pydantic.StrictBool
Text = pydantic.StrictStr
Texts = Annotated[tuple[Text, ...], listed_within_budget(lambda item: isinstance(item, str))]
EnumValues = Annotated[
    tuple[EnumValue, ...], listed_within_budget(lambda item: isinstance(item, str) or _is_number(item))
]


# --- texts with a form ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Published:
    """What the JSON Schema says of a type whose rule is code."""

    keyword: str
    value: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), self.keyword: self.value}


@dataclass(frozen=True, slots=True)
class _Matching:
    """The whole text matches the pattern."""

    pattern: str
    code: str
    meaning: str

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        compiled = re.compile(self.pattern)

        def check(value: str) -> str:
            if compiled.fullmatch(value) is None:
                context = {"meaning": self.meaning, "given": quoted(value)}
                raise PydanticCustomError(self.code, "must be {meaning}, not {given}", context)  # pyright: ignore[reportArgumentType]
            return value

        return pydantic.AfterValidator(check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}


SchemaVersion = Annotated[
    Text,
    _Matching(
        r"[0-9]+\.[0-9]+\.[0-9]+", "invalid_schema_version", "three numbers joined by dots, such as '1.0.0'"
    ),
]
ApiVersion = Annotated[Text, _Matching(r"v[0-9]+", "invalid_api_version", "'v' and a number, such as 'v1'")]

# The original patterns anchor only their first and their last alternative, so that any text with a
# provider's name somewhere inside passed, `xdeepgram; rm` for one. Here the whole text is matched (F3).
_TEMPLATE = r"\{\{ [^\n\r\u2028\u2029]+ \}\}"
SttProvider = Annotated[
    Text,
    _Matching(
        rf"google|deepgram|openai|{_TEMPLATE}",
        "invalid_provider",
        "one of 'google', 'deepgram', 'openai' or a template '{{ … }}'",
    ),
]
TtsProvider = Annotated[
    Text,
    _Matching(
        rf"google|elevenlabs|openai|{_TEMPLATE}",
        "invalid_provider",
        "one of 'google', 'elevenlabs', 'openai' or a template '{{ … }}'",
    ),
]

# For the JSON Schema: as near to `_is_http_url` as a pattern comes, which cannot read an IPv6 address.
_URL_PATTERN = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://"
    r"(?:[^\s\x00-\x1f\x7f\\<>\x22/?#]*@)?"
    r"(?:\[[0-9A-Za-z:.%_~-]+\]|[^\s\x00-\x1f\x7f\\<>\x22/?#@:\[\]]+)"
    r"(?::0*(?:[0-9]{0,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
    r"(?:[/?#][^\s\x00-\x1f\x7f\\<>\x22]*)?$"
)
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f\\<>\"]")


def _url(value: str) -> str:
    if not _is_http_url(value):
        raise PydanticCustomError(
            "invalid_url",
            "must be an http:// or https:// URL with a host, not {given}",
            {"given": quoted(value)},
        )
    return value


def _is_http_url(value: str) -> bool:
    if _NOT_IN_URLS.search(value):
        return False
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - raises when the port is not a number up to 65535
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


# The original pattern asks for a dot and a short last label, which refuses ports, `localhost`, names of
# an internal network and IPv6. Which addresses may be called is the outbound policy's decision (F3, F45).
Url = Annotated[Text, pydantic.AfterValidator(_url), _Published("pattern", _URL_PATTERN)]

_DATE_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}):(\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def parse_date_time(text: str) -> datetime:
    """An RFC 3339 date-time as an aware datetime with the offset that was written.

    A leap second, which a datetime cannot hold, is read as the second after it. Raises ValueError.
    """
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 date-time")
    date, minute, second, fraction, offset = match.groups(default="")
    offset = offset.upper().replace("Z", "+00:00")
    if offset[1:3] > "23" or offset[4:] > "59":
        raise ValueError("an offset is at most 23:59")
    if second != "60":
        return datetime.fromisoformat(f"{date}T{minute}:{second}{fraction[:7]}{offset}")
    last_second = datetime.fromisoformat(f"{date}T{minute}:59{offset}")
    try:
        in_utc = last_second.astimezone(UTC)
        next_second = last_second + timedelta(seconds=1)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999") from None
    if (in_utc.hour, in_utc.minute) != (23, 59):
        raise ValueError("a leap second ends a day in UTC")
    return next_second


def _date_time(value: str) -> str:
    try:
        parse_date_time(value)
    except ValueError:
        raise PydanticCustomError(
            "invalid_date_time",
            "must be an RFC 3339 date and time with an offset, such as '2026-01-31T09:30:00Z', not {given}",
            {"given": quoted(value)},
        ) from None
    return value


DateTime = Annotated[Text, pydantic.AfterValidator(_date_time), _Published("format", "date-time")]
