"""Sessions and who works on them (C12, C14): one answer at a time, by one replica, whatever becomes of it.

1. A message is queued, and any replica may take the session's lease and answer it. The lease is renewed while
   the answer is made; all that is written needs it.
2. A message stays in the queue until its answer is finished. When its replica dies another one takes over: a
   message of which nothing was shown is answered, one of which something was is ended as interrupted.
3. Cancellations and confirmations reach the holder over the bus, from whichever replica the client is on. It
   ends a message that waits at once, and skips it in its turn; who takes over reads in the log what has
   ended.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast
from uuid import uuid4

import orjson
import structlog

from channels.chat.answer import AnswerRequest
from channels.chat.answering import Answering
from channels.chat.flow_agent import FlowAgents
from channels.chat.frames import AnswerFrames, Pace
from channels.chat.state import Aside, SessionState, Turn, item_of, take
from channels.chat.wording import phrase
from flow_engine.errors import CallTheOperator, FlowEngineError, LookElsewhere, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports import chat
from flow_engine.ports.telemetry import Observer, Tracing, Unobserved, Untraced

RENEW_S: Final = chat.LEASE_S / 4
SWEEP_S: Final = 2.0
END_WITHIN_S: Final = 20.0
POLL_S: Final = 0.05
MOST_ENDING: Final = 100
"""Cancellations that a session looks into at once; a line has five messages."""

log: Any = structlog.get_logger("flow_engine.chat")


class SessionStore(
    chat.ChatSessions, chat.ChatQueue, chat.ChatLine, chat.ChatFrames, chat.IdleSessions, Protocol
):
    """What replicas share but the bus."""


@dataclass(slots=True)
class _Orders:
    """The orders that the holder of a session gets while it works. `turn` is the id whose turn it is or was
    last, `end_waiting` ends a message that may wait, `ended` are those that have ended before their turn."""

    end_waiting: Callable[[str], Coroutine[Any, Any, None]]
    turn: str = ""
    ended: set[str] = field(default_factory=set[str])
    ending_waiting: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    cancelled: set[str] = field(default_factory=set[str])
    current: tuple[str, asyncio.Task[None]] | None = None
    ending: bool = False
    waiting: dict[str, asyncio.Future[bool]] = field(default_factory=dict[str, "asyncio.Future[bool]"])

    def take(self, order: bytes) -> None:
        told = cast("Mapping[str, str]", orjson.loads(order))
        if told["type"] == "confirm":
            answer = self.waiting.get(told["call"])
            if answer is not None and not answer.done():
                answer.set_result(told["decision"] == "yes")
            return
        self.ending = self.ending or told["type"] == "end"
        cancelled = told.get("id", "")
        if told["type"] == "cancel" and cancelled not in (self.turn, *self.cancelled):
            if len(self.ending_waiting) == MOST_ENDING:
                return
            self.ending_waiting[cancelled] = asyncio.create_task(self.end_waiting(cancelled))
        self.cancelled.add(cancelled)
        if self.current is not None and (self.ending or self.current[0] in self.cancelled):
            self.cancelled.add(self.current[0])
            self.current[1].cancel()

    async def confirmed(self, call: str, within_s: float) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting[call] = answer
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            del self.waiting[call]


class Sessions:
    """`idle_s` is after how many seconds without a message a session is ended."""

    def __init__(
        self,
        store: SessionStore,
        bus: chat.ChatBus,
        answering: Answering,
        flows: FlowAgents,
        *,
        idle_s: float,
        observer: Observer | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.store = store
        self.bus = bus
        self._answering = answering
        self._flows = flows
        self._idle_s = idle_s
        self.observer = observer or Unobserved()
        self._tracing = tracing or Untraced()
        self._working: set[asyncio.Task[None]] = set()
        self._pace = Pace()

    async def create(self, tenant_id: str, user: str, language: str | None) -> chat.SessionRef:
        ref = chat.SessionRef(tenant_id, f"s-{uuid4().hex}")
        await self.store.create(ref, SessionState(user=user, language=language).written())
        return ref

    async def state(self, ref: chat.SessionRef) -> SessionState:
        """Read from the JSON that is stored. Raises LookElsewhere `session_unknown`."""
        text = await self.store.load(ref)
        if text is None:
            raise LookElsewhere("session_unknown", f"there is no session {ref.session_id!r}")
        return SessionState.read(text)

    async def submit(self, ref: chat.SessionRef, message_id: str, content: str) -> chat.Put:
        """Raises LookElsewhere `session_unknown`, also for a forgotten one whose client is still there: what
        was put there nobody could answer."""
        await self.state(ref)
        item = {"kind": "message", "id": message_id, "content": content}
        outcome = await self.store.put(ref, message_id, orjson.dumps(item))
        self.observer.count("chat_messages", outcome=outcome)
        if outcome == "queued":
            await self._work(ref, message_id)
        return outcome

    async def cancel(self, ref: chat.SessionRef, message_id: str) -> None:
        await self._order(ref, type="cancel", id=message_id)

    async def confirm(self, ref: chat.SessionRef, call: str, decision: str) -> None:
        await self._order(ref, type="confirm", call=call, decision=decision)

    async def keep(self, ref: chat.SessionRef, aside: Aside) -> None:
        """Behind the messages that wait, however many, since whoever answers one writes the session."""
        await self.store.put(ref, f"task-{uuid4().hex}", orjson.dumps(item_of(aside)), bounded=False)
        await self._work(ref)

    async def end(self, ref: chat.SessionRef, reason: str) -> None:
        """The session and its flow's contact; an answer that is being made is cancelled. Done when this
        returns; a second time does nothing. Raises LookElsewhere `session_unknown`, RetryLater."""
        if (await self.state(ref)).ended:
            return
        await self._order(ref, type="end")
        item = orjson.dumps({"kind": "end", "id": f"end-{uuid4().hex}", "reason": reason})
        deadline = asyncio.get_running_loop().time() + END_WITHIN_S
        while await self.store.put(ref, f"end-{uuid4().hex}", item) == "busy":
            await _pause(deadline)
        await self._work(ref)
        while not (await self.state(ref)).ended:
            await _pause(deadline)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """While this is open, sessions that another replica has left are taken over, and idle ones ended."""
        over = asyncio.Event()
        sweeping = asyncio.create_task(self._sweep(over))
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(sweeping, return_exceptions=True)  # not cancelled: it has idle ones to end
            for task in tuple(self._working):
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    # Work -------------------------------------------------------------------------------------------

    async def _order(self, ref: chat.SessionRef, **order: str) -> None:
        await self.bus.publish(chat.orders_topic(ref), orjson.dumps(order))

    async def _work(self, ref: chat.SessionRef, put: str | None = None) -> None:
        """Take the lease and answer, unless somebody else does. Orders are heard when this returns. `put` is
        the message that was put into the queue just now."""
        holder = uuid4().hex
        orders = _Orders(lambda message_id: self._end_waiting(ref, holder, message_id, orders))
        listener = orders.take
        await self.bus.listen(chat.orders_topic(ref), listener)
        taken = False
        try:
            taken = await self.store.hold(ref, holder)
        finally:
            if not taken:
                await self.bus.unlisten(chat.orders_topic(ref), listener)
        if not taken:
            return

        async def work() -> None:
            ids = {"tenant_id": ref.tenant_id, "session_id": ref.session_id}
            structlog.contextvars.bind_contextvars(**ids)  # of this task, and of what it starts
            try:
                draining = asyncio.current_task()
                renewing = asyncio.create_task(self._renew(ref, holder, cast("asyncio.Task[None]", draining)))
                try:
                    is_known = False
                    while (head := await self.store.head(ref, holder)) is not None:
                        item = cast("Mapping[str, str]", orjson.loads(head))
                        if not is_known and item.get("id") != put:  # the queue was another holder's
                            orders.ended |= {
                                frame["id"] for frame in await self._frames(ref) if frame["final"]
                            }
                        is_known, orders.turn = True, item.get("id", "")
                        state = await self._one(ref, holder, item, orders)
                        await self.store.done(ref, holder, state.written())
                except chat.LeaseLost:
                    log.warning("lease_lost")
                except FlowEngineError as error:
                    # The message stays queued; whoever looks for abandoned sessions next goes on with it.
                    log.error("answer_postponed", code=error.code)
                finally:
                    beside = (renewing, *orders.ending_waiting.values())
                    for each in beside:
                        each.cancel()
                    await asyncio.gather(*beside, return_exceptions=True)
            finally:
                await self.bus.unlisten(chat.orders_topic(ref), listener)

        task = asyncio.create_task(work())
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _renew(self, ref: chat.SessionRef, holder: str, draining: asyncio.Task[None]) -> None:
        lost_at = asyncio.get_running_loop().time() + chat.LEASE_S
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(RetryLater, CallTheOperator):
                if not await self.store.hold(ref, holder):
                    break
                lost_at = asyncio.get_running_loop().time() + chat.LEASE_S
            if asyncio.get_running_loop().time() >= lost_at:
                break
        log.warning("lease_lost")
        draining.cancel()

    async def _one(
        self, ref: chat.SessionRef, holder: str, item: Mapping[str, str], orders: _Orders
    ) -> SessionState:
        """The state that the message leaves, once it is answered. Raises LeaseLost, RetryLater."""
        state = await self.state(ref)
        if item["kind"] == "end":
            await self._flows.end(ref.tenant_id, state, item["reason"])
            state.ended, state.flow, state.question = True, None, None
            return state
        if item["kind"] == "task":
            take(state, item)
            return state
        frames = AnswerFrames(self.store, ref, item["id"], holder, pace=self._pace)
        if state.ended and not await self._has_ended(item["id"], orders):
            await frames.error("session_ended", "this session has ended; say hello without one")
            await frames.finish("refused")
            return state
        if state.answering == item["id"] and not await self._resumable(ref, state, frames, item["id"]):
            state.answering = None
            return state
        if state.answering != item["id"]:
            state.add(Turn(role="user", content=item["content"], id=item["id"]))
            if await self._has_ended(item["id"], orders):
                return state
            state.answering = item["id"]
            await self.store.save(ref, state.written(), holder)

        async def keep() -> None:
            await self.store.save(ref, state.written(), holder)

        request = AnswerRequest(ref, item["id"], item["content"], state, frames, orders.confirmed, keep)
        with self._tracing.span("chat answer", "consumer"):
            await self._answer(request, orders)
        self.observer.count("chat_answers", state=frames.final_state or "unfinished")
        state.answering = None
        return state

    async def _frames(self, ref: chat.SessionRef) -> Sequence[Mapping[str, Any]]:
        return [orjson.loads(logged.frame) for logged in await self.store.after(ref, 0)]

    async def _end_waiting(self, ref: chat.SessionRef, holder: str, message_id: str, orders: _Orders) -> None:
        """Ends a message in the line as cancelled. Where that fails it is ended in its turn."""
        with contextlib.suppress(chat.LeaseLost, RetryLater):
            line = [cast("Mapping[str, str]", orjson.loads(item)) for item in await self.store.waiting(ref)]
            is_waiting = any(item["kind"] == "message" and item["id"] == message_id for item in line)
            if not is_waiting:
                del orders.ending_waiting[message_id]
                orders.cancelled.discard(message_id)
            elif message_id not in orders.ended:
                frames = AnswerFrames(self.store, ref, message_id, holder)
                await frames.finish("refused", {"event": "cancelled"})
                orders.ended.add(message_id)
                self.observer.count("chat_answers", state="refused")

    async def _has_ended(self, message_id: str, orders: _Orders) -> bool:
        """Whether the message was ended while it waited."""
        ending = orders.ending_waiting.get(message_id)
        if ending is not None:
            await asyncio.wait({ending})
        return message_id in orders.ended

    async def _resumable(
        self, ref: chat.SessionRef, state: SessionState, frames: AnswerFrames, message_id: str
    ) -> bool:
        """Whether an answer that another replica began may be gone on with: nothing of it was shown, or all
        that it needs is a person's decision on its text. Otherwise it has ended, or is ended here."""
        own = [frame for frame in await self._frames(ref) if frame["id"] == message_id]
        flow = state.flow
        is_held = flow is not None and flow.held is not None and flow.held.message == message_id
        if any(frame["final"] for frame in own):
            if is_held and flow is not None:
                flow.held = None
                text = "".join(frame["content"] for frame in own if frame["type"] == "dialogue")
                state.add(Turn(role="assistant", content=text, id=message_id, agent=flow.agent))
        elif not own or is_held:
            return True
        else:
            await frames.error("interrupted", phrase("interrupted", state.language))
            await frames.finish("refused", {"event": "interrupted"})
        return False

    async def _answer(self, request: AnswerRequest, orders: _Orders) -> None:
        """Until it is whole, cancelled, or failed by a bug, which ends it too."""
        if request.id not in orders.cancelled and not orders.ending:
            task = asyncio.create_task(self._answering.answer(request))
            orders.current = (request.id, task)
            try:
                await asyncio.wait({task})
            finally:
                orders.current = None
                if not task.done():  # this replica stops, or has lost the lease
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    await request.frames.aclose()
            error = None if task.cancelled() else task.exception()
            if isinstance(error, chat.LeaseLost | RetryLater):
                raise error
            if error is not None:
                log.error("bug", exc_info=error)
                await request.frames.error("internal_error", phrase("failed", request.state.language))
                await self._answering.finish(request, "refused", "failed")
        await self._answering.finish(request, "refused", "cancelled")
        await self._flows.people.give_up(request.ref.tenant_id, request.state)

    async def _sweep(self, over: asyncio.Event) -> None:
        outage = Outage(log, "sessions_not_swept", "sessions_swept_again")
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), SWEEP_S)
                break
            try:
                for ref in await self.store.abandoned():
                    await self._work(ref)
                for ref in await self.store.idle(self._idle_s):
                    await self._end_idle(ref)
            except (RetryLater, CallTheOperator) as away:
                outage.met(away)
            else:
                outage.ended()

    async def _end_idle(self, ref: chat.SessionRef) -> None:
        """Not one that has ended, or is forgotten: what is put there would have it kept for another day."""
        try:
            is_over = (await self.state(ref)).ended
        except (LookElsewhere, CallTheOperator) as unusable:
            log.info("session_not_ended", session_id=ref.session_id, code=unusable.code)
            is_over = True
        if is_over:
            await self.store.forget(ref)
            return
        item = orjson.dumps({"kind": "end", "id": "", "reason": "idle"})
        await self.store.put(ref, f"end-{uuid4().hex}", item)
        await self._work(ref)


async def _pause(deadline: float) -> None:
    """Raises RetryLater `session_busy` when the deadline has passed, by the loop's clock."""
    if asyncio.get_running_loop().time() >= deadline:
        raise RetryLater("session_busy", "the session did not end in time")
    await asyncio.sleep(POLL_S)
