"""The tools of a mail agent (M11): replies, drafts, escalation, the thread, and the config's HTTP tools.

1. A reply is sent where rule and trust allow it, to people of the thread or of the profile's allow-list,
   within the limits. Everything else becomes a draft, with the reason.
2. A tool that is repeated after a crash does nothing twice: mails have their Message-IDs from the run.
3. In a task with approval a reply is put before a person at the engine, and the run waits: what that person
   lets pass, changed or not, is sent.
4. A mailbox or an engine that is away, or a mailbox that does not let us in, is no answer for the model: the
   run stops and goes on later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import structlog

from adapters.models.tools import Approval, Arguments, Tool, ToolRegistry
from channels.engine_client.approvals import SENT, is_decided
from channels.engine_client.replies import ApprovalState
from channels.http_tools.tools import CallContext, http_tool
from channels.mail import composing, message, ports, routing
from channels.mail.config import MailboxConfig, MailConfig, MailTool, Profile
from channels.mail.imap import CommandRefused
from flow_engine.errors import FlowEngineError, RetryLater
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import ToolSpec
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue, utc_text

TOOL_S: Final = 120.0
"""Seconds that one call of a tool may take: a mail server is slower than an API."""

ESCALATED: Final = frozenset({r"\Flagged", "escalated"})

_MOST_FOUND: Final = 20
_MOST_TEXT: Final = 2_000
"""Characters of one mail that `search_thread` returns."""

log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class Review:
    """What a person has made of a reply's text. `text` is what is sent, and of a rejected one the reason."""

    fate: Literal["waiting", "sent", "rejected", "late"]
    text: str = ""

    @classmethod
    def of(cls, found: ApprovalState | None) -> Review:
        """By the engine's account of the text; None where a person writes instead."""
        if found is None or found.status == "withdrawn":
            return cls("rejected", "a person writes to them, or it is no longer wanted")
        if not is_decided(found):
            return cls("waiting")
        if found.status in SENT:
            return cls("sent", found.text)
        return cls("late") if found.status == "timeout" else cls("rejected", found.reason or "")


@dataclass(slots=True)
class Desk:
    """What the tools of one run work with. `earlier` are the thread's other mails; `numbered` gives the
    number of the call that runs. `reviewed` gives what a person has made of a reply's text, None where nobody
    has to read it. `away` is what kept a tool from its answer, and
    `is_waiting` that it is a person's turn, for whoever runs the loop."""

    run_id: str
    mail: message.ParsedMail
    judgement: routing.Judgement
    box: MailboxConfig
    mailbox: ports.Mailbox
    journal: ports.RunJournal
    allowance: ports.Allowance
    clock: Clock
    earlier: Sequence[message.ParsedMail] = ()
    allowed_recipients: tuple[str, ...] = ()
    flow: ports.FlowContact | None = None
    numbered: Callable[[], int] = field(default=lambda: 0)
    reviewed: Callable[[str], Awaitable[Review | None]] | None = None
    away: FlowEngineError | None = None
    is_waiting: bool = False

    async def send_reply(self, arguments: Arguments) -> object:
        letter = _letter(arguments)
        allowed = self.people() | set(self.allowed_recipients)
        reason: str | None = None
        if not self.judgement.sends:
            reason = "the sender is not authenticated, so replies are left as drafts"
        elif any(recipient not in allowed for recipient in letter.to):
            reason = "an address in `to` is not of the thread"
        elif self.reviewed is not None and (review := await self.reviewed(letter.body)) is not None:
            match review.fate:
                case "waiting":
                    self.is_waiting = True
                    return {"status": "waiting"}
                case "rejected":
                    return {"error": f"a person has rejected this text: {review.text or 'no reason given'}"}
                case "late":
                    reason = "nobody has approved it in time"
                case "sent":
                    letter = replace(letter, body=review.text)
        mail = self._composed(letter, is_sent=True)
        thread = self.mail.thread or self.run_id
        reason = reason or await self.allowance.reply(mail.message_id, thread, letter.to)
        if reason is not None:
            mail = self._composed(letter, is_sent=False)
            await self.mailbox.draft(mail)
            return await self._noted(mail, reason)
        delivery = await self.mailbox.send(mail)
        key = str(self.numbered())
        if delivery.status == "sent":
            await self.journal.event(ports.MailEvent("reply_sent", key, {"message_id": mail.message_id}))
            return {"status": "sent", "message_id": mail.message_id}
        if not delivery.may_be_sent:
            await self.allowance.unsent(mail.message_id, thread, letter.to)
        return await self._noted(mail, delivery.reason or "it could not be sent")

    async def create_draft(self, arguments: Arguments) -> object:
        message_id = await self.draft(_letter(arguments))
        return {"status": "created", "message_id": message_id}

    async def draft(self, letter: composing.Letter) -> str:
        """Leave a draft in the thread; its Message-ID."""
        mail = self._composed(letter, is_sent=False)
        await self.mailbox.draft(mail)
        facts: dict[str, JsonValue] = {"message_id": mail.message_id}
        await self.journal.event(ports.MailEvent("draft_created", str(self.numbered()), facts))
        return mail.message_id

    async def escalate(self, arguments: Arguments) -> object:
        reason = str(arguments["reason"])
        result: Mapping[str, JsonValue] = {"status": "escalated"}
        if self.flow is not None:
            result = await self.flow.escalate(reason)
        else:
            await self.mailbox.mark(ESCALATED)
        if "error" not in result:
            await self.journal.event(ports.MailEvent("escalated", str(self.numbered())))
        return dict(result)

    async def search_thread(self, arguments: Arguments) -> object:
        query = str(arguments.get("query") or "").casefold()
        found: list[JsonValue] = [
            {
                "from": mail.sender.email if mail.sender else None,
                "date": utc_text(mail.date) if mail.date else None,
                "subject": mail.subject,
                "text": mail.own_text[:_MOST_TEXT],
            }
            for mail in self.earlier
            if query in f"{mail.subject}\n{mail.text}".casefold()
        ]
        return {"mails": found[-_MOST_FOUND:]}

    def _composed(self, letter: composing.Letter, *, is_sent: bool) -> ports.OutgoingMail:
        message_id = composing.new_message_id(self.run_id, self.numbered(), self.box)
        return composing.compose(letter, self.mail, self.box, message_id, self.clock.now(), is_sent=is_sent)

    async def _noted(self, mail: ports.OutgoingMail, reason: str) -> object:
        """A reply was left as a draft: the result of the call."""
        facts: dict[str, JsonValue] = {"message_id": mail.message_id, "reason": reason}
        await self.journal.event(ports.MailEvent("reply_drafted", str(self.numbered()), facts))
        return {"status": "drafted", "reason": reason, "message_id": mail.message_id}

    def people(self) -> set[str]:
        """Who may be answered: the authors and recipients of the thread's mails; Reply-To where the mail is
        trusted."""
        reply_to = self.mail.reply_to if self.judgement.is_trusted else ()
        mails = (self.mail, *self.earlier)
        entries = [entry for mail in mails for entry in (*mail.senders, *mail.to, *mail.cc)]
        return {entry.email for entry in (*entries, *reply_to) if entry.email}


def _letter(arguments: Arguments) -> composing.Letter:
    """Raises Unsendable, which the model gets as the call's error."""
    return composing.read_letter(*(str(arguments[name]) for name in ("to", "subject", "body")))


# --- the registry ----------------------------------------------------------------------------------

_MAIL_PARAMETERS: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Addresses, separated by commas"},
        "subject": {"type": "string"},
        "body": {"type": "string", "description": "Plain text, in the language of the mail"},
    },
    "required": ["to", "subject", "body"],
    "additionalProperties": False,
}


def _text_parameter(name: str, description: str, *, required: bool) -> Mapping[str, object]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name] if required else [],
        "additionalProperties": False,
    }


def _mail_tools(desk: Desk) -> list[tuple[ToolSpec, Callable[[Arguments], Awaitable[object]]]]:
    reason = _text_parameter("reason", "Why a person is needed", required=True)
    query = _text_parameter("query", "Words to look for; left out: all mails", required=False)
    return [
        (ToolSpec("send_reply", "Send a reply in this thread.", _MAIL_PARAMETERS), desk.send_reply),
        (
            ToolSpec("create_draft", "Leave a draft for a person to review.", _MAIL_PARAMETERS),
            desk.create_draft,
        ),
        (ToolSpec("escalate", "Hand this mail over to a person.", reason), desk.escalate),
        (ToolSpec("search_thread", "Look up earlier mails of this thread.", query), desk.search_thread),
    ]


def registry_of(
    desk: Desk,
    profile: Profile,
    config: MailConfig,
    outbound: OutboundSender,
    approval: Approval,
    more: Sequence[Tool] = (),
) -> ToolRegistry:
    """The tools that the profile lists, and `more` of a flow beside them; each call of a tool of the mail
    agent has `TOOL_S` seconds. Any other call is refused by the registry."""

    def stopping(run: Callable[[Arguments], Awaitable[object]]) -> Callable[[Arguments], Awaitable[object]]:
        async def noting(arguments: Arguments) -> object:
            try:
                return await run(arguments)
            except FlowEngineError as error:
                is_closed = error.code in ports.DELAYING and not isinstance(error, CommandRefused)
                if is_closed or isinstance(error, RetryLater):
                    desk.away = error
                raise

        return noting

    every = ToolRegistry(approval)
    for spec, run in _mail_tools(desk):
        every.register(Tool(spec, stopping(run), TOOL_S))
    context = CallContext(root=config.root, specials=lambda: {"now_iso": utc_text(desk.clock.now())})
    for name, tool in config.tools.items():
        every.register(http_tool(name, tool, tool.parameters, outbound, context, {"run": desk.run_id}))
    narrowed = every.only(profile.tools)
    for tool in more:
        if tool.spec.name not in profile.tools:
            narrowed.register(tool)
    return narrowed


def may_be_repeated(name: str, config: MailConfig) -> bool:
    """Whether a call that was interrupted can be made again: a tool of the mail agent knows what it has done
    already, and a request that only reads changes nothing. False for what may fail by half."""
    tool: MailTool | None = config.tools.get(name)
    if tool is None:
        return True
    return all(request.method == "GET" for request in (tool, *tool.pre_steps))
