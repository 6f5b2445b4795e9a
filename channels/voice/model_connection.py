"""The connection of one call to its model: opened, renewed when it breaks or is about to expire (V12).

    from      by                                           to
    unused    `open`                                       opening
    opening   the session is confirmed                     open
    opening   every try has failed: ModelUnreachable       closed
    open      it is lost, or about to expire               renewing
    renewing  the new session is confirmed                 open
    renewing  every try has failed, the one before serves  open, to be renewed again
    renewing  every try has failed, nothing serves         closed, and the call ends
    any       `close`                                      closed

One that is lost is gone before the new one is opened; one that is about to expire serves until the new one is
connected, or on where none is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from typing_extensions import TypeIs

from channels.voice.call.events import AgentAudio, ModelError, ModelEvent, SessionUpdated
from channels.voice.call.machine import Call
from channels.voice.call.ports import ConnectModel, ModelLink, ModelUnreachable, SessionSettings

RENEW_AFTER_S: Final = 55 * 60.0
RENEW_AT_LAST_S: Final = 59 * 60.0
"""OpenAI ends a session after 60 minutes."""

RENEW_AGAIN_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: of one try, before each further one, and of all together."""

    of_a_try: float
    pauses: Sequence[float]
    of_all: float


OPENING: Final = Patience(2.0, (0.1,), 2.8)
"""A caller who hears nothing hangs up after three seconds."""

RINGING: Final = Patience(5.0, (0.5,), 10.5)
LONGER: Final = Patience(5.0, (0.5, 1.0, 2.0, 4.0), 10.5)
"""While the call has begun: a model that is being restarted refuses at once, for some seconds."""


class ConnectionState(Enum):
    UNUSED = auto()
    OPENING = auto()
    OPEN = auto()
    RENEWING = auto()
    CLOSED = auto()


_NEXT: Final[Mapping[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.UNUSED: frozenset({ConnectionState.OPENING, ConnectionState.CLOSED}),
    ConnectionState.OPENING: frozenset({ConnectionState.OPEN, ConnectionState.CLOSED}),
    ConnectionState.OPEN: frozenset({ConnectionState.RENEWING, ConnectionState.CLOSED}),
    ConnectionState.RENEWING: frozenset({ConnectionState.OPEN, ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class _Listener:
    """Implements `RealtimeListener` for one connection. It is deaf once it has been replaced."""

    __slots__ = ("_call", "_connection", "is_current", "outcome")

    def __init__(self, connection: ModelConnection) -> None:
        self._connection, self._call = connection, connection.call
        self.is_current = True
        self.outcome: asyncio.Future[SessionUpdated | ModelError | None] = (
            asyncio.get_running_loop().create_future()
        )
        """What became of the first configuration; None where the connection has ended before."""

    def event(self, event: ModelEvent) -> None:
        if not self.is_current:
            return
        if type(event) is not AgentAudio and not self.outcome.done() and _is_outcome(event):
            self.outcome.set_result(event)
        self._call.model_event(event)

    def lost(self) -> None:
        if not self.outcome.done():
            self.outcome.set_result(None)  # whoever is opening it tries again
        elif self.is_current:
            self._connection.lost("the connection was closed")

    def audio_dropped(self) -> None:
        self._call.counts.unheard += 1


class ModelConnection:
    """One call's. `renewed` is called when a renewal begins, `failed` when it has come to nothing. `clock`
    gives monotonic seconds. Where the line does not play (SIP), formats are a matter between it and the
    model's side, and the session is the call's: it does not expire with a connection."""

    def __init__(
        self,
        connect: ConnectModel,
        call: Call,
        *,
        renewed: Callable[[], None],
        failed: Callable[[], None],
        clock: Callable[[], float],
        log: Any,
        line_plays: bool = True,
    ) -> None:
        self.call = call
        self.state = ConnectionState.UNUSED
        self._connect = connect
        self._renewed = renewed
        self._failed = failed
        self._clock = clock
        self._log = log
        self._line_plays = line_plays
        self._listener: _Listener | None = None
        self._link: ModelLink | None = None
        self._opened_at = self._renew_from = 0.0
        self._renewal: asyncio.Task[None] | None = None

    async def open(self, settings: SessionSettings) -> None:
        """A confirmed session, for a call that has none yet: within 3 seconds where the line plays, else 10.5
        seconds. Raises ModelUnreachable when no try succeeds."""
        self._to(ConnectionState.OPENING)
        try:
            await self._try(settings, OPENING if self._line_plays else RINGING)
        except ModelUnreachable:
            self._to(ConnectionState.CLOSED)
            raise

    def lost(self, why: str) -> None:
        """Go on with a new connection, unless one is being opened already, or the call is over. When none
        succeeds within some seconds, the call ends as failed."""
        if not self.serves:
            return
        self._replace()
        if self.call.is_over:
            return
        self._log.warning("model_lost", why=why)
        if self.state is ConnectionState.OPEN:
            self._begin_renewal()

    def renew_if_due(self) -> None:
        """To be called now and then: a session that is about to expire is renewed in time."""
        now = self._clock()
        if self.state is not ConnectionState.OPEN or not self._line_plays or now < self._renew_from:
            return
        age = now - self._opened_at
        is_told_all = self.call.is_calm() and not self.call.awaits_text
        if age >= RENEW_AT_LAST_S or (age >= RENEW_AFTER_S and is_told_all):
            self._log.info("model_renewed_in_time")
            self._begin_renewal()

    async def close(self) -> None:
        """Returns when nothing of it runs any more. Never raises; without effect when it is closed
        already."""
        if self.state is not ConnectionState.CLOSED:
            self._to(ConnectionState.CLOSED)
        if self._renewal is not None and not self._renewal.done():
            self._renewal.cancel()
            await asyncio.wait({self._renewal})
        self._replace()

    @property
    def serves(self) -> bool:
        """There is a connection whose session was confirmed."""
        return self._listener is not None and self._listener.outcome.done()

    def _to(self, state: ConnectionState) -> None:
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"a connection cannot go from {self.state.name} to {state.name}")
        self.state = state

    def _begin_renewal(self) -> None:
        if self.call.settings is None:
            raise RuntimeError("a connection to be renewed has been configured")
        self._to(ConnectionState.RENEWING)
        self._renewed()
        self._renewal = asyncio.create_task(self._renew(self.call.settings))

    async def _renew(self, settings: SessionSettings) -> None:
        # Whatever it fails by: nobody else would notice that there is no model any more.
        [failure] = await asyncio.gather(self._try(settings, LONGER), return_exceptions=True)
        if failure is None:
            return
        bug = None if isinstance(failure, ModelUnreachable) else failure
        self._log.error("model_unreachable", reason=str(failure), exc_info=bug)
        if self.serves:
            self._renew_from = self._clock() + RENEW_AGAIN_S
            self._to(ConnectionState.OPEN)
        else:
            self._to(ConnectionState.CLOSED)
            self._failed()

    async def _try(self, settings: SessionSettings, patience: Patience) -> None:
        """From the confirmation on the state is open: it may be lost again before its waiter runs. Raises
        ModelUnreachable with the reasons of all tries, each once."""
        reasons: dict[str, None] = {}
        now = asyncio.get_running_loop().time
        until = now() + patience.of_all
        for pause_s in (0.0, *patience.pauses):
            if now() + pause_s >= until:
                break
            await asyncio.sleep(pause_s)
            within_s = min(patience.of_a_try, until - now())
            listener = _Listener(self)
            try:
                async with asyncio.timeout(within_s):
                    await self._open_session(listener, settings)
                self._to(ConnectionState.OPEN)
                return
            except ModelUnreachable as reason:
                reasons[str(reason)] = None
            except TimeoutError:
                reasons[f"no session within {within_s:.3g} s"] = None
            listener.is_current = False
            if self._listener is listener:
                self._replace()
        raise ModelUnreachable("; then ".join(reasons))

    async def _open_session(self, listener: _Listener, settings: SessionSettings) -> None:
        link = await self._connect(settings, listener)
        settings = self.call.settings or settings  # as they are by now: the task may be another one
        self._replace()
        self._listener, self._link, self._opened_at = listener, link, self._clock()
        self.call.attach(link, settings)
        outcome = await listener.outcome
        # It may have been lost right behind its confirmation.
        match outcome if listener.is_current else None:
            case None:
                raise ModelUnreachable("the session was closed before it was confirmed")
            case ModelError() as error:
                raise ModelUnreachable(f"the session was refused: {error.code}: {error.message}")
            case SessionUpdated() as confirmed:
                if not self._line_plays:
                    return
                for wanted, used in (
                    (settings.input_format, confirmed.input_format),
                    (settings.output_format, confirmed.output_format),
                ):
                    if used is not None and used != wanted:
                        raise ModelUnreachable(f"the model insists on {used} where {wanted} was asked for")

    def _replace(self) -> None:
        """The connection so far is given up."""
        if self._listener is not None:
            self._listener.is_current = False
        if self._link is not None:
            self.call.detach()
            self._link.close()
        self._listener = self._link = None


def _is_outcome(event: ModelEvent) -> TypeIs[SessionUpdated | ModelError]:
    if isinstance(event, ModelError):
        return (event.event_id or "").startswith("session.update")
    return isinstance(event, SessionUpdated)
