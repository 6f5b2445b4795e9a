"""The placeholders of a config: `{{path | filter | filter(argument)}}` in a text (V8).

1. A text that is exactly one placeholder keeps the type of its value; in a longer one the value becomes
   text: nothing for null, JSON for lists and objects.
2. What is not there is null. Null passes through every filter but `default`.
3. Rendering never fails. A value that a filter cannot take becomes null.

    default(X)   X where the value is null; X is a path, text in quotes, a number, true, false or null
    json         the value as JSON text
    int          a number, or text that is one, cut to a whole number; true is 1
    float        the same without the cut
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import orjson

from channels.http_tools.scope import Scope
from flow_engine.conditions.lexing import Mistake, Path, Reader, path_of
from flow_engine.values import GREATEST_INT, LEAST_INT, JsonValue

OPEN: Final = "{{"
CLOSE: Final = "}}"

_FILTERS: Final = "default(X), float, int, json"
_OPERANDS: Final = "a path, text in quotes, a number, true, false or null"
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?")
_CONSTANTS: Final[Mapping[str, JsonValue]] = MappingProxyType(
    {"null": None, "None": None, "true": True, "True": True, "false": False, "False": False}
)


class TemplateMistake(Mistake):
    """A template that is refused; the place is in characters from 1."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the config itself writes."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Default:
    """The filter `default(X)`."""

    fallback: Constant | Path

    def apply(self, value: JsonValue, scope: Scope) -> JsonValue:
        if value is not None:
            return value
        return self.fallback.value if isinstance(self.fallback, Constant) else scope.lookup(self.fallback)


@dataclass(frozen=True, slots=True)
class Cast:
    """One of the filters without an argument."""

    to: Literal["json", "int", "float"]

    def apply(self, value: JsonValue, scope: Scope) -> JsonValue:
        if value is None:
            return None
        if self.to == "json":
            return json_text(value)
        return whole_number(value) if self.to == "int" else real_number(value)


Filter: TypeAlias = Default | Cast


@dataclass(frozen=True, slots=True)
class Placeholder:
    path: Path
    filters: tuple[Filter, ...] = ()

    def __str__(self) -> str:
        """How the config's author would know it again: the path alone."""
        return OPEN + ".".join(self.path) + CLOSE

    def value(self, scope: Scope) -> JsonValue:
        value = scope.lookup(self.path)
        for each in self.filters:
            value = each.apply(value, scope)
        return value


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders. Neighbouring texts in `parts` are one."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """A text of JSON with placeholders `{{…}}`. Raises TemplateMistake."""
        parts: list[str | Placeholder] = []
        at = 0
        while (start := text.find(OPEN, at)) >= 0:
            if start > at:
                parts.append(text[at:start])
            placeholder, at = placeholder_at(text, start)
            parts.append(placeholder)
        if at < len(text):
            parts.append(text[at:])
        return cls(tuple(parts))

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def render(self, scope: Scope) -> JsonValue:
        """The value of the only placeholder as JSON holds it, else text. Never raises: an unknown name is
        null, in a text empty."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Placeholder):
            return self.parts[0].value(scope)
        return self.render_text(scope)

    def render_text(self, scope: Scope) -> str:
        return "".join(part if isinstance(part, str) else as_text(part.value(scope)) for part in self.parts)


def placeholder_at(text: str, start: int) -> tuple[Placeholder, int]:
    """The placeholder whose `{{` stands at `start`, and where the text goes on behind its `}}`, both in
    characters. Raises TemplateMistake."""
    reader = Reader(text, start + len(OPEN), TemplateMistake)
    placeholder = read_placeholder(reader)
    reader.close(CLOSE, f"{CLOSE!r}, or '|' and one of the filters {_FILTERS}")
    return placeholder, reader.end


def read_placeholder(reader: Reader) -> Placeholder:
    """Reads what stands between `{{` and `}}`. Raises TemplateMistake for an unknown filter."""
    path = _read_path(reader, "a path such as ctx.call_id")
    filters: list[Filter] = []
    while reader.at_sign("|"):
        reader.advance()
        filters.append(_read_filter(reader))
    return Placeholder(path, tuple(filters))


def read_constant(reader: Reader) -> Constant | None:
    """The JSON literal that stands next; None, with nothing taken, where there is none."""
    token = reader.current
    if token.kind == "word" and token.text in _CONSTANTS:
        return Constant(_CONSTANTS[reader.advance().text])
    if token.kind == "number":
        return Constant(reader.number_of(reader.advance()))
    if token.kind == "text":
        return Constant(reader.text_of(reader.advance()))
    return None


def as_text(value: JsonValue) -> str:
    """How a JSON value stands inside a longer text: null is empty, lists and objects are JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value) or ""


def json_text(value: JsonValue) -> str | None:
    """Compact JSON; None for what JSON cannot hold."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # For the rest: integers beyond 64 bits, unpaired surrogates, more levels than orjson takes.
        try:
            return json.dumps(value, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            return None


def whole_number(value: JsonValue) -> int | None:
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        value = int(Decimal(text))  # a float has 53 bits, and numbers of accounts and orders have more
    if isinstance(value, int):
        return int(value) if LEAST_INT <= value <= GREATEST_INT else None
    number = real_number(value)
    return int(number) if number is not None and LEAST_INT < number < GREATEST_INT else None


def real_number(value: JsonValue) -> float | None:
    if isinstance(value, str):
        value = value.strip()
        if not _NUMBER.fullmatch(value):
            return None
    if not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read_path(reader: Reader, accepted: str) -> Path:
    if reader.current.kind != "path" or reader.current.text.startswith("$"):
        raise reader.unexpected(accepted)
    return path_of(reader.advance())


def _read_filter(reader: Reader) -> Filter:
    name = reader.current
    match name.text:
        case "json" | "int" | "float":
            reader.advance()
            return Cast(name.text)
        case "default":
            reader.advance()
            reader.expect("(", "'(' and the default")
            fallback = read_constant(reader) or _read_path(reader, _OPERANDS)
            reader.expect(")", "')'")
            return Default(fallback)
        case _:
            raise reader.unexpected(f"one of the filters {_FILTERS}")
