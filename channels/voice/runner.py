"""Runs one call from its first event to its end: the shell around the call's machine (V2, V12).

    open (checks, session) → connect the model → configure → started (on_start) → greeting → dialogue → ended

Whatever ends a call, ends it here and once: its tools are stopped, both sides closed, the turns that are left
given out, and the handler told. A model that is lost or about to expire is replaced by a
new connection that is told what was said.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import structlog

from channels.voice.call.events import FunctionCall, ModelError, ModelEvent, SessionUpdated, StreamStarted
from channels.voice.call.machine import Call
from channels.voice.call.ports import (
    Caller,
    CallHandler,
    Ending,
    EndReason,
    Line,
    ModelLink,
    OpenCallHandler,
    Refused,
    SessionSettings,
    Turn,
)
from channels.voice.call.state import Counts
from channels.voice.wires.model_side import ConnectModel, ModelUnreachable
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.voice")

OPEN_WITHIN_S = 30.0
START_WITHIN_S = 15.0
CONNECT_WITHIN_S = 5.0
TRIES = 2
TOOL_WITHIN_S = 60.0
MOVE_WITHIN_S = 15.0
ENDED_WITHIN_S = 30.0
TICK_S = 0.2
RENEW_AFTER_S = 55 * 60.0
RENEW_AT_LAST_S = 59 * 60.0

PHONE_PARAMETERS = ("callerPhone", "caller_phone", "From", "from", "caller")


class Watching(Protocol):
    """Counts calls, for metrics."""

    def call_began(self) -> None: ...

    def call_ended(self, reason: EndReason, duration_s: float, counts: Counts) -> None: ...

    def model_renewed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What every call of one agent is run with. `clock` gives monotonic seconds."""

    connect: ConnectModel
    open_handler: OpenCallHandler
    apology_settings: SessionSettings
    """Who speaks where a call is refused with words."""
    clock: Callable[[], float]
    wall: Callable[[], datetime]
    watching: Watching
    max_duration_s: float = 3600.0
    agent_id: str = ""


class _Side:
    """One connection to the model. It is deaf once it has been replaced."""

    def __init__(self, runner: CallRunner) -> None:
        self._runner = runner
        self.is_current = True
        self.confirmed: asyncio.Future[SessionUpdated] = asyncio.get_running_loop().create_future()

    def event(self, event: ModelEvent) -> None:
        if self.is_current:
            self._runner.call.model_event(event)

    def lost(self) -> None:
        if not self.confirmed.done():
            self.confirmed.cancel()  # whoever is opening it tries again
        elif self.is_current:
            self._runner.model_lost("the connection was closed")

    def audio_dropped(self) -> None:
        self._runner.call.counts.unheard += 1


class CallRunner:
    """Implements `CallHooks` for its own call. `line_plays` and `transfer` as the line can."""

    def __init__(
        self,
        plan: CallPlan,
        line: Line,
        started: StreamStarted,
        *,
        transfer: Callable[[str], Awaitable[bool]] | None = None,
        line_plays: bool = True,
    ) -> None:
        self._plan = plan
        self._line = line
        self._transfer = transfer
        self._line_plays = line_plays
        self.caller = caller_of(started, plan.wall())
        self.call = Call(
            line,
            self,
            clock=plan.clock,
            wall=plan.wall,
            max_duration_s=plan.max_duration_s,
            line_plays=line_plays,
        )
        self._log = log.bind(agent_id=plan.agent_id, call_id=self.caller.call_id)
        self._handler: CallHandler = plan.open_handler(self.caller, self.call)
        self._over: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._side: _Side | None = None
        self._link: ModelLink | None = None
        self._connected_at = 0.0
        self._tools: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        self._was_opened = self.has_started = False
        self._began = plan.clock()

    async def run(self) -> None:
        """Until the call is over. Never raises but when cancelled, and even then the call is ended."""
        self._plan.watching.call_began()
        self._log.info("call_began")
        ticker = asyncio.create_task(self._tick())
        telling = asyncio.create_task(self._tell_turns())
        script = asyncio.create_task(self._script())
        try:
            for needed in (script, ticker):
                await asyncio.wait({needed, ticker, self._over}, return_when=asyncio.FIRST_COMPLETED)
                if needed.done() and (failure := needed.exception()) is not None:
                    self._log.error("call_failed", exc_info=failure)
                    self.call.end("failed")
        except asyncio.CancelledError:
            self.call.end("shut_down")
            raise
        finally:
            await _stop(script, ticker, self._renewing, *self._tools.values(), *self._errands)
            await self._end(telling)

    # The order of a call ---------------------------------------------------------------------------

    async def _script(self) -> None:
        taken = await self._opened()
        if isinstance(taken, Refused):
            await self._refuse(taken)
            return
        try:
            await self._connect(taken)
        except ModelUnreachable as reason:
            self._log.error("model_unreachable", reason=str(reason))
            self.call.end("failed")
            return
        self.has_started = True
        greeting = await self._handler.started()
        if greeting is not None:
            self.call.greet(greeting)

    async def _opened(self) -> SessionSettings | Refused:
        self._was_opened = True
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                return await self._handler.open()
        except TimeoutError:
            self._log.error("call_not_opened", within_s=OPEN_WITHIN_S)
            return Refused()

    async def _refuse(self, refused: Refused) -> None:
        self._log.info("call_refused", speaks=refused.say is not None)
        if refused.say is None:
            self.call.end("refused")
            return
        try:
            await self._connect(self._plan.apology_settings)
        except ModelUnreachable as reason:
            self._log.error("model_unreachable", reason=str(reason))
            self.call.end("refused")
            return
        self.call.say_last(refused.say)

    async def _connect(self, settings: SessionSettings, *, resumed: bool = False) -> None:
        """A confirmed session. Raises ModelUnreachable when no try succeeds."""
        reasons: list[str] = []
        for attempt in range(TRIES):
            await asyncio.sleep(0.5 * attempt)
            side = _Side(self)
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    await self._open_session(side, settings, resumed=resumed)
                    return
            except ModelUnreachable as reason:
                reasons.append(str(reason))
            except TimeoutError:
                reasons.append(f"no session within {CONNECT_WITHIN_S:g} s")
            self._drop(side)
        raise ModelUnreachable("; then ".join(reasons))

    async def _open_session(self, side: _Side, settings: SessionSettings, *, resumed: bool) -> None:
        link = await self._plan.connect(settings, side)
        if self._link is not None:
            self._replaced()
        self._side, self._link, self._connected_at = side, link, self._plan.clock()
        self.call.attach(link, settings, resumed=resumed)
        try:
            confirmed = await asyncio.shield(side.confirmed)
        except asyncio.CancelledError:
            if side.confirmed.cancelled():
                raise ModelUnreachable("the session was closed before it was confirmed") from None
            raise
        if not self._line_plays:
            return  # the format is a matter between the model's side and the line
        for wanted, said in (
            (settings.input_format, confirmed.input_format),
            (settings.output_format, confirmed.output_format),
        ):
            if said is not None and said != wanted:
                raise ModelUnreachable(f"the model insists on {said} where {wanted} was asked for")

    def _replaced(self) -> None:
        """The connection so far is given up for another one."""
        if self._side is not None:
            self._side.is_current = False
        if self._link is not None:
            self.call.detach()
            self._link.close()
        self._side = self._link = None

    def _drop(self, side: _Side) -> None:
        side.is_current = False
        if self._side is side:
            self._replaced()

    # Hooks -----------------------------------------------------------------------------------------

    def start_tool(self, asked: FunctionCall) -> None:
        task = asyncio.create_task(self._run_tool(asked))
        self._tools[asked.call_id] = task
        task.add_done_callback(lambda _: self._tools.pop(asked.call_id, None))

    def stop_other_tools(self) -> tuple[str, ...]:
        calling = asyncio.current_task()
        stopped = {call_id: task for call_id, task in self._tools.items() if task is not calling}
        for task in stopped.values():
            task.cancel()
        return tuple(stopped)

    def turn(self, turn: Turn) -> None:
        self._turns.put_nowait(turn)

    def silence(self) -> None:
        self._errand(self._handler.silent())

    def session_updated(self, confirmed: SessionUpdated) -> None:
        if self._side is not None and not self._side.confirmed.done():
            self._side.confirmed.set_result(confirmed)

    def model_stalled(self) -> None:
        self.model_lost("it does not answer")

    def model_refused(self, error: ModelError) -> None:
        self._log.warning("model_error", code=error.code, command=error.event_id)

    def move(self, target: str) -> None:
        self._errand(self._move(target))

    def over(self, reason: EndReason) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    def model_lost(self, why: str) -> None:
        """Go on with a new connection, unless one is being opened already."""
        opening = self._side is not None and not self._side.confirmed.done()
        if self._over.done() or opening or (self._renewing is not None and not self._renewing.done()):
            return
        self._log.warning("model_lost", why=why)
        self._replaced()
        self._renew()

    # Inside ----------------------------------------------------------------------------------------

    def _renew(self) -> None:
        self._renewing = asyncio.create_task(self._renewed())

    async def _renewed(self) -> None:
        settings = self.call.settings or self._plan.apology_settings
        self._plan.watching.model_renewed()
        try:
            await self._connect(settings, resumed=True)
        except ModelUnreachable as reason:
            self._log.error("model_unreachable", reason=str(reason))
            self.call.end("model_lost")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.call.tick()
            if (
                not self._line_plays
                or self._link is None
                or (self._renewing is not None and not self._renewing.done())
            ):
                continue
            age = self._plan.clock() - self._connected_at
            if age >= RENEW_AT_LAST_S or (age >= RENEW_AFTER_S and self.call.is_calm()):
                self._log.info("model_renewed_in_time")
                self._renew()

    async def _run_tool(self, asked: FunctionCall) -> None:
        output: JsonValue
        try:
            async with asyncio.timeout(TOOL_WITHIN_S):
                output = await self._handler.run_tool(asked.name, asked.arguments)
        except TimeoutError:
            output = {"error": f"no answer within {TOOL_WITHIN_S:g} s"}
        # A handler is anybody's code, and the model waits for an answer of every tool.
        except Exception:  # noqa: BLE001
            self._log.exception("tool_failed", tool=asked.name)
            output = {"error": "the tool failed"}
        self.call.tool_finished(asked.call_id, asked.name, output)

    def _errand(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._tried(errand, "errand_failed"))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _tell_turns(self) -> None:
        while (turn := await self._turns.get()) is not None:
            await self._tried(self._handler.said(turn), "turn_not_told")

    async def _tried(self, errand: Coroutine[Any, Any, None], event: str) -> None:
        try:
            await errand
        # A handler is anybody's code, and none of it may end a call.
        except Exception:  # noqa: BLE001
            self._log.exception(event)

    async def _end(self, telling: asyncio.Task[None]) -> None:
        reason = self._over.result()
        self._replaced()
        self._line.close()
        self.call.close_transcript()
        self._turns.put_nowait(None)
        duration_s = self._plan.clock() - self._began
        await asyncio.wait({telling}, timeout=START_WITHIN_S)
        await _stop(telling)
        if self._was_opened:
            ending = Ending(self.has_started, reason, duration_s, self.call.transcript)
            errand = asyncio.wait_for(self._handler.ended(ending), ENDED_WITHIN_S)
            await self._tried(errand, "end_not_told")
        self._plan.watching.call_ended(reason, duration_s, self.call.counts)
        self._log.info("call_ended", reason=reason, duration_s=round(duration_s, 3))

    async def _move(self, target: str) -> None:
        done = False
        try:
            async with asyncio.timeout(MOVE_WITHIN_S):
                done = await self._moved(target)
        except TimeoutError:
            self._log.error("call_not_transferred", reason=f"no answer within {MOVE_WITHIN_S:g} s")
        finally:
            self.call.moved(done)
        if not self._over.done():
            await self._handler.not_transferred(target)

    async def _moved(self, target: str) -> bool:
        if self._transfer is None:
            self._log.error("call_not_transferred", reason="this line cannot")
            return False
        return await self._transfer(target)


async def _stop(*tasks: asyncio.Task[None] | None) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def caller_of(started: StreamStarted, now: datetime) -> Caller:
    """`phone` from the first of the parameters that lines use for it."""
    parameters = started.parameters
    phone = next((parameters[name] for name in PHONE_PARAMETERS if parameters.get(name)), None)
    return Caller(uuid.uuid4().hex, phone, parameters, now)
