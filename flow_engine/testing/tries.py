"""Tries of a document that is not published: begun, gone on with turn by turn, and told as a flow test.

A try is a record of its own in the store, read and written once a turn, so that any process answers the next
one. It expires when nobody goes on with it, and when a store would forget its conversation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256

import msgspec
import orjson

from flow_engine.errors import CorrectTheInput, LookElsewhere, ReloadAndDecide
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import TryJobAgain
from flow_engine.ports.models import Message, ModelFailed
from flow_engine.ports.tries import KeptTry, TryStore
from flow_engine.runtime.agent_data import compose_prompt
from flow_engine.runtime.compiled import LONGEST_S, CompiledFlow
from flow_engine.runtime.platform import Platform
from flow_engine.testing import format
from flow_engine.testing.expectations import Outcome
from flow_engine.testing.recorded_test import test_of
from flow_engine.testing.simulated_user import agent_turn
from flow_engine.testing.simulation import AgentAction, step_of
from flow_engine.testing.trial import KeptAnswer, Trial, TryRecord
from flow_engine.testing.try_page import TriedAction, TryReply, told_action, try_reply
from flow_engine.use_cases.background import BackgroundDependencies
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.replaying import holds
from flow_engine.use_cases.versions_in_use import VersionsInUse
from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec

TASK, SET, HANG_UP = "/task", "/set", "/hangup"
_COMMAND = re.compile(r"/[A-Za-z_-]{1,40}")
ANSWERS_KEPT = 8
"""Replies to requests with an `Idempotency-Key` that a try keeps, besides that of its begin."""


@dataclass(frozen=True, slots=True)
class TryLimits:
    """Tries of a tenant at once, turns of a try, bytes of what is kept of it beside its document, and the
    seconds after which one that nobody goes on with is gone."""

    at_once: int = 100
    turns: int = 200
    most_bytes: int = 2 * 1024 * 1024
    idle_s: float = 30 * 60.0


@dataclass(frozen=True, slots=True)
class TryOrder:
    """What is tried: a document, as JSON, or a saved version by id or tag, else the one that was saved last;
    and who calls, as an agent's program would send it. `language` is BCP 47."""

    document: Mapping[str, object] | None = None
    version_id: str | None = None
    contact: format.NewContactBody = field(default_factory=format.NewContactBody)
    tenant: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says, or one of the commands `/task NAME`, `/set VARIABLE VALUE`, `/hangup`. `language`
    is BCP 47."""

    text: str
    language: str | None = None


@dataclass(frozen=True, slots=True)
class TryParts:
    """What tries are made with; `background` reads what is said, and has the model that plays the agent."""

    designing: Designing
    versions: VersionsInUse
    platform: Platform
    background: BackgroundDependencies
    store: TryStore
    clock: Clock
    new_id: Callable[[], str]


class Tries:
    """Every method answers for one tenant: another's try looks exactly like an unknown one. Raises
    LookElsewhere `flow_unknown`, `try_unknown`, also for one that has expired, and RetryLater while a store
    is away."""

    def __init__(self, parts: TryParts, limits: TryLimits) -> None:
        self._parts = parts
        self._limits = limits

    async def start(
        self,
        tenant_id: str,
        flow_id: str,
        order: TryOrder,
        *,
        author: str,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Check the document as a save would, and open the first contact; the reply is a `TryReply`. Raises
        CorrectTheInput `document_invalid` with every error, `channel_not_supported`,
        `idempotency_key_reused`, LookElsewhere `version_unknown`, ReloadAndDecide `too_many_tries`."""
        try_id = f"try-{self._parts.new_id()}"
        if idempotency is not None:  # a repetition finds the try by its key
            try_id = f"try-{sha256(idempotency.key.encode()).hexdigest()[:32]}"
            if (earlier := await self._answered(tenant_id, try_id, idempotency)) is not None:
                return earlier
        flow, submission = await self._parts.designing.submitted(
            tenant_id, flow_id, order.document, order.version_id, author=author
        )
        record = TryRecord(
            flow_id=flow_id,
            campaign_id=flow.campaign_id,
            version_id=submission.entry.version_id,
            author=author,
            channel=order.contact.channel,
            language=order.contact.language,
            tenant=order.tenant or {},
            contact=order.contact.data or {},
        )
        turn = await self._turn(tenant_id, try_id, submission.document, record)
        await turn.do(format.OpenContact(contact=order.contact), asked=True)
        await turn.agent_goes_on()
        now, most = self._parts.clock.now(), self._limits.at_once
        kept, reply = await self._kept(turn, KeptTry(submission.document, b"", 0, now), 201, idempotency)
        if not await self._parts.store.create(tenant_id, try_id, kept, now=now, most=most):
            if (faster := await self._answered(tenant_id, try_id, idempotency)) is not None:
                return faster
            raise ReloadAndDecide(
                "too_many_tries",
                f"{most} tries are open, the most that a tenant may have",
                accepted=(
                    "end one of them",
                    f"wait: one is gone {self._limits.idle_s:g} s after its last turn",
                ),
            )
        return reply

    async def turn(
        self,
        tenant_id: str,
        flow_id: str,
        try_id: str,
        asked: Said | format.Action,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """One turn: what is asked for, and what the agent does about it where a model plays one; the reply is
        a `TryReply`. An error of what is asked for is raised and changes nothing; ReloadAndDecide
        `try_changed` where another turn was faster, `try_full` at the end of its limits; CorrectTheInput
        `idempotency_key_reused`, and as the routes of conversations."""
        kept, record = await self._found(tenant_id, flow_id, try_id)
        if (earlier := _reply_to(record, idempotency)) is not None:
            return earlier
        if kept.revision > self._limits.turns:
            raise _full(f"{self._limits.turns} turns")
        turn = await self._turn(tenant_id, try_id, kept.document, record)
        step = asked
        if isinstance(step, Said):
            said = format.UtteranceBody(body=step.text, language=step.language)
            step = command_of(step.text, turn.trial.flow) or format.Say(utterance=said)
        waited = (await turn.trial.runner()).held
        await turn.do(step, asked=True)
        if waited and isinstance(step, format.HumanTask):
            await turn.after_the_decision()
        elif isinstance(step, format.Say | format.OpenContact):
            await turn.agent_goes_on()
        saved, reply = await self._kept(turn, kept, 200, idempotency)
        if not await self._parts.store.save(tenant_id, try_id, saved, now=self._parts.clock.now()):
            if (faster := await self._answered(tenant_id, try_id, idempotency)) is not None:
                return faster
            raise ReloadAndDecide(
                "try_changed", "another turn of this try was faster", accepted=("the same turn again",)
            )
        return reply

    async def look(self, tenant_id: str, flow_id: str, try_id: str) -> TryReply:
        """As it is, without a turn: no actions, events or entries."""
        kept, record = await self._found(tenant_id, flow_id, try_id)
        return await self._told(await self._turn(tenant_id, try_id, kept.document, record), kept)

    async def test(self, tenant_id: str, flow_id: str, try_id: str) -> str:
        """A flow test of all that was done, as YAML."""
        kept, record = await self._found(tenant_id, flow_id, try_id)
        trial = (await self._turn(tenant_id, try_id, kept.document, record)).trial
        platform = self._parts.platform.for_another_thread()
        return await asyncio.to_thread(test_of, trial.recording(kept.document), trial.flow, platform)

    async def end(self, tenant_id: str, flow_id: str, try_id: str) -> None:
        await self._found(tenant_id, flow_id, try_id)
        await self._parts.store.remove(tenant_id, try_id)

    async def _found(self, tenant_id: str, flow_id: str, try_id: str) -> tuple[KeptTry, TryRecord]:
        await self._parts.designing.flows.get_flow(tenant_id, flow_id)
        kept = await self._parts.store.load(tenant_id, try_id)
        record = None if kept is None else msgspec.json.decode(kept.record, type=TryRecord)
        is_over = kept is not None and kept.expires_at <= self._parts.clock.now()
        if kept is None or record is None or record.flow_id != flow_id or is_over:
            raise LookElsewhere("try_unknown", f"there is no try {try_id!r} of this flow, or not any more")
        return kept, record

    async def _turn(self, tenant_id: str, try_id: str, document: bytes, record: TryRecord) -> _Turn:
        parts = self._parts
        flow = (await parts.versions.of_document(tenant_id, document)).flow
        conversation = ConversationRef(tenant_id, try_id)
        trial = Trial(conversation, flow, parts.platform, record, parts.background, parts.clock.now())
        return _Turn(trial, parts.background)

    async def _answered(
        self, tenant_id: str, try_id: str, idempotency: IdempotencyKey | None
    ) -> FinalReply | None:
        """What the same request has got already."""
        kept = None if idempotency is None else await self._parts.store.load(tenant_id, try_id)
        if kept is None or kept.expires_at <= self._parts.clock.now():
            return None
        return _reply_to(msgspec.json.decode(kept.record, type=TryRecord), idempotency)

    async def _kept(
        self, turn: _Turn, before: KeptTry, status: int, idempotency: IdempotencyKey | None
    ) -> tuple[KeptTry, FinalReply]:
        """What is stored after the turn, and its reply."""
        record = turn.trial.record()
        if not 0 <= record.ahead_s <= LONGEST_S:
            raise _full(f"{LONGEST_S} seconds of waiting")
        now = self._parts.clock.now()
        expires_at = now + timedelta(seconds=self._limits.idle_s)
        if record.forgotten_at is not None:
            expires_at = min(expires_at, record.forgotten_at - timedelta(seconds=record.ahead_s))
        if expires_at <= now:
            most_s = turn.trial.flow.lifetime_s
            raise _full(f"{most_s} seconds after its last change, when a store forgets the conversation")
        text = msgspec.json.encode(msgspec.structs.replace(record, answers=()))
        if len(text) > self._limits.most_bytes:
            raise _full(f"{self._limits.most_bytes} bytes")
        kept = KeptTry(before.document, text, before.revision + 1, expires_at)
        reply = FinalReply(status, orjson.dumps(await self._told(turn, kept)))
        answers = record.answers
        if idempotency is not None:
            answered = KeptAnswer(idempotency.key, idempotency.fingerprint, status, reply.body.decode())
            begun = [each for each in answers if each.status == 201]
            answers = (*begun, *answers[len(begun) :][1 - ANSWERS_KEPT :], answered)
        if answers:
            kept = replace(kept, record=msgspec.json.encode(msgspec.structs.replace(record, answers=answers)))
        return kept, reply

    async def _told(self, turn: _Turn, kept: KeptTry) -> TryReply:
        left = self._limits.turns + 1 - kept.revision
        return await try_reply(turn.trial, kept, turn.actions, turns_left=left, failed=turn.failed)


def _reply_to(record: TryRecord, idempotency: IdempotencyKey | None) -> FinalReply | None:
    """Raises CorrectTheInput `idempotency_key_reused`."""
    for each in record.answers:
        if idempotency is not None and each.key == idempotency.key:
            return KeptReply(each.fingerprint, each.status, each.text.encode()).replay(idempotency)
    return None


class _Turn:
    """A try while it is gone on with. `failed` is what kept a model from its part."""

    def __init__(self, trial: Trial, background: BackgroundDependencies) -> None:
        self.trial = trial
        self.actions: list[TriedAction] = []
        self.failed: str | None = None
        self._background = background

    async def do(self, step: format.Action, *, asked: bool = False) -> Outcome:
        """An error of what was asked for is raised, one of what a model does is told."""
        try:
            outcome = await self.trial.act(step)
        except TryJobAgain as failure:
            outcome, self.failed = Outcome(kind=format.kind_of(step)), str(failure)
        if outcome.problem is not None and asked:
            raise outcome.problem
        self.actions.append(told_action(step, outcome))
        return outcome

    async def after_the_decision(self) -> None:
        """What a person lets pass is said, for what is not the model writes another text: as in the chat."""
        approval = (await self.trial.runner()).session.approval
        if approval is not None and approval.status in ("approved", "edited"):
            await self.do(format.Say(utterance=format.UtteranceBody(body=approval.text, src="bot")))
        elif approval is not None and approval.status == "rejected":
            await self.agent_goes_on()

    async def agent_goes_on(self) -> None:
        """By the model, if there is one, the contact goes on and no person has the word."""
        runner = await self.trial.runner()
        silent = runner.held or runner.status in ("human", "connected")
        if not self._background.has_model or runner.session.active_contact_id is None or silent:
            return

        async def act(action: AgentAction) -> Outcome:
            if action.say and (await self.trial.runner()).is_read_first:
                text = format.HumanTaskBody(outcome="waiting", text=action.say)
                return await self.do(format.HumanTask(human_task=text))
            return await self.do(step_of(action))

        async def prompt() -> str:
            return compose_prompt(await self.trial.runner()).text

        # What the model has heard and said in this contact, from the command that opened it.
        trial = self.trial
        own = [turn for turn in trial.memory.state.turns if turn.contact_id == trial.contact_id]
        opened = next((each["command"] for each in self.actions if each["kind"] == "contact"), None)
        history = [Message("user", opened or "/start")]
        history += [Message("user" if turn.src == "user" else "assistant", turn.body) for turn in own]
        try:
            await agent_turn(
                self._background.model,
                history,
                prompt,
                act,
                purpose="try",
                conversation=self.trial.conversation,
            )
        except ModelFailed as failure:
            self.failed = str(failure)


def _full(what: str) -> ReloadAndDecide:
    return ReloadAndDecide("try_full", f"a try has at most {what}", accepted=("a new try",))


# --- commands in what is said -------------------------------------------------------------------


def command_of(
    text: str, flow: CompiledFlow
) -> format.ChangeTask | format.Remember | format.EndContact | None:
    """What a message stands for that is a command; None for one that is not. Raises CorrectTheInput
    `command_invalid`, for a command that there is not too."""
    command, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if command == HANG_UP:
        return format.EndContact(end_contact=format.EndContactBody(reason=rest or None))
    if command == TASK:
        if not rest:
            raise _not_a_command(f"accepted is {TASK} NAME")
        return format.ChangeTask(change_task=rest)
    if command != SET and _COMMAND.fullmatch(command):
        raise _not_a_command(
            f"{command} is no command; accepted are {TASK} NAME, {SET} VARIABLE VALUE, {HANG_UP} REASON"
        )
    if command != SET:
        return None
    named = {name: spec for spec in flow.variables for name in (spec.id, spec.name) if _starts(rest, name)}
    if not named:
        known = ", ".join(spec.name for spec in flow.variables) or "none"
        raise _not_a_command(f"accepted is {SET} VARIABLE VALUE; the variables are: {known}")
    name = max(named, key=len)
    value = value_for(named[name], rest[len(name) :].strip())
    entry = format.MemoryEntryBody.model_validate({"varId": named[name].id, "value": value})
    return format.Remember.model_construct(memory=(entry,))


def value_for(spec: VariableSpec, text: str) -> JsonValue:
    """The value of a variable that a text tells: the text itself, or the JSON that it is, whichever the
    variable takes; None for an empty one, which takes a value back."""
    if not text:
        return None
    values: list[JsonValue] = [text]
    with suppress(orjson.JSONDecodeError):
        values.insert(0 if spec.type == "custom" else 1, orjson.loads(text))
    return next((value for value in values if holds(spec, value)), text)


def _starts(text: str, name: str) -> bool:
    return text == name or text.startswith(f"{name} ")


def _not_a_command(message: str) -> CorrectTheInput:
    return CorrectTheInput.breach("command_invalid", message, at="/text")
