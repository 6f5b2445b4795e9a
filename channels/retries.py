"""What has to be done, tried again until it is: after 1, 2, 4 … seconds, at most 5 minutes, for a day."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
GIVEN_UP_AFTER_S: Final = 24 * 3600.0
CLOSE_WITHIN_S: Final = 5.0
MOST_WAITING: Final = 5_000
"""Things that whoever has them tried may have waiting."""

T = TypeVar("T")


class Retries(Generic[T]):
    """`attempt` never raises and returns whether the thing is done, `given_up` is called with one that was
    not for a day. `clock` gives seconds, `pause` waits so many."""

    def __init__(
        self,
        attempt: Callable[[T], Coroutine[Any, Any, bool]],
        given_up: Callable[[T], None],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._attempt = attempt
        self._given_up = given_up
        self._clock = clock
        self._pause = pause
        self._under_way: dict[asyncio.Task[None], T] = {}

    @property
    def waiting(self) -> int:
        """How many things are not done yet."""
        return len(self._under_way)

    def begin(self, thing: T, since: float) -> None:
        """Returns at once. `since` when it has to be done, in seconds of the clock."""
        task = asyncio.create_task(self._until_done(thing, since))
        self._under_way[task] = thing
        task.add_done_callback(self._under_way.pop)

    async def settled(self) -> None:
        """Returns when everything that waits has been done or given up, which is within a day."""
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))

    async def aclose(self) -> Sequence[T]:
        """One last try of everything that waits, within 5 seconds. Returns what is not done then."""
        waiting = dict(self._under_way)
        if not waiting:
            return ()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        tries = {asyncio.create_task(self._attempt(thing)): thing for thing in waiting.values()}
        _, late = await asyncio.wait(tries, timeout=CLOSE_WITHIN_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return [thing for task, thing in tries.items() if task in late or not task.result()]

    async def _until_done(self, thing: T, since: float) -> None:
        pause_s = FIRST_PAUSE_S
        while self._clock() - since < GIVEN_UP_AFTER_S:
            await self._pause(pause_s)
            if await self._attempt(thing):
                return
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        self._given_up(thing)
