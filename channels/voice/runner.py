"""Runs one call from its first event to its end: the shell around the call's machine (V2, V12).

    checks → open → connect the model → configure → on_start, greeting → dialogue → over → on_end

Whatever ends a call, ends it here and once: the line is closed at once; tools under way and the last words of
the caller are waited for, a bounded time; then both sides are closed, the turns that are left given out, and
handler and lifecycle told.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

import structlog

from channels.voice.call import ports
from channels.voice.call.events import FunctionCall, ModelError, StreamStarted
from channels.voice.call.machine import Call
from channels.voice.carriers.call_control import caller_number
from channels.voice.carriers.carrier import CALL_ID_PARAMETER
from channels.voice.metrics import CountedCall, Counting
from channels.voice.model_connection import ModelConnection
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.voice")

OPEN_WITHIN_S = 30.0
"""Checks and session together."""

GREETING_WAITS_S = 1.5
"""For the lifecycle's `on_start`; what takes longer goes on beside the greeting."""

START_WITHIN_S = 15.0
TOOL_WITHIN_S = 300.0
"""A bound for handlers that have none of their own; the requests of a config have theirs."""

TRANSFER_WITHIN_S = 15.0
LAST_TOOLS_WITHIN_S = 10.0
LAST_WORDS_WITHIN_S = 3.0
ENDED_WITHIN_S = 30.0
TICK_S = 0.5
TOGETHER_S = 0.005
"""Calls tick at multiples of it: waking up for the tick of each call costs more than the tick."""

MOST_LOGGED = 20
"""Names of parameters; their values are the caller's."""

LOOK_S = 0.02

_CALL_ID = re.compile(r"[0-9a-f]{32}")
PHONE_PARAMETERS = ("callerPhone", "caller_phone", "From", "from", "caller")


class Stage(IntEnum):
    """How far a call has come; it only goes on. From OPENING on the handler hears of the end; from CONNECTING
    on the call is taken, and the lifecycle runs even if no model is to be had."""

    CHECKING = 0
    OPENING = 1
    CONNECTING = 2
    STARTED = 3


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What every call of one agent is run with. `clock` gives monotonic seconds, `wall` aware moments; after
    `max_duration_s` the agent says goodbye."""

    connect: ports.ConnectModel
    open_call: ports.OpenCall
    apology_settings: ports.SessionSettings
    """Who speaks where a call is refused with words."""
    clock: Callable[[], float]
    wall: Callable[[], datetime]
    metrics: Counting
    max_duration_s: float = 3600.0
    agent_id: str = ""


class CallRunner:
    """Implements `CallHooks` for its own call. `line_plays` and `transfer` as the line can; `transfer`
    returns whether the line was given to the phone number or SIP address. `log` names the call."""

    def __init__(
        self,
        plan: CallPlan,
        line: ports.Line,
        started: StreamStarted,
        *,
        transfer: Callable[[str], Awaitable[bool]] | None = None,
        line_plays: bool = True,
    ) -> None:
        self._plan = plan
        self._line = line
        self._transfer = transfer
        self.caller = caller_of(started, plan.wall())
        self.call = Call(
            line,
            self,
            clock=plan.clock,
            wall=plan.wall,
            max_duration_s=plan.max_duration_s,
            line_plays=line_plays,
        )
        self._counted = CountedCall(self.caller.call_id, self.caller.started_at, self.call.counts)
        self.log = log.bind(agent_id=plan.agent_id, call_id=self.caller.call_id)
        answered = plan.open_call(self.caller, self.call)
        self._handler, self._lifecycle = answered.handler, answered.lifecycle
        self._connection = ModelConnection(
            plan.connect,
            self.call,
            renewed=plan.metrics.model_renewed,
            failed=lambda: self.call.end("model_lost"),
            clock=plan.clock,
            log=self.log,
            line_plays=line_plays,
        )
        self._over: asyncio.Future[ports.EndReason] = asyncio.get_running_loop().create_future()
        self._tools: dict[str, asyncio.Task[JsonValue]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._turns: asyncio.Queue[ports.Turn | None] = asyncio.Queue()
        self._stage = Stage.CHECKING
        self._on_start: asyncio.Task[None] | None = None
        self._unspoken: str | None = None
        self._began = plan.clock()

    @property
    def has_started(self) -> bool:
        """The model is there, and the caller can be spoken to."""
        return self._stage is Stage.STARTED

    @property
    def end(self) -> ports.CallEnd | None:
        """None while the call goes on."""
        return ports.CallEnd(self._over.result(), self._unspoken) if self._over.done() else None

    async def run(self) -> None:
        """Until the call is over. Never raises but when cancelled, and even then the call is ended, within
        some seconds."""
        self._plan.metrics.call_began(self._counted)
        self.log.info(
            "call_began",
            call_sid=self.caller.carrier_call_id,
            called=caller_number(self.caller.called),
            parameters=[name[:40] for name in sorted(self.caller.parameters)[:MOST_LOGGED]],
        )
        ticker = asyncio.create_task(self._tick())
        turns = asyncio.create_task(self._give_turns())
        script = asyncio.create_task(self._script())
        try:
            for needed in (script, ticker):
                await asyncio.wait({needed, ticker, self._over}, return_when=asyncio.FIRST_COMPLETED)
                if needed.done() and (failure := _failure_of(needed)) is not None:
                    self.log.error("call_failed", exc_info=failure)
                    self.call.end("failed")
        except asyncio.CancelledError:
            self.call.end("shut_down")
            raise
        finally:
            await _stop(script, ticker, *self._errands)
            await self._end(turns)

    # The order of a call ---------------------------------------------------------------------------

    async def _script(self) -> None:
        taken = await self._opened()
        if isinstance(taken, ports.Refused):
            self.log.info("call_refused", speaks=taken.say is not None)
            self._unspoken = taken.say
            # Whom the business does not want is not put through to it where the model is not to be had.
            otherwise: ports.EndReason = "refused" if self._stage is Stage.CHECKING else "model_unreachable"
            if taken.say is None:
                self.call.end("refused")
            elif await self._connected(self._plan.apology_settings, otherwise):
                self._unspoken = None
                self.call.say_last(taken.say)
        if not isinstance(taken, ports.SessionSettings):
            return
        self._stage = Stage.CONNECTING
        if not await self._connected(taken):
            return
        self._stage = Stage.STARTED
        on_start = self._begin_lifecycle()
        await asyncio.wait({on_start}, timeout=GREETING_WAITS_S)
        greeting = await self._handler.started()
        if greeting is not None:
            self.call.greet(greeting)

    async def _opened(self) -> ports.SessionSettings | ports.Refused | None:
        """None where that took too long, and the call has ended with that."""
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                refused = await self._lifecycle.refusal()
                if refused is not None:
                    return refused
                self._stage = Stage.OPENING
                return await self._handler.open()
        except TimeoutError:
            self.log.error("call_not_opened", within_s=OPEN_WITHIN_S)
            self.call.end("failed")
            return None

    async def _connected(
        self, settings: ports.SessionSettings, otherwise: ports.EndReason = "model_unreachable"
    ) -> bool:
        """False where no model is to be had, and the call has ended with that."""
        try:
            await self._connection.open(settings)
        except ports.ModelUnreachable as reason:
            self.log.error("model_unreachable", reason=str(reason))
            self.call.end(otherwise)
            return False
        return True

    def _begin_lifecycle(self) -> asyncio.Task[None]:
        self._on_start = asyncio.create_task(self._tried(self._lifecycle.began(), "start_not_told"))
        return self._on_start

    # Hooks -----------------------------------------------------------------------------------------

    def start_tool(self, call: FunctionCall) -> None:
        began = self._plan.clock()
        task = self._tools[call.call_id] = asyncio.create_task(self._run_tool(call))
        task.add_done_callback(lambda done: self._tool_ended(call, began, done))

    def stop_other_tools(self) -> tuple[str, ...]:
        calling = asyncio.current_task()
        stopped = {call_id: task for call_id, task in self._tools.items() if task is not calling}
        for task in stopped.values():
            task.cancel()
        return tuple(stopped)

    def notice(self, notice: ports.MachineNotice) -> None:
        match notice:
            case ports.Turn():
                self._turns.put_nowait(notice)
            case ports.CallerSilent() | ports.KeysPressed():
                self._errand(self._handler.notice(notice))
            case ports.ModelStalled():
                self._connection.lost("it does not answer")
            case ModelError():
                self.log.warning(
                    "model_error",
                    code=notice.code,
                    command=notice.event_id,
                    param=notice.param,
                    message=notice.message[:300],
                )

    def transfer(self, target: str) -> None:
        self._errand(self._transfer_line(target))

    def over(self, reason: ports.EndReason) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    # Inside ----------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            await asyncio.sleep(round((now + TICK_S) / TOGETHER_S) * TOGETHER_S - now)
            self.call.tick()
            self._connection.renew_if_due()

    async def _run_tool(self, call: FunctionCall) -> JsonValue:
        try:
            async with asyncio.timeout(TOOL_WITHIN_S):
                if self._on_start is not None:
                    await asyncio.wait({self._on_start})  # it may need what the business answers there
                return await self._handler.run_tool(call.name, call.arguments)
        except TimeoutError:
            return {"error": f"no answer within {TOOL_WITHIN_S:g} s"}

    def _tool_ended(self, call: FunctionCall, began: float, task: asyncio.Task[JsonValue]) -> None:
        """A handler is anybody's code, and the model waits for an answer of every tool."""
        self._tools.pop(call.call_id, None)
        if task.cancelled() and task.cancelling():  # by this side, not by something that the tool waited for
            return
        failure = _failure_of(task)
        if failure is not None:
            self.log.error("tool_failed", tool=call.name, exc_info=failure)
        output: JsonValue = {"error": "the tool failed"} if failure is not None else task.result()
        self.call.tool_finished(call.call_id, output, self._plan.clock() - began)

    def _errand(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._tried(errand, "errand_failed"))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _give_turns(self) -> None:
        while (turn := await self._turns.get()) is not None:
            await self._tried(self._lifecycle.turn(turn), "turn_not_told")
            await self._tried(self._handler.notice(turn), "turn_not_told")

    async def _tried(self, errand: Coroutine[Any, Any, None], event: str) -> None:
        """A handler is anybody's code, and none of it may end a call."""
        [failure] = await asyncio.gather(errand, return_exceptions=True)
        if failure is not None:
            self.log.error(event, exc_info=failure)

    async def _transfer_line(self, target: str) -> None:
        done = False
        try:
            async with asyncio.timeout(TRANSFER_WITHIN_S):
                if self._transfer is None:
                    self.log.error("call_not_transferred", reason="this line cannot")
                else:
                    done = await self._transfer(target)
        except TimeoutError:
            self.log.error("call_not_transferred", reason=f"no answer within {TRANSFER_WITHIN_S:g} s")
        finally:
            self.call.transfer_ended(done)
        if not self.call.is_over:
            failed: ports.HandlerNotice = ports.TransferFailed(target)
            await self._handler.notice(failed)

    # The end ---------------------------------------------------------------------------------------

    async def _end(self, turns: asyncio.Task[None]) -> None:
        reason = self._over.result()
        duration_s = self._plan.clock() - self._began
        if not self._tools and not self.call.awaits_text:
            await self._connection.close()
        self._line.close()
        await asyncio.gather(self._last_tools(), self._last_words())
        await self._connection.close()
        self.call.close()
        self._turns.put_nowait(None)
        await asyncio.wait({turns}, timeout=START_WITHIN_S)
        await _stop(turns)
        ending = ports.Ending(self.has_started, reason, duration_s, self.call.transcript)
        if self._stage is Stage.CONNECTING:
            self._begin_lifecycle()
        ends: list[Coroutine[Any, Any, None]] = []
        if self._stage >= Stage.OPENING:
            ends.append(asyncio.wait_for(self._handler.ended(ending), ENDED_WITHIN_S))
        if self._on_start is not None:
            ends.append(self._end_lifecycle(ending, self._on_start))
        # Neither waits for the other: what the business hears must not be lost with an engine that is away.
        await asyncio.gather(*(self._tried(end, "end_not_told") for end in ends))
        self._plan.metrics.call_ended(self._counted, reason, duration_s)
        self.log.info("call_ended", reason=reason, duration_ms=round(duration_s * 1000))

    async def _last_tools(self) -> None:
        """What a tool has asked of the business may happen whether the caller is there or not: the books are
        to know."""
        tools = tuple(self._tools.values())
        if tools:
            await asyncio.wait(tools, timeout=LAST_TOOLS_WITHIN_S)
            await _stop(*tools)

    async def _last_words(self) -> None:
        """The model writes down what the caller said last."""
        until = self._plan.clock() + LAST_WORDS_WITHIN_S
        # Whoever writes it down may go away as well.
        while self.call.awaits_text and self._connection.serves and self._plan.clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def _end_lifecycle(self, ending: ports.Ending, on_start: asyncio.Task[None]) -> None:
        await asyncio.wait({on_start}, timeout=START_WITHIN_S)
        await _stop(on_start)
        await asyncio.wait_for(self._lifecycle.ended(ending), ENDED_WITHIN_S)


def _failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Of a task that is done and was not stopped: what it waited for may have been cancelled."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def caller_of(started: StreamStarted, now: datetime) -> ports.Caller:
    """Who calls, by a stream's parameters. `phone` is the first number among those that lines use for it; one
    that is withheld is nowhere."""
    named = started.parameters
    phone = next(filter(None, (caller_number(named.get(name)) for name in PHONE_PARAMETERS)), None)
    parameters = {
        name: value
        for name, value in named.items()
        if name != CALL_ID_PARAMETER and (name not in PHONE_PARAMETERS or caller_number(value))
    }
    call_id = given_call_id(started) or uuid.uuid4().hex
    return ports.Caller(call_id, phone, parameters, now, started.carrier_call_id)


def given_call_id(started: StreamStarted) -> str | None:
    """The id that the call had when it was offered; None for a stream without one."""
    offered = started.parameters.get(CALL_ID_PARAMETER, "")
    return offered if _CALL_ID.fullmatch(offered) else None
