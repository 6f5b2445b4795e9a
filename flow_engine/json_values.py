"""JSON values as such: their size and their parts, whatever they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import orjson


def rough_size(value: object) -> int:
    """Characters of text in a value, with two for each other part: near its size as JSON in bytes."""
    size = 0
    waiting: list[object] = [value]
    while waiting:  # a stack, not recursion: depth is the sender's choice
        part = waiting.pop()
        if isinstance(part, str):
            size += len(part) + 2
        elif isinstance(part, Mapping):
            items = cast("Mapping[str, object]", part)
            size += sum(len(key) for key in items)
            waiting.extend(items.values())
        elif isinstance(part, Sequence):
            waiting.extend(cast("Sequence[object]", part))
        else:
            size += 2
    return size


def json_bytes(value: object) -> int:
    """The size of a value as JSON, in bytes."""
    return len(orjson.dumps(value))
