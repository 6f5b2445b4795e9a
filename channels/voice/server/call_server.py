"""What stands behind the HTTP side: who answers the calls, and whether another one is taken."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from picows import WSListener

from channels.voice.carriers.carrier import SpeakAndDial
from channels.voice.carriers.sip.calls import SipCall

Refusal = Literal["busy", "draining"]

PROMISE_S = 15.0
"""Seconds that a carrier may take from its instructions to opening the stream."""

LOOK_AGAIN_S = 0.05

RETIRED_S = 90.0
"""Seconds for which those of an old config are there after its last call: what came of it may be asked."""


class CallServer(Protocol):
    def answer(self) -> WSListener:
        """The listener for the WebSocket of one stream, which has passed all checks and opens at once after
        that. Returns at once."""
        ...

    def lost(self, call_id: str) -> SpeakAndDial | None:
        """What a caller hears whose call had no model, by the carrier's id of the call; None for a call that
        ended as calls do."""
        ...

    async def answer_sip(self, call: SipCall) -> None:
        """Take, or refuse, a call that waits with the model's server. Returns when the call is over."""
        ...

    async def drained(self) -> None:
        """Returns when no call is left, and every end that the business has to hear of is answered or given
        up."""
        ...

    async def close(self) -> None:
        """End every call that still runs, because the program ends. Returns when all their ends are done; the
        caller bounds it in seconds by cancelling."""
        ...


class ChangingServer:
    """Implements `CallServer` for an agent whose config may change while it runs: a call goes on with what it
    began with. `digest` is that of the config which new calls get; `load` reads it as it is now, with who
    answers by it, and raises CorrectTheInput `config_refused`."""

    def __init__(
        self, digest: str, server: CallServer, load: Callable[[], Awaitable[tuple[str, CallServer]]]
    ) -> None:
        self.digest = digest
        self._server = server
        self._load = load
        self._reloading = asyncio.Lock()
        self._replaced: dict[asyncio.Task[None], CallServer] = {}

    async def reload(self) -> None:
        """Take up the config as it is now. Raises CorrectTheInput `config_refused`; calls have the config
        from before then."""
        async with self._reloading:
            digest, server = await self._load()
            before, self.digest, self._server = self._server, digest, server
            task = asyncio.create_task(_retired(before))
            self._replaced[task] = before
            task.add_done_callback(self._replaced.pop)

    def answer(self) -> WSListener:
        return self._server.answer()

    def lost(self, call_id: str) -> SpeakAndDial | None:
        servers = (self._server, *self._replaced.values())
        return next((words for server in servers if (words := server.lost(call_id)) is not None), None)

    async def answer_sip(self, call: SipCall) -> None:
        await self._server.answer_sip(call)

    async def drained(self) -> None:
        await asyncio.gather(*(server.drained() for server in (self._server, *self._replaced.values())))

    async def close(self) -> None:
        replaced = dict(self._replaced)
        for task in replaced:
            task.cancel()
        if replaced:
            await asyncio.wait(replaced)
        await asyncio.gather(*(server.close() for server in (self._server, *replaced.values())))


async def _retired(server: CallServer) -> None:
    await server.drained()
    await asyncio.sleep(RETIRED_S)
    await server.close()


class Admission:
    """A call comes in two steps: it is offered and accepted, then its stream connects. A place is kept
    in between, so that nobody who was let in is turned away at the second step, not even while draining."""

    def __init__(self, max_calls: int, clock: Callable[[], float]) -> None:
        self._max_calls = max_calls
        self._clock = clock
        self._promised: deque[float] = deque()
        self.live = 0
        self.draining = False

    @property
    def under_way(self) -> int:
        """Calls that are there, and those that were let in and have some seconds to connect."""
        self._forget_promises()
        return self.live + len(self._promised)

    def promise(self) -> Refusal | None:
        """Keep a place for a line that is about to connect. None: kept."""
        refusal = self._refusal()
        if refusal is None:
            self._promised.append(self._clock() + PROMISE_S)
        return refusal

    def take(self, *, promised: bool = False) -> Refusal | None:
        """Count a call in; `promised` uses up a place that was kept, if there is one. None where it is taken,
        else why it is refused."""
        self._forget_promises()
        if promised and self._promised:
            self._promised.popleft()
        elif (refusal := self._refusal()) is not None:
            return refusal
        self.live += 1
        return None

    def release(self) -> None:
        """Count a call out that `take` has counted in."""
        self.live -= 1

    def drain(self) -> None:
        """No further calls. There is no way back."""
        self.draining = True

    async def idle(self) -> None:
        """Returns when no call is there or promised; the caller bounds it in seconds."""
        while self.under_way:  # noqa: ASYNC110 - promises run out by the clock, untold
            await asyncio.sleep(LOOK_AGAIN_S)

    def _refusal(self) -> Refusal | None:
        if self.draining:
            return "draining"
        return "busy" if self.under_way >= self._max_calls else None

    def _forget_promises(self) -> None:
        now = self._clock()
        while self._promised and self._promised[0] <= now:
            self._promised.popleft()
