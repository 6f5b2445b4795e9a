"""A config file as JSON: what is asked of it before its content is looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue, ValueRejected, check_json

MAX_CONFIG_BYTES = 1_000_000


class Unreadable(Exception):
    """The text cannot be read as one JSON object. `problems` says where and why."""

    def __init__(self, problems: list[Finding]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


def read_json(text: bytes) -> dict[str, JsonValue]:
    """The object that a config is. Raises Unreadable.

    A property that is given twice is refused: JSON readers keep one of them without a word, and which one
    differs. A byte order mark is skipped, as Windows editors write it.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise _unreadable("too_large", f"has more than {MAX_CONFIG_BYTES} bytes")
    reader = _Reader()
    try:
        value = reader.read(text.decode("utf-8-sig"))
        check_json(value)
    except UnicodeDecodeError as error:
        raise _unreadable("json_invalid", f"is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _unreadable("json_invalid", f"is not JSON at {where}: {error.msg}") from error
    except ValueRejected as rejected:
        raise _unreadable(rejected.code, rejected.message) from rejected
    except RecursionError as error:
        raise _unreadable("too_deep", "is nested too deeply") from error
    except ValueError as error:
        raise _unreadable("json_invalid", f"is not JSON: {error}") from error
    if twice := list(reader.repeated(value)):
        raise Unreadable(twice)
    if not isinstance(value, dict):
        raise _unreadable("wrong_type", "must be a JSON object")
    return value


class _Reader:
    """The standard reader, which remembers the properties that an object gave more than once."""

    def __init__(self) -> None:
        self._repeated: dict[int, list[str]] = {}

    def read(self, text: str) -> JsonValue:
        return json.loads(text, object_pairs_hook=self._object, parse_constant=_no_json)

    def repeated(self, value: JsonValue, *place: str | int) -> Iterator[Finding]:
        if isinstance(value, dict):
            for name in self._repeated.get(id(value), ()):
                yield Finding(pointer(*place, name), "repeated_property", "is given more than once")
            for name, inner in value.items():
                yield from self.repeated(inner, *place, name)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from self.repeated(inner, *place, index)

    def _object(self, pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self._repeated[id(made)] = [name for name, count in counts.items() if count > 1]
        return made


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _unreadable(code: str, message: str) -> Unreadable:
    return Unreadable([Finding("", code, message)])
