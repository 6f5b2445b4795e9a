"""How many calls there are, and whether another one is taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

Refusal = Literal["busy", "draining"]

PROMISE_S = 15.0
"""How long Twilio may take from its instructions to opening the stream."""

LOOK_AGAIN_S = 0.05


class Admission:
    """A call on Twilio comes in two steps: instructions are given, then its line connects. A place is kept
    in between, so that nobody who was let in is turned away at the second step, not even while draining."""

    def __init__(self, max_calls: int, clock: Callable[[], float]) -> None:
        self._max_calls = max_calls
        self._clock = clock
        self._promised: deque[float] = deque()
        self.live = 0
        self.draining = False

    @property
    def under_way(self) -> int:
        """Calls that are there, and those that were let in and have yet to connect."""
        return self.live + self._pending()

    def promise(self) -> Refusal | None:
        """Keep a place for a line that is about to connect. None: kept."""
        refusal = self._refusal()
        if refusal is None:
            self._promised.append(self._clock() + PROMISE_S)
        return refusal

    def take(self, *, promised: bool = False) -> Refusal | None:
        """Count a call in; `promised` uses up a place that was kept, if there is one. None: taken."""
        self._forget_promises()
        if promised and self._promised:
            self._promised.popleft()
        elif (refusal := self._refusal()) is not None:
            return refusal
        self.live += 1
        return None

    def release(self) -> None:
        self.live -= 1

    def drain(self) -> None:
        """No further calls. There is no way back."""
        self.draining = True

    async def idle(self) -> None:
        """Returns when no call is there or promised."""
        while self.under_way:  # noqa: ASYNC110 - promises run out by the clock, untold
            await asyncio.sleep(LOOK_AGAIN_S)

    def _refusal(self) -> Refusal | None:
        if self.draining:
            return "draining"
        return "busy" if self.under_way >= self._max_calls else None

    def _pending(self) -> int:
        self._forget_promises()
        return len(self._promised)

    def _forget_promises(self) -> None:
        now = self._clock()
        while self._promised and self._promised[0] <= now:
            self._promised.popleft()
