"""One run from the mailbox to its outcome: the mail is fetched, judged and processed."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from adapters.models.audit import CallLog
from channels.mail.allowance import StoredAllowance
from channels.mail.delivery import ImapMailbox, MailboxParts
from channels.mail.flow import FlowConversations, FlowRun
from channels.mail.loading import LoadedConfig
from channels.mail.message import ParsedMail, parse_mail
from channels.mail.ports import FlowContact, RunOutcome
from channels.mail.processing import MailRun, RunParts, process_message
from channels.mail.routing import Judgement, judge
from channels.mail.runs import HeldRun, RunCalls
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel
from flow_engine.ports.outbound import OutboundSender

GONE = "the mail is no longer in the mailbox"


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What all runs share. `mailboxes` are by name; `calls` gets the model calls beside the run's own rows;
    `monotonic` gives seconds."""

    loaded: LoadedConfig
    model: LanguageModel
    overrides_model: bool
    mailboxes: Mapping[str, MailboxParts]
    flows: FlowConversations
    calls: CallLog
    outbound: OutboundSender
    clock: Clock
    monotonic: Callable[[], float] = time.monotonic


class MailAgent:
    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts

    async def process(self, held: HeldRun) -> RunOutcome:
        """Raises RetryLater, CallTheOperator where a server or the engine cannot be used, RunTakenOver."""
        row, work, parts = held.row, held.work, self._parts
        shared = parts.mailboxes.get(row.mailbox)
        if shared is None:
            return RunOutcome("error", work.progress, error=f"the config has no mailbox {row.mailbox!r}")
        most = parts.loaded.config.limits.max_message_bytes
        mailbox = ImapMailbox(shared, work.place, row.message_id, work.digest, most)
        found = await mailbox.raw()
        if found is None:
            return RunOutcome("error", work.progress, error=GONE)
        mail, judgement = await asyncio.to_thread(self._judged, *found, shared)
        async with AsyncExitStack() as stack:
            run_parts = RunParts(
                loaded=parts.loaded,
                box=shared.box,
                model=parts.model,
                overrides_model=parts.overrides_model,
                mailbox=mailbox,
                journal=held,
                allowance=StoredAllowance(
                    shared.state,
                    parts.clock,
                    parts.loaded.config.limits,
                    tenant_id=shared.tenant_id,
                    mailbox=shared.box.name,
                ),
                calls=RunCalls(held, parts.calls),
                outbound=parts.outbound,
                clock=parts.clock,
                monotonic=parts.monotonic,
                flow=await self._contact(held, mail, judgement, stack),
            )
            run = MailRun(held.id, mail, judgement, work.progress, work.decision)
            return await process_message(run, run_parts)

    def _judged(self, raw: bytes, size: int, shared: MailboxParts) -> tuple[ParsedMail, Judgement]:
        mail = parse_mail(raw, size=size)
        return mail, judge(self._parts.loaded.config, shared.box, mail)

    async def _contact(
        self, held: HeldRun, mail: ParsedMail, judgement: Judgement, stack: AsyncExitStack
    ) -> FlowContact | None:
        """None for a profile without a flow, and for mail that is never answered."""
        profile = self._parts.loaded.config.agent.profiles.get(judgement.profile or "")
        if profile is None or profile.flow is None or judgement.automatic is not None:
            return None
        sender = mail.sender
        facts = {"email": sender.email, "name": sender.name} if sender is not None else {}
        run = FlowRun(held.id, held.row.mailbox, mail.thread or held.id, {**facts, "subject": mail.subject})
        return await stack.enter_async_context(self._parts.flows.contact(profile.flow, run))
