"""How a request gets its answer: from the cache, from a call that is under way, or from a backend.

1. The cache holds for `Cacheable` requests alone: temperature 0, by the mode also with tools or not at all.
2. Identical requests at once share one call. It is cancelled when the last of its readers has gone.
3. A call that is shared is read ahead of its readers by `AHEAD` parts at most; any other not at all.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import Final, Literal

from channels.gateway import accounts, config, database, routing, upstreams
from channels.gateway.cache import Entry, ResponseCache
from channels.gateway.wire import (
    FINISHED,
    ApiError,
    ApiRequest,
    JsonObject,
    Part,
    cache_key,
    object_of,
    objects_of,
    whole_number,
)

AHEAD: Final = 256

Outcome = Literal["hit-l1", "hit-l2", "miss", "bypass"]


@dataclass(slots=True)
class Origin:
    """Where an answer is from, known once its first part has come. `outcome` is `X-Cache`; `created_at`, of
    an entry, is in seconds since 1970."""

    outcome: Outcome
    created_at: float | None = None

    def headers(self) -> dict[str, str]:
        """`Age` is in seconds."""
        age = {} if self.created_at is None else {"Age": str(max(0, int(time() - self.created_at)))}
        return {"X-Cache": self.outcome, **age}


@dataclass(frozen=True, slots=True)
class Served:
    """An answer as one client gets it. Its parts raise ApiError."""

    origin: Origin
    parts: AsyncGenerator[Part]


class Completeness:
    """Watches the parts of an answer go by: may it be kept?"""

    def __init__(self) -> None:
        self._finishes: dict[int, str | None] = {}
        self.calls_tools = False

    def see(self, parsed: JsonObject) -> None:
        for choice in objects_of(parsed.get("choices")):
            index = whole_number(choice.get("index"))
            finish = choice.get("finish_reason")
            self._finishes[index] = finish or self._finishes.get(index)
            message = object_of(choice.get("message") or choice.get("delta"))
            if message.get("tool_calls") or message.get("function_call"):
                self.calls_tools = True

    @property
    def whole(self) -> bool:
        """Every choice has its finish, and none was cut or withheld."""
        cut = (None, "length", "content_filter")
        return bool(self._finishes) and not any(finish in cut for finish in self._finishes.values())


class _Flight:
    """One call that several may read. Once it is `whole`, nobody's leaving cancels it."""

    def __init__(self) -> None:
        self.origin = Origin("miss")
        self.parts: list[Part] = []
        self.readers = 0
        self.whole = False
        self.task: asyncio.Task[None] | None = None
        self._furthest = 0
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def add(self, part: Part) -> None:
        """Waits while no reader is near."""
        self.parts.append(part)
        self.announce()
        while len(self.parts) - self._furthest > AHEAD:
            self._taken.clear()
            await self._taken.wait()

    def announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self) -> AsyncGenerator[Part]:
        """All parts from the first. Raises ApiError as the call has ended, 500 where it met a bug."""
        task = self.task
        assert task is not None
        position = 0
        try:
            while True:
                if position < len(self.parts):
                    position += 1
                    self._furthest = max(self._furthest, position)
                    self._taken.set()
                    yield self.parts[position - 1]
                elif self.whole:
                    return
                elif not task.done():
                    await self._changed.wait()
                elif task.cancelled() or (failure := task.exception()) is None:
                    return
                elif isinstance(failure, ApiError):
                    raise ApiError(failure.status, "", error=failure.error, headers=failure.headers)
                else:
                    raise ApiError(500, "the gateway has an error, which is logged", type="server_error")
        finally:
            self.readers -= 1
            if not self.readers and not self.whole:
                task.cancel()


class Answering:
    """Answers requests; `mode` says what may be kept."""

    def __init__(self, mode: config.CacheMode, cache: ResponseCache) -> None:
        self._mode = mode
        self._cache = cache
        self._flights: dict[str, _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait for what is still to be kept, two seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)

    def answer(
        self,
        request: ApiRequest,
        route: routing.Route,
        operation: upstreams.Operation,
        control: str,
        account: accounts.Account,
    ) -> Served:
        """`control` is the request's `Cache-Control`. Raises ApiError 504 for `only-if-cached` where nothing
        can be kept."""
        directives = {each.strip().lower() for each in control.split(",")}
        only_cached = "only-if-cached" in directives
        key = None if "no-store" in directives else self._key(request, route, operation, account)
        if key is None:
            if only_cached:
                raise _nothing_cached()
            calls = account.watched(routing.asked(route, request, operation, account.began))
            return Served(Origin("bypass"), calls)
        if "no-cache" in directives and not only_cached:
            return self._reading(self._started(key, request, route, account, look=False))
        if (entry := self._cache.near(key)) is not None:
            return Served(Origin("hit-l1", entry.created_at), _replayed(entry, request))
        if only_cached:
            origin = Origin("miss")
            return Served(origin, self._only_cached(key, request, origin))
        flight = self._flights.get(key)
        if flight is None or not flight.readers:
            flight = self._flights[key] = self._started(key, request, route, account, look=True)
        return self._reading(flight)

    def _key(
        self,
        request: ApiRequest,
        route: routing.Route,
        operation: upstreams.Operation,
        account: accounts.Account,
    ) -> str | None:
        temperature = request.body.get("temperature")
        cold = temperature is not None and not isinstance(temperature, bool) and temperature == 0
        if operation != "chat" or self._mode == "off" or not cold:
            return None
        if request.has_tools and self._mode != "final":
            return None
        try:
            return cache_key(request, account.tenant, route.model)
        except ValueError:
            return None

    def _started(
        self, key: str, request: ApiRequest, route: routing.Route, account: accounts.Account, *, look: bool
    ) -> _Flight:
        flight = _Flight()

        def landed(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._leave(key, flight)
            flight.announce()
            if not task.cancelled() and not isinstance(task.exception(), ApiError | None):
                database.log.error("bug", exc_info=task.exception())

        flight.task = asyncio.create_task(self._fly(flight, key, request, route, account, look))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(landed)
        return flight

    def _leave(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    @staticmethod
    def _reading(flight: _Flight) -> Served:
        flight.readers += 1
        return Served(flight.origin, flight.read())

    async def _fly(
        self,
        flight: _Flight,
        key: str,
        request: ApiRequest,
        route: routing.Route,
        account: accounts.Account,
        look: bool,
    ) -> None:
        if look and (entry := await self._cache.far(key)) is not None:
            flight.origin.outcome, flight.origin.created_at = "hit-l2", entry.created_at
            async for part in _replayed(entry, request):
                await flight.add(part)
            flight.whole = True
            return
        epoch, seen, kept, entry = self._cache.epoch, Completeness(), list[bytes](), None
        calls = account.watched(routing.asked(route, request, "chat", account.began))
        async with aclosing(calls):
            async for part in calls:
                seen.see(part.parsed)
                if part.shown:
                    kept.append(part.data)
                if part is FINISHED or not request.streams:
                    # Kept before the reader has the end: his next question finds it.
                    if seen.whole and not seen.calls_tools:
                        entry = self._cache.put(key, kept, route.model, epoch)
                    flight.whole = True
                    self._leave(key, flight)
                await flight.add(part)
        if entry is not None:
            await self._cache.write(key, entry, epoch)

    async def _only_cached(self, key: str, request: ApiRequest, origin: Origin) -> AsyncGenerator[Part]:
        entry = await self._cache.far(key)
        if entry is None:
            raise _nothing_cached()
        origin.outcome, origin.created_at = "hit-l2", entry.created_at
        async for part in _replayed(entry, request):
            yield part


def _nothing_cached() -> ApiError:
    return ApiError(504, "there is no cached answer to this", code="not_cached", headers={"X-Cache": "miss"})


async def _replayed(entry: Entry, request: ApiRequest) -> AsyncGenerator[Part]:
    for data in entry.parts:
        yield Part(data, {})
    if request.streams:
        yield FINISHED
