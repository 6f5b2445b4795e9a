"""A persona on the telephone: the voice agent as its callers meet it, in virtual time.

    persona → fake line → bridge, runner, call's machine → Realtime double ← the agent's part
                          flow handler ↔ the engine

The model's part and the engine are outside of virtual time: whoever asks them waits, and no time passes in
the call. So an engine may have threads and sockets and a model may think for long, and a recorded call is the
same each time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import httpx2
import orjson

from adapters.outbound.fake import ScriptedOutbound
from adapters.outbound.policy import AllowList
from channels.engine_client.tools import CHANGE_TASK
from channels.voice import bridge, metrics, replay, runner
from channels.voice.call import ports
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.config.loader import load_config
from channels.voice.config.models import FlowSession, VoiceConfig
from channels.voice.flow.opening import FlowCalls
from channels.voice.testing import fake_twilio, realtime_session, sockets
from channels.voice.testing.agent_part import AgentPart, Line
from channels.voice.testing.fake_response import Pace
from flow_engine.testing.expectations import Outcome
from flow_engine.testing.simulated_user import REMEMBER, UNUSABLE, result_of
from flow_engine.testing.simulation import AgentAction, OnThePhone, refusal_of
from flow_engine.values import JsonValue

ENGINE_URL: Final = "http://127.0.0.1:8080"
"""Nobody listens there: the engine is asked within the process."""
OPERATOR: Final = "+390000000000"
"""Where human tasks transfer a call to. The fake line always gets through."""

CALM_S: Final = 0.8
"""The agent has nothing to add when it has been quiet for so long."""
PATIENCE_S: Final = 30.0
ENDED_WITHIN_S: Final = 120.0
LOOK_S: Final = 0.02
CUT_AFTER_MS: Final = 300.0
"""Of an answer have been heard when a caller hangs up in the midst of it."""


class Engine(Protocol):
    """The flow engine of a simulated call. Its methods return when it is done."""

    @property
    def transport(self) -> httpx2.AsyncBaseTransport: ...

    def remember(self, action: AgentAction) -> Outcome:
        """Write values, as a server of tools does."""
        ...

    def changed_task(self, action: AgentAction) -> Outcome:
        """What became of the change of task that was asked for last."""
        ...


@dataclass(frozen=True, slots=True)
class CallOrder:
    """One call. `config` is the voice agent's, JSON; `parameters` are the line's. `says` returns the caller's
    next turn, None when there is none. `began` is aware."""

    config: bytes
    parameters: Mapping[str, str]
    phone: OnThePhone
    says: Callable[[], Line | None]
    agent: AgentPart
    engine: Engine
    began: datetime


def call_by_persona(order: CallOrder) -> Sequence[str]:
    """Returns when the call and everything that belongs to its end is over: what did not go as the protocols
    have it, and what the agent failed to answer. Lines. For a thread of its own: nothing else may run in
    it. Raises ModelFailed."""
    return replay.run_in_virtual_time(_Call(order).run())


def agent_config(version_id: str, tenant: Mapping[str, object], language: str) -> bytes:
    """A voice agent for a flow's version, JSON."""
    session = {
        "mode": "flow",
        "engine_url": ENGINE_URL,
        "version": version_id,
        "tenant": tenant,
        "transfer_to": OPERATOR,
    }
    agent = {"id": "simulated", "name": "simulated", "type": "flow", "language": language}
    return orjson.dumps({"version": "2.0", "agent": agent, "session": session})


class _Notices:
    """Implements `MemoryNotices` for one call."""

    def __init__(self) -> None:
        self._changed: Callable[[], None] | None = None

    async def follow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def unfollow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        self._changed = None

    def changed(self) -> None:
        if self._changed is not None:
            self._changed()


class _Answering:
    """Implements `CallHandler` over the flow's own: what servers of tools would have found is written by the
    engine's side, and every outcome is seen."""

    def __init__(self, flow: ports.CallHandler, order: CallOrder, notices: _Notices) -> None:
        self.running = 0
        """Calls of tools."""
        self._flow = flow
        self._agent, self._engine = order.agent, order.engine
        self._notices = notices

    async def open(self) -> ports.SessionSettings | ports.Refused:
        return await self._flow.open()

    async def started(self) -> str | None:
        return await self._flow.started()

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        if name not in (CHANGE_TASK, REMEMBER):
            return await self._flow.run_tool(name, arguments)
        action = self._agent.called
        if action is None:
            return dict(UNUSABLE)
        self.running += 1
        try:
            if name == REMEMBER:
                outcome = self._engine.remember(action)
                answer: JsonValue = dict(result_of(outcome))
                self._notices.changed()
            else:
                answer = await self._flow.run_tool(name, arguments)
                outcome = self._engine.changed_task(action)
        finally:
            self.running -= 1
        code = refusal_of(outcome)
        self._agent.did(action.model_copy(update={"refused": code}))
        return answer

    async def notice(self, notice: ports.HandlerNotice) -> None:
        await self._flow.notice(notice)

    async def ended(self, ending: ports.Ending) -> None:
        await self._flow.ended(ending)


class _LineEnd(bridge.LineSocket):
    """The agent's end of a line within the process."""

    def __init__(self, calls: bridge.Bridge, line: sockets.LocalSocket) -> None:
        super().__init__(calls)
        self._line = line

    def send(self, message: bytes) -> None:
        self._line.deliver(message)

    def close(self) -> None:
        self._line.close()

    def drop(self) -> None:
        self._line.drop()


class _Call:
    def __init__(self, order: CallOrder) -> None:
        self._order = order
        self._agent = order.agent
        self._failures: list[str] = []
        self._sessions: list[realtime_session.RealtimeSession] = []
        self._numbers = itertools.count(1)
        self._answering: _Answering | None = None
        self._notices = _Notices()

    async def run(self) -> Sequence[str]:
        config = load_config(self._order.config, builders=()).config
        if not isinstance(config.session, FlowSession):
            raise TypeError("the config of a simulated call is that of a flow")
        flows = FlowCalls(
            *(config, config.session),
            api_key=None,
            allow=AllowList(),
            now=self._wall,
            notices=self._notices,
            transport=self._order.engine.transport,
        )
        plan = self._plan(config, flows.open_call(ScriptedOutbound({})))
        calls = bridge.Bridge(lambda tap: plan, TwilioStreams(), transfer=self._transfer)
        line = fake_twilio.FakeTwilioCall(
            lambda receive: sockets.LocalSocket(receive, lambda socket: _LineEnd(calls, socket)),
            parameters=self._order.parameters,
        )
        try:
            async with line:
                await self._talk(line)
                await asyncio.wait_for(calls.drained(), ENDED_WITHIN_S)
        except TimeoutError:
            self._failures.append(f"the call has not ended within {ENDED_WITHIN_S:g} s")
        finally:
            await calls.close()
            await flows.aclose()
            for session in self._sessions:
                session.stop()
                await session.stopped()
        if self._agent.failed is not None:
            raise self._agent.failed
        wrong = [f"{e.code}: {e.message}" for each in self._sessions for e in each.errors] + line.mistakes
        return (*self._failures, *(f"not as the protocol has it: {mistake}" for mistake in wrong))

    def _plan(self, config: VoiceConfig, opened: ports.OpenCall) -> runner.CallPlan:
        def answered(caller: ports.Caller, seat: ports.CallSeat) -> ports.AnsweredCall:
            answer = opened(caller, seat)
            self._answering = _Answering(answer.handler, self._order, self._notices)
            return ports.AnsweredCall(self._answering, answer.lifecycle)

        return runner.CallPlan(
            connect=self._connect,
            open_call=answered,
            apology_settings=config.settings(),
            clock=asyncio.get_running_loop().time,
            wall=self._wall,
            metrics=metrics.Counting(),
            max_duration_s=config.max_duration_s,
            agent_id=config.agent.id,
        )

    async def _talk(self, line: fake_twilio.FakeTwilioCall) -> None:
        phone, said = self._order.phone, 0
        begins = self._order.says()
        if begins is not None and begins.words is None:
            self._agent.turn(begins)
            begins = None
        await self._answered(line, 0, "the call")
        while self._goes_on(line) and (turn := begins or self._order.says()) is not None:
            begins, asked = None, self._agent.asked
            self._agent.turn(turn)
            speaking = line.say(turn.words or "…")
            gone = asyncio.ensure_future(line.socket.closed.wait())
            await asyncio.wait({speaking, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            said += 1
            if said == phone.hangs_up_after_turns:
                await self._until(line, lambda asked=asked: self._speaks(line, asked, CUT_AFTER_MS))
                break
            await self._answered(line, asked, f"turn {said}")
            if turn.is_last:
                break
        if line.socket.is_open:
            await line.hang_up()

    async def _answered(self, line: fake_twilio.FakeTwilioCall, asked: int, what: str) -> None:
        """Until the agent has said all that it has to say, or so much that the caller speaks into it."""
        into_ms = self._order.phone.interrupts_after_ms

        def is_done() -> bool:
            answering = self._answering is not None and self._answering.running > 0
            if self._agent.asked <= asked or self._agent.has_more or answering:
                return False
            return self._is_calm(line) or (into_ms is not None and self._speaks(line, asked, into_ms))

        if not await self._until(line, is_done):
            self._failures.append(f"the agent has not answered {what} within {PATIENCE_S:g} s")

    async def _until(self, line: fake_twilio.FakeTwilioCall, condition: Callable[[], bool]) -> bool:
        """Also when the line is closed. False when it takes too long."""
        now = asyncio.get_running_loop().time
        until = now()
        while self._goes_on(line) and not condition():
            if now() - max(until, self._last_heard(line)) > PATIENCE_S:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _goes_on(self, line: fake_twilio.FakeTwilioCall) -> bool:
        return line.socket.is_open and self._agent.failed is None

    def _last_heard(self, line: fake_twilio.FakeTwilioCall) -> float:
        line.playout.advance(asyncio.get_running_loop().time())
        return line.playout.heard[-1].until if line.playout.heard else 0.0

    def _is_calm(self, line: fake_twilio.FakeTwilioCall) -> bool:
        session = self._agent.session
        if session is None or session.is_responding:
            return False
        now = asyncio.get_running_loop().time()
        moments = [self._last_heard(line), *(log[-1].at for log in (session.events, session.commands) if log)]
        return line.playout.waiting_ms(now) == 0 and now - max(moments) >= CALM_S

    def _speaks(self, line: fake_twilio.FakeTwilioCall, asked: int, heard_ms: float) -> bool:
        """Whether the agent is speaking, and so much of it was heard."""
        if self._agent.asked <= asked or not line.playout.waiting_ms(asyncio.get_running_loop().time()):
            return False
        heard = line.playout.heard[-1] if line.playout.heard else None
        return heard is not None and heard.ends_ms >= heard_ms

    async def _connect(
        self, settings: ports.SessionSettings, side: ports.RealtimeListener
    ) -> ports.ModelLink:
        def opened(send: Callable[[bytes], None]) -> replay.PlayedModel:
            session = realtime_session.RealtimeSession(
                send,
                model=settings.model,
                script=self._agent,
                pace=Pace(),
                numbers=lambda: next(self._numbers),
            )
            self._sessions.append(session)
            self._agent.session = session
            return session

        return replay.played_link(opened, side)

    async def _transfer(self, carrier_call_id: str | None, target: str) -> None:
        """The fake carrier gets through to everybody."""

    def _wall(self) -> datetime:
        return self._order.began + timedelta(seconds=asyncio.get_running_loop().time())
