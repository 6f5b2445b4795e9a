"""One mail through the agent: judged, then classified and drafted, or handed to an agent with tools (M2, M6).

The caller has stored the run before, and stores the outcome after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adapters.models.audit import CallLog
from channels.mail.config import MailboxConfig, MailConfig
from channels.mail.message import ParsedMail
from channels.mail.ports import (
    Allowance,
    Decision,
    FlowContact,
    Job,
    Mailbox,
    Route,
    RunJournal,
    RunOutcome,
    RunProgress,
)
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel
from flow_engine.ports.outbound import OutboundSender


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a mail, decided by the config alone, without any call. `rule` and `profile` are null
    for the default route; `sends` says that rule and trust allow to send; `automatic` is the reason why the
    mail is never answered."""

    rule: str | None
    route: Route
    profile: str | None
    is_authenticated: bool
    sends: bool
    automatic: str | None

    @property
    def job(self) -> Job:
        return "agent_process" if self.route == "agent" else "classify"


def judge(config: MailConfig, box: MailboxConfig, mail: ParsedMail) -> Judgement:
    """The first rule that matches, trust, and whether the mail was sent by a machine."""
    raise NotImplementedError


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
    """What a run works with. `prompts` are the texts of the profiles' system prompts by profile; with
    `overrides_model` the profiles' own models are not asked for. `calls` gets a record of every model call,
    whose purpose is `agent`, `classify` or `draft`. `monotonic` gives seconds."""

    config: MailConfig
    box: MailboxConfig
    prompts: Mapping[str, str]
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
