"""The rules of values: what a variable may hold, in one canonical form each (F5).

    string   text as it was given, at most 64 KiB
    number   int or float; -2^63 … 2^64-1; a whole float becomes the int of the same value
    boolean  true or false
    enum     the member of `enumValues` that was meant, spelled as the designer spelled it
    date     `YYYY-MM-DD`, or `YYYY-MM-DDTHH:MM:SS[.ffffff]Z` when a time was given
    phone    `{"country": "IT", "type": "mobile" | "land", "number": "+39…"}`
    email    `local@domain`: the domain in lower case and ASCII (IDNA), the local part as it was given
    custom   any JSON, at most 64 levels deep

1. Nothing, an empty and a blank string are no value. `false` and `0` are values.
2. A value is kept exactly or refused. JSON readers turn an integer beyond 64 bits into the nearest
   float without a word, so a float out there may already be a damaged integer: both are refused,
   inside custom values too, as are an `InexactNumber`, NaN, the infinities and text that UTF-8 cannot carry.
3. Tools and models often send text where a number or a boolean is meant: a string that holds exactly a
   JSON number, or `true` or `false` in any case, is taken as one.
4. Being canonical is stable: a canonical value is its own canonical form.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Literal, TypeAlias, cast

import orjson
import phonenumbers

from flow_engine.exact_numbers import LONGEST_NUMBER, InexactNumber, read_decimal
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VARIABLE_TYPES, VariableType

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None

MAX_TEXT_BYTES = 64 * 1024
MAX_DEPTH = 64
LEAST_INT = -(2**63)
GREATEST_INT = 2**64 - 1

_LISTED = 20
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
# The standard library takes any character between date and time; ISO 8601 has T, RFC 3339 a space too.
_DATE_AND_TIME = re.compile(r"[0-9W-]{7,10}[T ][0-9:]{2,8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9:]{2,8})?")
_LOCAL_PART = re.compile(
    r"(?=.{1,64}\Z)[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
)
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?:xn--[a-z0-9-]{1,59}|[a-z]{2,63})")
_PHONE_KEYS = frozenset({"country", "type", "number"})
_NUMBER_TYPE = phonenumbers.PhoneNumberType
_MOBILE_TYPES = frozenset({_NUMBER_TYPE.MOBILE, _NUMBER_TYPE.PAGER, _NUMBER_TYPE.PERSONAL_NUMBER})

_NUMBER_ACCEPTED = "a JSON number, or a string that holds exactly one such as '12.5'"
_DATE_ACCEPTED = "an ISO 8601 date such as '2025-03-31', or date and time such as '2025-03-31T09:30:00+02:00'"
_EMAIL_ACCEPTED = "one e-mail address such as 'anna.rossi@example.com'"
_PHONE_ACCEPTED = "a valid phone number such as '+39 347 123 4567', or {country, type, number}"


@dataclass(frozen=True, slots=True)
class ValueKind:
    """`asked_as` is the JSON type that a model is asked to answer with; `handed_over` what a tool gets;
    `hidden_as` the values that stand for sensitive ones in recordings, by their number from 0, None where the
    mask may."""

    asked_as: Literal["string", "number", "boolean"]
    handed_over: str
    hidden_as: Callable[[int], JsonValue] | None = None


VALUE_KINDS: Mapping[VariableType, ValueKind] = {
    "string": ValueKind("string", "text"),
    "number": ValueKind("number", "a number", lambda number: number),
    "boolean": ValueKind("boolean", "true or false", lambda number: number % 2 == 0),
    "enum": ValueKind("string", "text"),
    "date": ValueKind("string", "text", lambda number: f"{date(2000, 1, 1) + timedelta(days=number)}"),
    "phone": ValueKind(
        "string",
        "an object with the number",
        # one of those that belong to nobody
        lambda number: {"country": "US", "type": "mobile", "number": f"+1201555{123 + number % 77:04}"},
    ),
    "email": ValueKind("string", "text", lambda number: f"hidden{number or ''}@example.com"),
    "custom": ValueKind("string", "whatever a tool has stored"),
}
"""What readers outside of this file need of a type. A type without its row fails at the import."""
if missing := set(VARIABLE_TYPES) - VALUE_KINDS.keys():
    raise LookupError(f"variable types without a row in VALUE_KINDS: {sorted(missing)}")


class ValueRejected(Exception):
    """The value breaks its type's rule. `message` says what would be accepted, never what was sent. One line
    of text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def what_is_told(value: JsonValue) -> object:
    """The same, and hashable, for canonical values that tell the same: texts by their words, since nobody
    says capitals."""
    if isinstance(value, str):
        return (*value.casefold().split(),)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if isinstance(value, dict | list) else value


def agree(one: JsonValue, other: JsonValue) -> bool:
    """Whether two canonical values tell the same."""
    return what_is_told(one) == what_is_told(other)


def canonical(
    spec: VariableSpec,
    value: JsonValue,
    *,
    default_region: str | None = None,
    timezone: tzinfo | None = None,
) -> JsonValue:
    """The canonical form of `value`, None for no value. Raises ValueRejected.

    `default_region` (ISO 3166 alpha-2) is where a phone number without a country code belongs;
    `timezone` is where a time without an offset is meant, UTC when None (the first of the two moments
    when the clock there was set back).
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    kept: JsonValue
    match spec.type:
        case "string":
            kept = canonical_text(value)
        case "number":
            kept = canonical_number(value)
        case "boolean":
            kept = canonical_boolean(value)
        case "email":
            kept = canonical_email(value)
        case "enum":
            kept = canonical_member(value, spec.enum_values)
        case "date":
            kept = canonical_date(value, timezone or UTC)
        case "phone":
            kept = canonical_phone(value, default_region)
        case "custom":
            check_json(value)
            kept = value
    return kept


def listed(items: Iterable[object], most: int = _LISTED) -> str:
    """The alternatives of a message: `'a', 'b'`, cut after `most` with the count of the rest. One line."""
    every = [*items]
    rest = len(every) - most
    return ", ".join(map(repr, every[:most])) + (f" and {rest} more" if rest > 0 else "") if every else "none"


def whole_number_in(text: str) -> int | None:
    """The number that a header, a path or a query holds: 1 to 15 decimal digits of ASCII. None for anything
    else: Python refuses to read thousands of digits."""
    return int(text) if len(text) <= 15 and text.isascii() and text.isdigit() else None


def utc_text(moment: datetime) -> str:
    """An aware moment as `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`, the fraction only when there is one. Raises
    OverflowError for a moment whose year in UTC is before 1 or after 9999."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return orjson.dumps(in_utc, option=orjson.OPT_UTC_Z)[1:-1].decode()  # a third of isoformat's time


def check_text(text: str) -> None:
    """Raises ValueRejected for text that UTF-8 cannot carry or that takes more than 64 KiB of it."""
    size = len(text) if text.isascii() else _encoded_size(text)
    if size > MAX_TEXT_BYTES:
        raise ValueRejected("text_too_long", f"accepted is text of at most {MAX_TEXT_BYTES} bytes of UTF-8")


def check_json(value: JsonValue) -> None:
    """Raises ValueRejected unless every part of `value` survives being stored and read again. JSON of at most
    64 levels."""
    if isinstance(value, dict) and _is_plain(value):
        return
    open_values: list[tuple[JsonValue, int]] = [(value, 0)]
    while open_values:  # a stack, not recursion: depth is the sender's choice
        part, depth = open_values.pop()
        if isinstance(part, str):
            _encoded_size(part)
        elif isinstance(part, list | dict):
            if depth == MAX_DEPTH:
                raise ValueRejected("json_too_deep", f"accepted is JSON of at most {MAX_DEPTH} levels")
            if isinstance(part, dict):
                for key in cast("dict[object, JsonValue]", part):
                    if not isinstance(key, str):
                        raise ValueRejected("json_expected", "accepted are objects whose keys are text")
                    _encoded_size(key)
                part = list(part.values())
            # Most parts are plain texts, with which nothing can be wrong.
            open_values += [
                (item, depth + 1) for item in part if not (isinstance(item, str) and item.isascii())
            ]
        elif isinstance(part, int | float):
            _check_number(part)
        elif part is not None:
            raise ValueRejected("json_expected", "accepted are null, booleans, numbers, text, lists, objects")


def _is_plain(members: Mapping[str, JsonValue]) -> bool:
    """Whether all are ASCII texts, with which nothing can be wrong: what callers send most."""
    texts: Any = (*members, *members.values())
    try:
        return "".join(texts).isascii()
    except TypeError:
        return False


def _encoded_size(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ValueRejected("text_invalid", "accepted is text without unpaired surrogates") from None


def _check_number(number: int | float) -> None:
    if isinstance(number, int):
        within = LEAST_INT <= number <= GREATEST_INT
    elif not math.isfinite(number):
        raise ValueRejected("number_not_finite", "accepted are finite numbers")
    elif isinstance(number, InexactNumber):
        raise ValueRejected("number_inexact", "accepted are decimals of at most 15 significant digits")
    else:
        within = LEAST_INT < number < GREATEST_INT  # an int at either end would not have become a float
    if not within:
        raise _too_large()


def _too_large() -> ValueRejected:
    return ValueRejected(
        "number_too_large",
        f"accepted are numbers from {LEAST_INT} to {GREATEST_INT}; "
        "one beyond can be kept as the text of a string or custom variable",
    )


def canonical_text(value: JsonValue) -> str:
    """The text as it was sent. Raises ValueRejected for what is none, or takes more than 64 KiB of UTF-8."""
    if not isinstance(value, str):
        raise ValueRejected("string_expected", "accepted is text")
    check_text(value)
    return value


def canonical_boolean(value: JsonValue) -> bool:
    """A boolean, or the one that a text spells in any case. Raises ValueRejected for anything else."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in ("true", "false"):
        raise ValueRejected("boolean_expected", "accepted are true and false")
    return word == "true"


def canonical_number(value: JsonValue) -> int | float:
    """A number of at most 64 bits, or the one that a text spells; a whole float becomes an int.

    Raises ValueRejected for anything else, also where a float would differ from the text.
    """
    number = value
    if isinstance(value, str):
        text = value.strip()
        spelled = _JSON_NUMBER.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
        if spelled is None:
            raise ValueRejected("number_expected", f"accepted is {_NUMBER_ACCEPTED}")
        number = int(text) if spelled.groups() == (None, None) else read_decimal(text)
        if isinstance(number, float) and math.isinf(number):
            raise _too_large()
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueRejected("number_expected", f"accepted is {_NUMBER_ACCEPTED}")
    _check_number(number)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def canonical_member(value: JsonValue, members: tuple[str | int | float, ...]) -> str | int | float:
    """Text means the same text, else the number that it spells; a number means its equal (1 is 1.0).

    Raises ValueRejected, listing the members, for a value that is none of them. A text of digits counts up to
    400 characters.
    """
    if isinstance(value, str | int | float) and not isinstance(value, bool | InexactNumber):
        for member in members:
            if member == value:
                return member
    if isinstance(value, str) and len(value) <= LONGEST_NUMBER and _JSON_NUMBER.fullmatch(value.strip()):
        for member in members:
            if not isinstance(member, str) and Decimal(repr(member)) == Decimal(value.strip()):
                return member
    raise ValueRejected("enum_value_unknown", f"accepted is one of {listed(members)}")


def canonical_date(value: JsonValue, timezone: tzinfo) -> str:
    """An ISO 8601 date, or date and time in UTC; `timezone` is meant where no offset is written. Raises
    ValueRejected for any other text."""
    text = value.strip().upper() if isinstance(value, str) else ""
    try:
        if not _DATE_AND_TIME.fullmatch(text):
            return date.fromisoformat(text).isoformat()
        moment = datetime.fromisoformat(text)
        return utc_text(moment if moment.tzinfo else moment.replace(tzinfo=timezone))
    except (ValueError, OverflowError):  # overflow: the moment's year in UTC is before 1 or after 9999
        raise ValueRejected("date_invalid", f"accepted is {_DATE_ACCEPTED}") from None


def canonical_phone(value: JsonValue, default_region: str | None) -> JsonValue:
    """A country or type that came with the number is checked against the numbering plan.

    The country may be any that shares the calling code, since few callers tell the Vatican from Italy;
    the plan's own answer is stored, the number in E.164. The plans of some countries cannot tell land from
    mobile: there the type that was sent stands, and mobile without one. Service numbers count as land.
    Raises ValueRejected.
    """
    fields = value if isinstance(value, dict) else {"number": value}
    number, country, kind = fields.get("number"), fields.get("country") or None, fields.get("type") or None
    if not isinstance(number, str) or not isinstance(country, str | None) or not fields.keys() <= _PHONE_KEYS:
        raise ValueRejected("phone_invalid", f"accepted is {_PHONE_ACCEPTED}")
    country = country.strip().upper() if country else None
    parsed = _parse_phone(number, country or default_region)
    if country and phonenumbers.country_code_for_region(country) != parsed.country_code:
        raise ValueRejected("phone_country_wrong", f"accepted is a country with +{parsed.country_code}")
    region = phonenumbers.region_code_for_number(parsed)
    if region is None or len(region) != 2:
        raise ValueRejected("phone_without_country", "accepted is a phone number that belongs to a country")
    line = phonenumbers.number_type(parsed)
    if line == _NUMBER_TYPE.FIXED_LINE_OR_MOBILE:
        accepted = ("mobile", "land")
    else:
        accepted = ("mobile" if line in _MOBILE_TYPES else "land",)
    if kind is not None and kind not in accepted:
        raise ValueRejected("phone_type_wrong", f"accepted as the type of this number is {listed(accepted)}")
    e164 = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
    return {"country": region, "type": kind or accepted[0], "number": e164}


def canonical_email(value: JsonValue) -> str:
    """One address without a name beside it, its domain in ASCII. Raises ValueRejected, for quoted local parts
    and addresses of machines too: people do not have them, and recognisers produce them. At most 254
    characters."""
    text = value.strip() if isinstance(value, str) else ""
    local, _, domain = text.removeprefix("mailto:").rpartition("@")
    try:
        # Nothing beyond it can be one, and telling so by its letters takes seconds.
        domain = domain.lower().encode("idna").decode("ascii") if len(domain) < 254 else ""
    except UnicodeError:
        domain = ""
    if not (_LOCAL_PART.fullmatch(local) and _DOMAIN.fullmatch(domain) and len(local) + len(domain) < 254):
        raise ValueRejected("email_invalid", f"accepted is {_EMAIL_ACCEPTED}")
    return f"{local}@{domain}"


def _parse_phone(text: str, region: str | None) -> phonenumbers.PhoneNumber:
    """A valid number that E.164 carries whole. Letters would be dialled as digits or skipped, and an
    extension would be lost: both are refused."""
    digits = text.strip().removeprefix("tel:")
    if not any(character.isalpha() for character in digits):
        try:
            dialled = phonenumbers.parse(digits, region.upper() if region else None)
            # Read back from E.164, so that what is stored and what was understood cannot differ.
            e164 = phonenumbers.format_number(dialled, phonenumbers.PhoneNumberFormat.E164)
            parsed = phonenumbers.parse(e164, None)
        except phonenumbers.NumberParseException:
            pass
        else:
            if not dialled.extension and phonenumbers.is_valid_number(parsed):
                return parsed
    hint = "" if region else "; the country code is needed here, as no default region is set"
    raise ValueRejected("phone_invalid", f"accepted is {_PHONE_ACCEPTED}, without letters or extension{hint}")
