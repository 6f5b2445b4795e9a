"""One mail through the agent: judged, then classified and drafted, or handed to an agent with tools (M2, M6).

The caller has stored the run before, and stores the outcome after.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import structlog

from adapters.models import loop as tool_loops
from adapters.models.audit import AuditedModel
from adapters.models.thoughts import WithoutThoughts
from adapters.models.tools import Approval, ToolRule, ToolRules, Undecided
from channels.engine_client.approvals import is_decided
from channels.mail import config, loading, ports, preprocessing, routing, tools
from channels.mail.message import ParsedMail, parse_mail
from channels.mail.pipeline import classify, draft_letter, write_draft
from flow_engine.ports import models
from flow_engine.ports.clock import Clock
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

AUTOMATIC: Final = "automatic"
"""The keyword of mails that a machine sent."""

log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class MailRun:
    """One run of one mail. `decision` is a person's, about the calls in `progress.waiting`."""

    run_id: str
    mail: ParsedMail
    judgement: routing.Judgement
    progress: ports.RunProgress = field(default_factory=ports.RunProgress)
    decision: ports.Decision | None = None

    @property
    def payer(self) -> str:
        """Whose budget of tokens the run is charged to. Who only claims to be a sender uses up nothing of
        theirs."""
        email = "" if self.mail.sender is None else self.mail.sender.email
        return email if self.judgement.is_authenticated else f"{email} (not authenticated)"


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with. With `overrides_model` the profiles' own models are not asked for. `journal`
    gets a record of every model call, too, whose purpose is `agent`, `classify` or `draft`. `monotonic` gives
    seconds."""

    loaded: loading.LoadedConfig
    box: config.MailboxConfig
    model: models.LanguageModel
    overrides_model: bool
    mailbox: ports.Mailbox
    journal: ports.RunJournal
    allowance: ports.Allowance
    outbound: OutboundSender
    clock: Clock
    monotonic: Callable[[], float]
    flow: ports.FlowContact | None = None


async def process_message(run: MailRun, parts: RunParts) -> ports.RunOutcome:
    """Work on the mail until the run ends or waits for a person.

    A run that waits, or that was interrupted, goes on when this is called again with its stored progress.
    Raises RetryLater where the mailbox, a store or the engine is away, and whatever the journal raises.
    """
    judgement = run.judgement
    flags = {judgement.label} if judgement.label else set[str]()
    if judgement.automatic is not None:
        await parts.mailbox.mark(flags | {AUTOMATIC})
        await parts.journal.event(ports.MailEvent("automatic", facts={"reason": judgement.automatic}))
        return ports.RunOutcome(
            "completed", run.progress, label=judgement.label, automatic=judgement.automatic
        )
    if flags:
        await parts.mailbox.mark(flags)
    if not judgement.sends:
        log.info("send_downgraded", run=run.run_id, rule=judgement.rule)
        await parts.journal.event(ports.MailEvent("send_downgraded", facts={"rule": judgement.rule}))
    spent = await parts.allowance.run(run.run_id, run.payer)
    spent = spent or await parts.allowance.tokens(run.run_id, run.payer, run.progress.tokens)
    if spent is not None:
        conversation_id = None
        if parts.flow is not None and run.progress.turns:  # its contact has begun
            await parts.flow.leave(None)
            conversation_id = parts.flow.conversation_id
        return ports.RunOutcome(
            "error", run.progress, error=spent, label=judgement.label, conversation_id=conversation_id
        )
    raws = await parts.mailbox.thread(run.mail.relatives)
    thread = await asyncio.to_thread(lambda: [parse_mail(raw, opened=False) for raw in raws])
    work = _Work(run, parts, [mail for mail in thread if mail.digest != run.mail.digest])
    return await (work.agent() if judgement.route == "agent" else work.pipeline())


class _Work:
    """One run while it works. `progress` is what was checkpointed last."""

    def __init__(self, run: MailRun, parts: RunParts, earlier: Sequence[ParsedMail]) -> None:
        self._run = run
        self._parts = parts
        self._earlier = earlier
        self._config = parts.loaded.config
        self._began = parts.monotonic() - run.progress.seconds
        self._progress = run.progress
        self._desk = tools.Desk(
            run.run_id,
            run.mail,
            run.judgement,
            parts.box,
            parts.mailbox,
            parts.journal,
            parts.allowance,
            parts.clock,
            earlier,
            numbered=lambda: len(self._progress.tool_calls),
            reviewed=self._reviewed,
        )

    # The pipeline -----------------------------------------------------------------------------------

    async def pipeline(self) -> ports.RunOutcome:
        settings, label = self._config.pipeline, self._run.judgement.label
        read = preprocessing.reads(self._run.mail, preprocessing.default_text, self._earlier)
        model, name = self._model(settings)
        text: str | None = None
        spent: str | None = None
        try:
            found = self._progress.classification
            if found is None and (settings.labels or settings.draft):
                found, answer = await classify(model, settings, name, read)
                spent = await self._asked(answer, classification=found)
            if found is not None and found.label is not None:
                label = found.label
                await self._parts.mailbox.mark({label})
            if settings.draft is not None:
                if spent is not None:
                    return ports.RunOutcome("error", self._progress, error=spent, label=label)
                turns = self._progress.turns
                text = turns[-1].content if turns else None
                if text is None and draft_letter(self._run.mail, self._run.judgement, "") is not None:
                    about = found or ports.Classification()
                    answer = await write_draft(model, settings, name, about, read)
                    text = answer.text.strip()
                    await self._asked(answer, turns=(ports.StoredTurn(role="assistant", content=text),))
                letter = None if text is None else draft_letter(self._run.mail, self._run.judgement, text)
                if letter is not None:
                    await self._desk.draft(letter)
        except models.ModelFailed as failure:
            counted = self._progress.iterations + 1
            progress = self._progress.model_copy(update={"iterations": counted})
            return ports.RunOutcome("error", progress, error=str(failure), label=label)
        return ports.RunOutcome("completed", self._progress, final_message=text, label=label)

    # An agent ---------------------------------------------------------------------------------------

    async def agent(self) -> ports.RunOutcome:
        """Tool calls in turns (M6), with a checkpoint before and after each."""
        profile = self._config.agent.profiles.get(self._run.judgement.profile or "")
        if profile is None:
            return ports.RunOutcome(
                "error", self._progress, error="the profile of the rule is not in the config"
            )
        preprocess = self._parts.loaded.preprocessors[profile.preprocessor]
        read = preprocessing.reads(self._run.mail, preprocess, self._earlier)
        flow = self._parts.flow
        task = ports.FlowTask("") if flow is None else await flow.enter(read)
        conversation_id = None if flow is None else flow.conversation_id
        if task.is_quiet:
            # The run itself may have ended the contact, and was killed before it could say so.
            last = self._progress.turns[-1:]
            said_last = [turn.content for turn in last if turn.role == "assistant" and not turn.tool_calls]
            return ports.RunOutcome(
                "completed",
                self._progress,
                final_message=next(filter(str.strip, said_last), None),
                label=self._run.judgement.label,
                conversation_id=conversation_id,
            )
        result = await self._looped(profile, read, task)
        said = (turn.content for turn in reversed(self._progress.turns) if turn.role == "assistant")
        final = next((text for text in said if text.strip()), None)
        if flow is not None and result.status != "waiting":
            await flow.leave(final)
        return replace(
            result,
            final_message=final,
            label=self._run.judgement.label,
            conversation_id=conversation_id,
        )

    async def _looped(self, profile: config.Profile, read: str, task: ports.FlowTask) -> ports.RunOutcome:
        policy = ToolRules(tuple(ToolRule(verdict, tool) for tool, verdict in profile.approval.items()))
        self._desk.flow = self._parts.flow
        self._desk.allowed_recipients = profile.allowed_recipients
        registry = tools.registry_of(
            self._desk,
            profile,
            self._config,
            self._parts.outbound,
            Approval(policy, _Decided(self._run, lambda: self._progress.iterations)),
            task.tools,
        )
        model, name = self._model(profile)
        if not self._progress.turns:
            own = self._parts.loaded.prompts[self._run.judgement.profile or ""]
            system = "\n\n".join(filter(None, (own, task.prompt, preprocessing.DATA_RULE)))
            turns = tuple(map(_stored, models.instruction(system, read)))
            self._progress = self._progress.model_copy(update={"turns": turns})
        else:
            await self._settle_interrupted()
        request = models.LLMRequest(
            tuple(map(_message, self._progress.turns)),
            model=name,
            max_tokens=profile.max_tokens,
            temperature=profile.temperature,
        )
        loop = tool_loops.tool_loop(model, request, registry, profile.max_iterations, earlier=self._so_far())
        async with aclosing(loop) as events:
            async for event in events:
                if isinstance(event, tool_loops.LoopResult):
                    return await self._ended(event, policy)
                if self._desk.is_waiting and isinstance(event, tool_loops.ToolFinished):
                    return await self._waits((_stored_call(event.call),))
                spent = await self._noted(event)
                if spent is not None:
                    return ports.RunOutcome("error", self._progress, error=spent)
        raise AssertionError("a tool loop ends with its result")

    async def _noted(self, event: tool_loops.LoopEvent) -> str | None:
        """Keeps what has happened; the reason to stop where a budget is used up."""
        limits = self._config.limits
        calls_spent = f"the run has used its budget of {limits.run_tool_calls} tool calls"
        spent: str | None = None
        match event:
            case models.LLMAnswer():
                spent = await self._asked(event, turns=(*self._progress.turns, _stored(event.message)))
                if not event.message.tool_calls:
                    return None  # the last one: it is paid for
            case tool_loops.ToolStarted(call=call):
                if len(self._progress.tool_calls) >= limits.run_tool_calls:
                    return calls_spent
                await self._checkpoint(started=call.id)
            case tool_loops.ToolFinished(record=record, message=message):
                if self._desk.away is not None:
                    raise self._desk.away
                line = ports.ToolLine(
                    tool=record.tool_name,
                    arguments=dict(record.arguments),
                    result=record.result,
                    iteration=record.iteration,
                )
                await self._checkpoint(
                    started=None,
                    held=None,
                    tool_calls=(*self._progress.tool_calls, line),
                    turns=(*self._progress.turns, _stored(message)),
                )
            case _:
                return None
        progress = self._progress
        if progress.tokens > limits.run_tokens:
            return f"the run has used its budget of {limits.run_tokens} tokens"
        if len(progress.tool_calls) > limits.run_tool_calls:
            return calls_spent  # by calls that were refused, which never start
        if self._parts.monotonic() - self._began > limits.run_seconds:
            return f"the run has used its budget of {limits.run_seconds:g} s"
        return spent

    async def _ended(self, result: tool_loops.LoopResult, policy: ToolRules) -> ports.RunOutcome:
        if result.status == "waiting":
            pending = tool_loops.unanswered(result.messages)
            asked = tuple(_stored_call(call) for call in pending if policy.verdict(call) == "prompt")
            return await self._waits(asked)
        self._progress = self._progress.model_copy(update={"iterations": result.iterations})
        return ports.RunOutcome(result.status, self._progress, error=result.error)

    async def _waits(self, calls: Sequence[ports.StoredCall]) -> ports.RunOutcome:
        await self._checkpoint(started=None, waiting=tuple(calls), waiting_at=self._progress.iterations)
        return ports.RunOutcome("waiting", self._progress)

    async def _reviewed(self, text: str) -> tools.Review | None:
        """What a person has made of a reply, by the engine's account of it. The number before it is stored
        before the engine has the text: a run that is taken over puts it there once."""
        flow, held = self._parts.flow, self._progress.held
        if flow is None:
            return None
        if held is None:
            after = await flow.last_text()
            if after is None:
                return None
            held = ports.HeldReply(after=after)
            await self._checkpoint(held=held)
        found = await flow.put_before_person(text, held.after, self._run.decision)
        if found is not None and not is_decided(found):
            await self._checkpoint(held=held.model_copy(update={"approval": found}))
        return tools.Review.of(found)

    async def _settle_interrupted(self) -> None:
        """A call that had begun and never ended: made again only where that does nothing twice."""
        pending = tool_loops.unanswered(tuple(map(_message, self._progress.turns)))
        started = pending[0] if pending and pending[0].id == self._progress.started else None
        if started is None or tools.may_be_repeated(started.name, self._config):
            return
        result: JsonValue = {"error": "the call was interrupted, and whether it took effect is not known"}
        line = ports.ToolLine(
            tool=started.name,
            arguments=dict(started.arguments),
            result=result,
            iteration=self._progress.iterations,
        )
        answer = ports.StoredTurn(role="tool", content=orjson.dumps(result).decode(), tool_call_id=started.id)
        await self._checkpoint(
            started=None,
            tool_calls=(*self._progress.tool_calls, line),
            turns=(*self._progress.turns, answer),
        )

    def _so_far(self) -> tool_loops.LoopResult | None:
        """The loop as it was when the run stopped; None for one that has not begun."""
        progress = self._progress
        if progress.iterations == 0:
            return None
        records = tuple(
            tool_loops.ToolCallRecord(line.tool, line.arguments, line.result, line.iteration)
            for line in progress.tool_calls
        )
        messages = tuple(map(_message, progress.turns))
        tokens = progress.input_tokens, progress.output_tokens
        return tool_loops.LoopResult("waiting", None, records, progress.iterations, None, messages, *tokens)

    # What both routes have in common ----------------------------------------------------------------

    def _model(self, settings: config.ModelSettings) -> tuple[models.LanguageModel, str | None]:
        """The model, with a record of each call, and the name that it is asked for by."""
        parts = self._parts
        name = None if parts.overrides_model else settings.model
        audited = AuditedModel(parts.model, parts.journal, parts.clock, name=settings.model)
        return WithoutThoughts(audited), name

    async def _asked(self, answer: models.LLMAnswer, **changes: object) -> str | None:
        """Keeps the answer and counts its tokens; the reason why the sender's runs may use no more."""
        await self._checkpoint(
            iterations=self._progress.iterations + 1,
            input_tokens=self._progress.input_tokens + answer.input_tokens,
            output_tokens=self._progress.output_tokens + answer.output_tokens,
            **changes,
        )
        return await self._parts.allowance.tokens(self._run.run_id, self._run.payer, self._progress.tokens)

    async def _checkpoint(self, **changes: object) -> None:
        changes["seconds"] = round(self._parts.monotonic() - self._began, 3)
        self._progress = self._progress.model_copy(update=changes)
        await self._parts.journal.checkpoint(self._progress)


class _Decided:
    """Implements `Person` by a decision that was made while the run waited, for the calls that waited."""

    def __init__(self, run: MailRun, iteration: Callable[[], int]) -> None:
        self._decision = run.decision
        self._waiting_at = run.progress.waiting_at
        self._calls = {call.id for call in run.progress.waiting}
        self._iteration = iteration

    async def confirms(self, call: models.ToolCall) -> bool:
        if self._decision is None or self._iteration() != self._waiting_at or call.id not in self._calls:
            raise Undecided
        return self._decision == "approved"


def _stored(message: models.Message) -> ports.StoredTurn:
    return ports.StoredTurn(
        role=message.role,
        content=message.content,
        tool_call_id=message.tool_call_id,
        tool_calls=tuple(map(_stored_call, message.tool_calls)),
    )


def _stored_call(call: models.ToolCall) -> ports.StoredCall:
    return ports.StoredCall(id=call.id, tool=call.name, arguments=dict(call.arguments))


def _message(turn: ports.StoredTurn) -> models.Message:
    calls = tuple(models.ToolCall(call.id, call.tool, call.arguments) for call in turn.tool_calls)
    return models.Message(turn.role, turn.content, turn.tool_call_id, calls)
