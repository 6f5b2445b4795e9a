"""An event loop whose time passes as fast as nothing happens: an hour of a call in a moment, each time alike.

For replays and tests of what waits without a network: when everything waits for a timer, the clock jumps to
it. Real sockets would never get their time, so there must be none.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class NothingLeftToDo(RuntimeError):
    """Everything waits for something that cannot happen any more."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeftToDo("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time` starts at 0 and jumps."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[object, object, T]) -> T:
    """As `asyncio.run`. Raises NothingLeftToDo for a deadlock."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
