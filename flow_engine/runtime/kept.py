"""What a process keeps because making it again costs more, up to a bound."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Kept(Generic[_Key, _Value]):
    """At most `most` of it, by the `weight` of each value; what was used longest ago gives way. What weighs
    more than all may is not kept."""

    def __init__(self, most: int, weight: Callable[[_Value], int] = lambda _: 1) -> None:
        self._most = most
        self._weight = weight
        self._weighs = 0
        self._kept: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: _Key) -> _Value | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: _Key, value: _Value) -> None:
        """In place of what is kept by that key."""
        weight, before = self._weight(value), self._kept.pop(key, None)
        if before is not None:
            self._weighs -= self._weight(before)
        if weight > self._most:
            return
        self._kept[key] = value
        self._weighs += weight
        while self._weighs > self._most:
            self._weighs -= self._weight(self._kept.popitem(last=False)[1])
