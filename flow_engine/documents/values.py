"""The scalar types and the rules of presence that the document models are built from.

A document is judged as JSON Schema judges it: no coercion, a boolean is no number, an explicit `null`
is not the same as a missing property, and patterns end at the end of the text, not before a last line
break.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin
from urllib.parse import urlsplit

import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError

from flow_engine.documents.findings import json_type, quoted
from flow_engine.vocabulary import SensitiveKind

T = TypeVar("T")


# Attributes whose name is not simply the property's in snake case.
_OWN_NAMES = {"id": "_id", "routing_given": "routingParameters"}


@cache
def property_name(attribute: str) -> str:
    """The JSON property that an attribute of a document model stands for."""
    return _OWN_NAMES.get(attribute) or to_camel(attribute)


class Document(pydantic.BaseModel):
    """Base of all document models: frozen, camelCase outside, unknown properties kept in `model_extra`.

    `model_fields_set` names exactly the attributes that the document really holds, and
    `model_dump(by_alias=True, exclude_unset=True)` gives the document back.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="allow", alias_generator=property_name)

    ALSO_READ: ClassVar[tuple[str, ...]] = ()
    """Properties that are read though the schema leaves them unread."""
    OPEN: ClassVar[bool] = False
    """Whether any property may stand here."""

    @classmethod
    @cache
    def accepted_properties(cls) -> tuple[str, ...]:
        """The properties that mean something in such an object; none where any property may stand."""
        return () if cls.OPEN else (*map(property_name, cls.model_fields), *cls.ALSO_READ)

    @classmethod
    @cache
    def attributes_with(cls, *kinds: type) -> tuple[str, ...]:
        """The attributes in whose values objects of these types may stand; empty where there are none."""
        annotations = ((name, field.annotation) for name, field in cls.model_fields.items())
        return tuple(
            name for name, a in annotations if any(t is object or issubclass(t, kinds) for t in _types_in(a))
        )


def _types_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    elif get_origin(annotation) is not Literal:
        parts = get_args(annotation)
        for part in parts[:1] if get_origin(annotation) is Annotated else parts:
            yield from _types_in(part)


def wrong_type(expected: str, value: object) -> PydanticCustomError:
    return PydanticCustomError(
        "wrong_type", "must be {expected}, not {given}", {"expected": expected, "given": json_type(value)}
    )


# --- presence ---------------------------------------------------------------------------------


class _NotNull:
    """Validates a nullable attribute as its inner type: `None` means missing, `null` is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", cast("dict[str, object]", handler(source))["schema"])


Maybe = Annotated[T | None, _NotNull()]
"""A property that may be missing, but not `null`."""


@dataclass(frozen=True, slots=True)
class _Absent:
    """Stands for a missing property until the rule of presence has been asked."""

    neutral: object


def absent(neutral: object = None) -> Any:
    """Default of a property with `RequiredIf`: what the attribute holds where the property is missing
    and may be. It does not count as set."""
    return pydantic.Field(default_factory=partial(_Absent, neutral), validate_default=True)


class When:
    """A condition on a property declared earlier in the same object: it is there, sound, and one of these."""

    def __init__(self, attribute: str, *values: str | bool) -> None:
        self.attribute = attribute
        self.values = values

    def holds(self, data: Mapping[str, object]) -> bool:
        return data.get(self.attribute) in self.values


@dataclass(frozen=True, slots=True)
class RequiredIf:
    """The property must be there when the condition holds.

    A rule at the field, not at the model: pydantic runs model rules only when all fields are sound, and
    a rejection lists every error at once. Needs `absent(...)` as the default.
    """

    when: When
    reason: str

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return pydantic.WrapValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def _check(
        self, value: object, handler: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo
    ) -> object:
        if not isinstance(value, _Absent):
            return handler(value)
        if self.when.holds(info.data):
            # The error of a missing value carries the attribute's name, so the property's is told here.
            name = property_name(info.field_name or "")
            raise PydanticCustomError(
                "required_here", "is required {reason}", {"property": name, "reason": self.reason}
            )
        return value.neutral


@dataclass(frozen=True, slots=True)
class ShapedBy:
    """Tells the JSON Schema which of a property's shapes another property chooses: the conditions stand in
    the order of the shapes. `always` is the JSON type whatever was chosen, None for any."""

    conditions: tuple[When, ...]
    always: str | None


# --- lists of objects -------------------------------------------------------------------------


@dataclass(slots=True)
class ErrorBudget:
    """How many more errors a validation reports. Given as its context; without one, all of them."""

    left: int


def _within_budget(
    value: object, handler: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo
) -> object:
    budget = info.context
    if not isinstance(budget, ErrorBudget):
        return handler(value)
    if budget.left <= 0:
        return value  # the document is refused already, the rest of it need not be read
    before = budget.left
    try:
        return handler(value)
    except pydantic.ValidationError as error:
        # Counted from before, since what is inside has taken its share of the budget as well.
        budget.left = before - error.error_count()
        raise


Items = tuple[Annotated[T, pydantic.WrapValidator(_within_budget)], ...]
"""An array of objects. Three bytes of an empty object break up to eight rules: a hostile document of a
megabyte would otherwise take many seconds to be told two million errors."""


Entries = dict[pydantic.StrictStr, Annotated[T, pydantic.WrapValidator(_within_budget)]]
"""An object whose keys are the document's own, with an object or a text for each."""


def listed_within_budget(accepts: Callable[[object], bool]) -> pydantic.BeforeValidator:
    """For an array of scalars, of which `accepts` tells the sound ones: the array up to where its errors use
    up the budget. One call for all items, since sound arrays hold tens of thousands."""

    def cut(value: object, info: pydantic.ValidationInfo) -> object:
        budget = info.context
        if not isinstance(budget, ErrorBudget) or not isinstance(value, list):
            return value
        items = cast("list[object]", value)
        if len(items) <= budget.left:
            return items
        wrong = (number for number, item in enumerate(items) if not accepts(item))
        return items[: next(islice(wrong, max(budget.left, 0), None), len(items))]

    return pydantic.BeforeValidator(cut)


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
