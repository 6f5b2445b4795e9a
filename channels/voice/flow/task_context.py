"""What a flow gives to a call: how it is started, where the call may be transferred to, and what the model
has to go by in one task: its prompt, its tools, its media settings, and what this agent itself adds to the
engine's prompts and commands.

A flow configures a chain of recogniser, model and voice; a realtime model is all three. What it has a setting
for is taken over, everything else stays as the agent's own configuration says.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import structlog

from channels.engine_client import client, replies, toolbox
from channels.engine_client.tools import END_CALL, change_task_spec
from channels.voice.call.ports import Caller, EndReason, SessionSettings, TurnDetection
from channels.voice.config.declarations import Declaration
from channels.voice.config.vocabulary import VOICES
from flow_engine.ports.models import ToolSpec
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.voice")

CONVERSATION_PARAMETER: Final = "conversationId"
CONTACT_PARAMETERS: Final = ("calleeId", "room", "name")


@dataclass(frozen=True, slots=True)
class FlowStart:
    """`transfers` maps the skills and agent ids of a flow's routing to phone numbers or SIP addresses;
    `transfer_to` is for whatever is not in it. `apology` is spoken when the engine cannot take the call.
    `tenant` is what the flow's templates know as `$tenant`.
    """

    choice: client.FlowChoice
    apology: str
    agent_id: str = ""
    agent_name: str = ""
    tenant: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    transfers: Mapping[str, str] = field(default_factory=dict[str, str])
    transfer_to: str | None = None

    def target(self, routing: replies.Routing | None) -> str | None:
        """Where a HUM task transfers the call to, a phone number or SIP address: the first agent, then skill,
        then optional skill that has one, then the one for everything else. None where there is none."""
        if routing is None:
            return self.transfer_to
        names = (*routing.agent_ids, *routing.agent_skills, *routing.agent_optional_skills)
        return next((self.transfers[name] for name in names if name in self.transfers), self.transfer_to)


NO_TARGET: Final = "no address to transfer the call to"
TRANSFER_FAILED: Final = "the line could not transfer the call"


class HumanTransfer:
    """One call's way to a person: where its task hands it over to, and what the engine learns of that."""

    def __init__(self, start: FlowStart, engine: client.EngineClient, contact: client.Contact) -> None:
        self._start = start
        self._engine = engine
        self._contact = contact
        self.target: str | None = None
        """A phone number or SIP address; None while no person is sought."""
        self.after_first_words = False
        """The call begins in such a task: the caller hears its command first."""

    def enter(self, data: replies.AgentData) -> None:
        """The task of `data` is the call's from now on."""
        self.target = self._start.target(data.routing_parameters) if _is_routing(data) else None

    async def or_without(self, data: replies.AgentData) -> replies.AgentData:
        """Where a person is sought and there is no address for one, the engine is told so at once, and says
        how the conversation goes on; it stays as it is if the engine fails."""
        if not _is_routing(data) or self._start.target(data.routing_parameters) is not None:
            return data
        log.error("no_transfer_target", task=data.task_name)
        return await self._report("failed", NO_TARGET) or data

    async def failed(self) -> replies.AgentData | None:
        """The engine is told that the person was not reached, and says how the conversation goes on; None if
        the engine fails."""
        return await self._report("failed", TRANSFER_FAILED)

    async def ended(self, reason: EndReason) -> None:
        """A call that was transferred is in a person's hands, as far as its line can know."""
        if self.target is not None and reason == "transferred":
            await self._report("connected", None)
        elif self.target is not None and reason == "failed":
            await self._report("failed", TRANSFER_FAILED)

    async def _report(self, outcome: client.HumanOutcome, reason: str | None) -> replies.AgentData | None:
        try:
            reply = await self._engine.human_task(self._contact, outcome, reason)
            return reply if isinstance(reply, replies.AgentData) else None
        except replies.EngineError as error:
            log.error("transfer_not_reported", reason=str(error))
            return None


def _is_routing(data: replies.AgentData) -> bool:
    return data.task_type == "HUM" and data.task_status == "routing"


END_PAUSES_S: Final = (1.0, 2.0, 4.0, 5.0)
"""Between the tries to end a contact while the engine is away. With the words before it they stay below what
a call gives to its end."""


class ContactSpan:
    """One call's contact at the engine, from its beginning to its end. `pause` waits that many seconds."""

    def __init__(self, engine: client.EngineClient, new: client.NewContact, pause: client.Pause) -> None:
        self._engine = engine
        self._new = new
        self._pause = pause
        self._beginning: asyncio.Task[replies.AgentData] | None = None

    async def begin(self) -> replies.AgentData:
        """Raises EngineError. Goes on when it is cancelled: a caller who leaves meanwhile must not leave a
        contact behind that nobody ends."""
        self._beginning = asyncio.create_task(self._engine.new_contact(self._new))
        return await asyncio.shield(self._beginning)

    async def end(self, reason: str) -> None:
        """After its beginning, where there has been one. One that the engine has refused has no end; where
        it cannot be known whether it began, its end is tried once. Never raises: a failure is logged."""
        if self._beginning is None:
            return
        await asyncio.wait({self._beginning})
        failure = self._beginning.exception()
        if isinstance(failure, (replies.KeyRefused, replies.RequestRefused, replies.StateConflict)):
            return
        pauses_s = END_PAUSES_S if failure is None else ()
        for pause_s in (*pauses_s, None):
            try:
                reply = await self._engine.end_contact(self._new.contact, reason)
                log.info("contact_ended", status=reply.status, reason=reason)
                return
            except replies.EngineError as error:
                if pause_s is None or not isinstance(error, replies.EngineUnavailable):
                    tell = log.error if failure is None else log.info
                    tell("contact_not_ended", reason=str(error))
                    return
            await self._pause(pause_s)


def new_contact(start: FlowStart, caller: Caller) -> client.NewContact:
    """A conversation of its own for each call, unless the line names one to go on with."""
    conversation_id = caller.parameters.get(CONVERSATION_PARAMETER) or caller.call_id
    facts: dict[str, JsonValue] = {
        name: caller.parameters[name] for name in CONTACT_PARAMETERS if caller.parameters.get(name)
    }
    if caller.phone is not None:
        facts["callerId"] = caller.phone
    return client.NewContact(
        client.Contact(conversation_id, caller.call_id),
        start.choice,
        "phone",
        tenant=start.tenant,
        facts=facts,
    )


SLOWEST: Final = 0.25
FASTEST: Final = 1.5
SILENCES_BEFORE_GOODBYE: Final = 3

LOST: Final = (
    "This conversation goes on elsewhere and this call can do nothing more in it. Say goodbye in one short "
    "sentence, in the language of the conversation, and call end_call."
)
NOBODY_FREE: Final = (
    "Nobody could be reached who would take over. Tell the caller so with an apology, in the language of the "
    "conversation, and offer what else you can do."
)
NOT_SPOKEN: Final = (
    "What the caller asks about now is answered only after a colleague has read the answer, and on the phone "
    "nothing can be read before it is heard. So answer nothing of it, whatever was said before, and promise "
    "nothing. Tell the caller in one short sentence, in the language of the conversation ({language}), that "
    "this is not settled on the phone. Then go on with another task by change_task if the caller likes, or "
    "say goodbye and call end_call."
)
"""Takes the place of the prompt in a task with approval: a model that speaks cannot be held back, and what it
has not been given it does not say."""

END_CALL_SPEC: Final = ToolSpec(
    END_CALL,
    "Hang up. Call it after saying goodbye, when the caller needs nothing more or wants to end the call.",
    {"type": "object", "properties": {}},
)
TRY_AGAIN: Final = "The change cannot be made at the moment. Go on in this task and try once more later."


def nobody_spoke(seconds: float, times: int) -> str:
    """The instruction after `seconds` of silence, `times` in a row, this one included."""
    silence = f"The caller has said nothing for {seconds:g} seconds."
    if times >= SILENCES_BEFORE_GOODBYE:
        return f"{silence} That was {times} times in a row: say goodbye in one sentence and call end_call."
    return f"{silence} Ask in one short sentence whether they are still there, or repeat your last question."


@dataclass(frozen=True, slots=True)
class TaskContext:
    """`reachable` are the tasks of `data`, with what is missing as it was last known."""

    data: replies.AgentData
    tools: toolbox.TaskTools
    reachable: tuple[replies.ReachableTask, ...]

    def declarations(self) -> tuple[Declaration, ...]:
        change = change_task_spec(self.reachable, self.data.returns_to)
        every = (change, *(tool.spec for tool in self.tools.tools), END_CALL_SPEC)
        return tuple(
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description,
                "parameters": cast("JsonValue", dict(spec.parameters)),
            }
            for spec in every
            if spec is not None
        )


def session_settings(
    base: SessionSettings, data: replies.AgentData, tools: Sequence[Declaration], *, first_words: bool
) -> SessionSettings:
    """The session of a task: speed from 0.25 to 1.5, silences in seconds. `first_words`: the agent has not
    finished its first message, which may have a rule of its own for interruptions. The prompt of a task with
    approval is not given to the model."""
    model, voice = data.llm, data.tts.active if data.tts is not None else None
    is_realtime = model is not None and model.provider == "openai" and "realtime" in (model.model or "")
    speaks_it = voice is not None and voice.provider == "openai" and voice.voice in VOICES
    detection = data.language_detection
    is_open = detection is not None and detection.enable_language_detection
    speaks_others = is_open and len(data.supported_languages) > 1
    return replace(
        base,
        instructions=NOT_SPOKEN.format(language=data.language) if data.approval_required else data.prompt,
        tools=tuple(tools),
        model=(model.model if model and is_realtime else None) or base.model,
        voice=(voice.voice if voice and speaks_it else None) or base.voice,
        speed=min(max(voice.speed, SLOWEST), FASTEST) if voice and speaks_it and voice.speed else base.speed,
        # In two letters. A recogniser that is set to the wrong one hears nonsense.
        language=None if speaks_others else data.language.partition("-")[0].lower(),
        turn_detection=_turn_detection(base.turn_detection, data.vad),
        allow_interruptions=data.allow_interruptions_on_start if first_words else data.allow_interruptions,
        silence_s=data.user_interaction_timeout,
    )


def _turn_detection(base: TurnDetection, vad: replies.VadSettings | None) -> TurnDetection:
    """Both are thresholds from 0 to 1; seconds become milliseconds."""
    if vad is None:
        return base
    threshold, silence_s = vad.activation_threshold, vad.min_silence_duration
    padding_s = vad.prefix_padding_duration
    return TurnDetection(
        base.threshold if threshold is None else min(max(threshold, 0.0), 1.0),
        base.silence_duration_ms if silence_s is None else round(max(silence_s, 0.0) * 1000),
        base.prefix_padding_ms if padding_s is None else round(max(padding_s, 0.0) * 1000),
    )
