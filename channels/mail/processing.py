"""One mail through the agent: judged, then classified and drafted, or handed to an agent with tools (M2, M6).

The caller has stored the run before, and stores the outcome after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from adapters.models.audit import CallLog
from channels.mail.config import MailboxConfig
from channels.mail.loading import LoadedConfig
from channels.mail.message import ParsedMail
from channels.mail.ports import (
    Allowance,
    Decision,
    FlowContact,
    Mailbox,
    RunJournal,
    RunOutcome,
    RunProgress,
)
from channels.mail.routing import Judgement
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel
from flow_engine.ports.outbound import OutboundSender


@dataclass(frozen=True, slots=True)
class MailRun:
    """One run of one mail. `decision` is a person's, about the calls in `progress.waiting`."""

    run_id: str
    mail: ParsedMail
    judgement: Judgement
    progress: RunProgress = field(default_factory=RunProgress)
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with. With `overrides_model` the profiles' own models are not asked for. `calls`
    gets a record of every model call, whose purpose is `agent`, `classify` or `draft`. `monotonic` gives
    seconds."""

    loaded: LoadedConfig
    box: MailboxConfig
    model: LanguageModel
    overrides_model: bool
    mailbox: Mailbox
    journal: RunJournal
    allowance: Allowance
    calls: CallLog
    outbound: OutboundSender
    clock: Clock
    monotonic: Callable[[], float]
    flow: FlowContact | None = None


async def process_message(run: MailRun, parts: RunParts) -> RunOutcome:
    """Work on the mail until the run ends or waits for a person.

    A run that waits, or that was interrupted, goes on when this is called again with its stored progress.
    Raises RetryLater where the mailbox or a store is away, and whatever the journal raises.
    """
    raise NotImplementedError
