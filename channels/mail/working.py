"""Doing the runs that are due: taken one by one under a lease, given back when they cannot go on (M1).

1. Whoever looks takes what is queued, and what a killed process left: at most `at_once` at a time.
2. The lease is renewed while the work goes on. A run that another has taken over is let go of.
3. A server that is away delays a run, ever longer, and never ends it. An attempt that failed for another
   reason, or whose process was killed, counts: after `attempts` of them the run ends with `error`.
4. What a person decides, and what another process left, is found within `poll_s`.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from channels.engine_client import client
from channels.mail import delivery, flow, loading, message, ports, processing, routing
from channels.mail.metrics import MailMetrics
from channels.mail.runs import HeldRun, RunStore, RunTakenOver, StoredRun, pause_after
from channels.mail.state import MailboxState
from flow_engine.errors import FlowEngineError, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel
from flow_engine.ports.outbound import OutboundSender
from flow_engine.ports.records import position_at

GONE: Final = "the mail is no longer in the mailbox"
FORGET_EVERY: Final = timedelta(minutes=10)
COUNT_EVERY: Final = timedelta(seconds=5)
WAITS_AT_MOST: Final = timedelta(days=30)
"""From when its mail was taken in: with a run that waits for a person the mail's text is kept."""
UNDECIDED: Final = f"nobody has decided within {WAITS_AT_MOST.days} days"
PAGE: Final = 100
"""Runs that are read at a time."""


log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What all runs share. `mailboxes` are by name; `monotonic` gives seconds."""

    loaded: loading.LoadedConfig
    model: LanguageModel
    overrides_model: bool
    mailboxes: Mapping[str, delivery.MailboxParts]
    flows: flow.FlowConversations
    outbound: OutboundSender
    clock: Clock
    monotonic: Callable[[], float] = time.monotonic


class MailAgent:
    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts

    async def process(self, held: HeldRun) -> ports.RunOutcome:
        """One run, as far as it goes: seconds to minutes. Raises RetryLater, CallTheOperator where a server
        or the engine cannot be used, RunTakenOver."""
        row, work, parts = held.row, held.work, self._parts
        shared = parts.mailboxes.get(row.mailbox)
        if shared is None:
            return ports.RunOutcome(
                "error", work.progress, error=f"the config has no mailbox {row.mailbox!r}"
            )
        most = parts.loaded.config.limits.max_message_bytes
        mailbox = delivery.ImapMailbox(shared, work.place, row.message_id, work.digest, most)
        found = await mailbox.raw()
        if found is None:
            await self.leave(held)
            return ports.RunOutcome("error", work.progress, error=GONE)

        def judged() -> tuple[message.ParsedMail, routing.Judgement]:
            mail = message.parse_mail(found[0], size=found[1], most_bytes=most)
            return mail, routing.judge(parts.loaded.config, shared.box, mail)

        mail, judgement = await asyncio.to_thread(judged)
        async with AsyncExitStack() as stack:
            run_parts = processing.RunParts(
                loaded=parts.loaded,
                box=shared.box,
                model=parts.model,
                overrides_model=parts.overrides_model,
                mailbox=mailbox,
                journal=held,
                allowance=shared.state,
                outbound=parts.outbound,
                clock=parts.clock,
                monotonic=parts.monotonic,
                flow=await self._contact(held, mail, judgement, stack),
            )
            run = processing.MailRun(held.id, mail, judgement, work.progress, work.decision)
            return await processing.process_message(run, run_parts)

    async def decision(self, run: StoredRun) -> ports.Decision | None:
        """What a person has decided at the engine on the reply that the run waits with; None while nobody
        has, or it waits for something else. Raises RetryLater, CallTheOperator."""
        held, row = run.work.progress.held, run.row
        profile = self._parts.loaded.config.agent.profiles.get(row.profile or "")
        if held is None or held.approval is None or profile is None or profile.flow is None:
            return None
        contact = client.Contact(row.conversation_id or "", run.id)
        return await self._parts.flows.decision(profile.flow, contact, held.approval)

    async def _contact(
        self, held: HeldRun, mail: message.ParsedMail, judgement: routing.Judgement, stack: AsyncExitStack
    ) -> ports.FlowContact | None:
        """None for a profile without a flow, and for mail that is never answered."""
        profile = self._parts.loaded.config.agent.profiles.get(judgement.profile or "")
        if profile is None or profile.flow is None or judgement.automatic is not None:
            return None
        sender = mail.sender
        facts = {"email": sender.email, "name": sender.name} if sender is not None else {}
        conversation_id = flow.conversation_of(held.row.mailbox, mail.thread or held.id)
        if held.row.conversation_id is None:  # for who ends it when no attempt has come to its end
            await held.change({}, conversation_id=conversation_id)
        run = flow.FlowRun(held.id, conversation_id, {**facts, "subject": mail.subject})
        return await stack.enter_async_context(self._parts.flows.contact(profile.flow, run))

    async def leave(self, held: HeldRun) -> None:
        """The contact of a run that ends without having been worked on to its end. Raises RetryLater,
        CallTheOperator."""
        profile = self._parts.loaded.config.agent.profiles.get(held.row.profile or "")
        if profile is None or profile.flow is None or held.row.conversation_id is None:
            return
        run = flow.FlowRun(held.id, held.row.conversation_id, {})
        async with self._parts.flows.contact(profile.flow, run) as contact:
            await contact.leave(None)


@dataclass(frozen=True, slots=True)
class WorkTuning:
    """Times in seconds. `stop_within_s`: so long a stopping process waits for what it holds. The texts of
    runs that ended are forgotten after `bodies_kept`."""

    lease_s: float = 15.0
    at_once: int = 16
    attempts: int = 10
    poll_s: float = 1.0
    stop_within_s: float = 10.0
    bodies_kept: timedelta = timedelta(days=30)


class RunWorker:
    """`states` are those of all mailboxes."""

    def __init__(
        self,
        runs: RunStore,
        agent: MailAgent,
        tuning: WorkTuning,
        metrics: MailMetrics,
        states: Sequence[MailboxState],
    ) -> None:
        self._runs = runs
        self._agent = agent
        self._states = states
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._tuning = tuning
        self._metrics = metrics
        self._awake = asyncio.Event()
        self._working: dict[str, asyncio.Task[None]] = {}
        self._forgot_at: datetime | None = None
        self._counted_at: datetime | None = None

    def wake(self) -> None:
        """There is something to do."""
        self._awake.set()

    async def work(self, stopping: asyncio.Event) -> None:
        """Until `stopping` is set; then what is held is finished within `stop_within_s` seconds, or given
        back. Errors of a run or of the store are logged and never raised, those of the store once each."""
        stop = asyncio.create_task(stopping.wait())
        outage = Outage(log, "runs_not_read", "runs_read_again")
        try:
            while not stopping.is_set():
                self._awake.clear()
                try:
                    await self._take()
                    now = self._runs.clock.now()
                    if self._forgot_at is None or now - self._forgot_at >= FORGET_EVERY:
                        self._forgot_at = now
                        await self._runs.forget_bodies(now - self._tuning.bodies_kept)
                        for state in self._states:
                            await state.prune()
                except FlowEngineError as error:
                    outage.met(error)
                else:
                    outage.ended()
                # Some chance, so that processes do not all look at the same moment.
                pause_s = self._tuning.poll_s * random.uniform(0.5, 1.0)  # noqa: S311
                awake = asyncio.create_task(self._awake.wait())
                await asyncio.wait({awake, stop}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                awake.cancel()
        finally:
            stop.cancel()
            for watching in self._watching.values():
                watching.cancel()
            await asyncio.gather(*self._watching.values(), return_exceptions=True)
            if self._working:
                _, left = await asyncio.wait(self._working.values(), timeout=self._tuning.stop_within_s)
                for task in left:
                    task.cancel()
                if left:
                    await asyncio.wait(left)

    async def _take(self) -> None:
        """Start work on everything that is due, as far as there is room. Runs behind that are looked at, and
        all are counted, every `COUNT_EVERY`: there may be as many as there are mails."""
        now, counts = self._runs.clock.now(), Counter[str]()
        counts_all = self._counted_at is None or now - self._counted_at >= COUNT_EVERY
        run: StoredRun | None = None
        while page := await self._runs.under_way(run, PAGE):
            for run in page:
                counts[run.row.status] += 1
                if run.row.status == "waiting" and run.work.progress.held and run.id not in self._watching:
                    self._watching[run.id] = asyncio.create_task(self._look_after(run))
                has_room = len(self._working) < self._tuning.at_once
                is_over = run.row.status == "waiting" and run.position <= position_at(now - WAITS_AT_MOST)
                is_due = is_over or run.is_due(now.timestamp())
                if has_room and run.id not in self._working and is_due:
                    held = await self._runs.claim(run, self._tuning.lease_s)
                    if held is not None:
                        self._working[held.id] = asyncio.create_task(self._run(held, is_over=is_over))
            if not counts_all and len(self._working) >= self._tuning.at_once:
                return
        self._counted_at = now
        self._metrics.under_way(counts)

    async def _look_after(self, run: StoredRun) -> None:
        """Never raises; an engine that is away is asked again."""
        try:
            decision = await self._agent.decision(run)
            if decision is not None:
                await self._runs.decide(run, decision)
                self._awake.set()
        except FlowEngineError as error:
            log.warning("approval_not_read", run=run.id, code=error.code)
        finally:
            del self._watching[run.id]

    async def _run(self, held: HeldRun, *, is_over: bool) -> None:
        """Never raises; a bug is logged and counts as a failed attempt."""
        with structlog.contextvars.bound_contextvars(run=held.id, mailbox=held.row.mailbox):
            try:
                await (self._given_up(held, UNDECIDED) if is_over else self._attempt(held))
            except RunTakenOver:
                log.warning("run_taken_over")
            except FlowEngineError as away:  # the store: the lease ends by itself
                log.warning("run_not_given_back", code=away.code)
            finally:
                del self._working[held.id]
                self._awake.set()

    async def _attempt(self, held: HeldRun) -> None:
        if held.work.attempts > self._tuning.attempts:
            await self._given_up(held, "every attempt was ended")
            return
        await held.event(ports.MailEvent("received", facts={"route": held.row.route, "job": held.row.job}))
        work = asyncio.create_task(self._agent.process(held))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=self._tuning.lease_s / 3)
                if not work.done():
                    try:
                        await held.renew()
                    except RetryLater:  # nobody can take it over either
                        log.warning("lease_not_renewed")
        except asyncio.CancelledError:
            await self._ended(work)
            await held.give_back(0.0)
            raise
        finally:
            await self._ended(work)
        match work.exception():
            case None:
                await self._finish(held, work.result())
            case RunTakenOver() as taken:
                raise taken
            case FlowEngineError() as away if isinstance(away, RetryLater) or away.code in ports.DELAYING:
                log.warning("run_delayed", code=away.code, detail=away.detail, delays=held.work.delays)
                await held.give_back(pause_after(held.work.delays), delayed=True)
            case failure:
                await self._failed(held, failure)

    async def _ended(self, work: asyncio.Task[ports.RunOutcome]) -> None:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # read, so that asyncio does not report it as forgotten

    async def _failed(self, held: HeldRun, failure: BaseException) -> None:
        reason = str(failure) if isinstance(failure, FlowEngineError) else type(failure).__name__
        if isinstance(failure, FlowEngineError):
            log.warning("run_failed", code=failure.code)
        else:
            log.error("run_failed", exc_info=failure)
        if held.work.attempts >= self._tuning.attempts:
            await self._given_up(held, reason)
        else:
            await held.give_back(pause_after(held.work.attempts), failed=True)

    async def _given_up(self, held: HeldRun, reason: str) -> None:
        try:
            await self._agent.leave(held)
        except FlowEngineError as error:
            log.warning("contact_not_ended", code=error.code)
        await self._finish(held, ports.RunOutcome("error", held.work.progress, error=reason))

    async def _finish(self, held: HeldRun, outcome: ports.RunOutcome) -> None:
        await held.finish(outcome)
        key = str(held.work.progress.iterations) if outcome.status == "waiting" else ""
        await held.event(ports.MailEvent(outcome.status, key, {"iterations": outcome.progress.iterations}))
        self._metrics.runs_ended.labels(outcome.status, held.row.job).inc()
        log.info(
            "run_waits" if outcome.status == "waiting" else "run_ended",
            status=outcome.status,
            rule=held.row.rule,
            iterations=outcome.progress.iterations,
        )
