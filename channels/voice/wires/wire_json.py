"""Reading JSON frames that somebody else wrote: every field is checked where it is taken.

What is wrong is said by `Malformed` with the names of fields only; the content may be a caller's words.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import orjson

Object: TypeAlias = dict[str, object]


class Malformed(Exception):
    """The frame is none of the wire's; the message names what is wrong without its content."""


def read_object(frame: bytes | str) -> Object:
    """The JSON object of a frame. Raises Malformed."""
    try:
        message: object = orjson.loads(frame)
    except orjson.JSONDecodeError:
        raise Malformed("a frame that is not JSON") from None
    if not isinstance(message, dict):
        raise Malformed("a frame that is not an object")
    return cast(Object, message)


def text(source: Object, key: str) -> str:
    value = source.get(key)
    if isinstance(value, str):
        return value
    raise Malformed(f"{key} that is no text")


def name(source: Object, key: str) -> str:
    """A text that something is called by, so not an empty one. Raises Malformed."""
    value = source.get(key)
    if isinstance(value, str) and value:
        return value
    raise Malformed(f"{key} that names nothing")


def optional_text(source: Object, key: str) -> str | None:
    """None when the field is missing or null. Raises Malformed for anything else that is no text."""
    return None if source.get(key) is None else text(source, key)


def part(source: Object, key: str) -> Object:
    value = source.get(key)
    if isinstance(value, dict):
        return cast(Object, value)
    raise Malformed(f"{key} that is no object")


def optional_part(source: Object, key: str) -> Object:
    """Empty when the field is missing or null. Raises Malformed for anything else that is no object."""
    return {} if source.get(key) is None else part(source, key)
