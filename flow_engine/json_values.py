"""JSON values as such: their size, their depth, their parts, when two are equal, whatever they mean."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

import orjson

from flow_engine.exact_numbers import may_exceed_64_bits
from flow_engine.values import GREATEST_INT, LEAST_INT, MAX_DEPTH, JsonValue

MOST_READ_VALUES: Final = 100_000
"""Commas and brackets of what a stranger answers: looking through many small values takes seconds."""

_INDEX = re.compile(r"-?[0-9]{1,9}")


def rough_size(value: object) -> int:
    """Characters of text in a value, with two for each other part: near its size as JSON in bytes."""
    size = 0
    waiting: list[object] = [value]
    while waiting:  # a stack, not recursion: depth is the sender's choice
        part = waiting.pop()
        if isinstance(part, str):
            size += len(part) + 2
        elif part is None or isinstance(part, (int, float)):  # what is left is looked up slowly
            size += 2
        elif isinstance(part, (dict, Mapping)):
            items = cast("Mapping[str, object]", part)
            size += sum(map(len, items))
            waiting.extend(items.values())
        elif isinstance(part, Sequence):
            waiting.extend(cast("Sequence[object]", part))
        else:
            size += 2
    return size


def read_answer(body: bytes) -> JsonValue:
    """The JSON that a stranger answers. An integer beyond 64 bits is the text of its digits: as a number it
    would come out as another one. Raises ValueError for what is no JSON, or more than is looked through."""
    value: JsonValue = orjson.loads(body)
    if marks_of_values(body) > MOST_READ_VALUES:
        raise ValueError(f"more than {MOST_READ_VALUES} values")
    if deeper_than(value, MAX_DEPTH):
        raise ValueError(f"more than {MAX_DEPTH} levels")
    return json.loads(body, parse_int=_number_or_digits) if may_exceed_64_bits(body) else value


def marks_of_values(text: bytes) -> int:
    """Commas and brackets that open: one for each value of a JSON text, or more."""
    return sum(map(text.count, (b",", b"{", b"[")))


def _number_or_digits(text: str) -> int | str:
    is_within = len(text) <= len(str(GREATEST_INT)) and LEAST_INT <= int(text) <= GREATEST_INT
    return int(text) if is_within else text


def json_bytes(value: object) -> int:
    """The size of a value as JSON, in bytes."""
    return len(orjson.dumps(value))


def same_json(left: object, right: object) -> bool:
    """Equal as JSON: booleans are no numbers, and 1 is 1.0. Takes any depth."""
    open_pairs: list[tuple[object, object]] = [(left, right)]
    while open_pairs:
        one, other = open_pairs.pop()
        if isinstance(one, list) and isinstance(other, list):
            items, others = cast("list[object]", one), cast("list[object]", other)
            if len(items) != len(others):
                return False
            open_pairs.extend(zip(items, others, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            members, counterparts = cast("dict[str, object]", one), cast("dict[str, object]", other)
            if members.keys() != counterparts.keys():
                return False
            open_pairs.extend((value, counterparts[name]) for name, value in members.items())
        elif isinstance(one, bool) != isinstance(other, bool) or one != other:
            return False
    return True


def as_object(value: object) -> Mapping[str, object]:
    """The value where it is a JSON object, else an empty one: no stranger's answer is trusted to have its
    shape."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def walk(value: JsonValue, path: Sequence[str]) -> JsonValue:
    """What lies at `path` under a JSON value: fields of objects, items of lists by number (from the end when
    it is negative); None where there is nothing."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and _INDEX.fullmatch(part):
            index = int(part)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            return None
    return value


def deeper_than(value: JsonValue, levels: int) -> bool:
    """Whether lists and objects of JSON lie more than `levels` deep in each other."""
    layer = [value]
    for _ in range(levels + 1):
        parents = (list(each.values()) if isinstance(each, dict) else each for each in layer)
        layer = [child for each in parents if isinstance(each, list) for child in each]
        if not layer:
            return False
    return True
