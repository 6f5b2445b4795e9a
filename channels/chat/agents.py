"""The AgentLoader (C5): the enabled agents of a table as pydantic-ai agents, with what they inherit.

An agent's model is a `LanguageModel` of the engine behind pydantic-ai's interface, so that limits, retries
and accounts are those of every model call. Its text is shown straight from there while it comes; pydantic-ai
gets each answer when it is whole, since its layers of events cost more than the rest of a frame. Its tools
run through the one registry. Beside them every agent has two functions, by which it tells its state:
`ask_user` and `refuse`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

import structlog
from pydantic import BaseModel, Field, StringConstraints, ValidationError
from pydantic_ai import Agent, ToolOutput
from pydantic_ai import messages as ai_messages
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from adapters.models.providers import configured_name
from channels.chat.frames import AnswerFrames
from channels.chat.inheritance import Effective, effective
from channels.chat.router import IntentRouter
from channels.chat.rows import ORCHESTRATOR, AgentRow, StoredRow
from channels.chat.table import AgentTable
from channels.engine_client.replies import LlmSettings
from flow_engine.documents.findings import breaches_of
from flow_engine.ports import models
from flow_engine.ports.dialogue import ConversationRef

log: Any = structlog.get_logger("flow_engine.chat")

ASK_USER: Final = "ask_user"
REFUSE: Final = "refuse"
MAX_TOKENS: Final = 4096
TEMPERATURE: Final = 0.3
"""Where neither a row nor its bases say one."""

WRONG_CALLS: Final = 3
"""How often in a run a model may call what there is not before it counts as failed."""

Words: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class AskUser(BaseModel):
    """Ask the user one question, when something that you need is missing or unclear. It ends your turn; the
    answer comes back to you."""

    question: Annotated[Words, Field(description="The question, in the user's language.")]


class Refuse(BaseModel):
    """Decline the request, when it is not yours to fulfil or your constraints forbid it. It ends your
    turn."""

    reason: Annotated[Words, Field(description="Why, and what you can do instead, in the user's language.")]


Outcome: TypeAlias = str | AskUser | Refuse


def told_by(call: models.ToolCall) -> tuple[str, Literal["clarifying", "refused"]]:
    """What a call of `ask_user`, or else of `refuse`, says, and the state that it ends the answer in. Raises
    ValidationError for one that says nothing."""
    if call.name == ASK_USER:
        return AskUser.model_validate(dict(call.arguments)).question, "clarifying"
    return Refuse.model_validate(dict(call.arguments)).reason, "refused"


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One call of a model. `duration_ms` is until its answer was whole; tokens are 0 for a failed one."""

    model: str
    status: str
    input_tokens: int
    output_tokens: int
    duration_ms: int


@dataclass(slots=True)
class Run:
    """What one run of an agent brings along, and what it leaves: the calls of its model, oldest first."""

    conversation: ConversationRef
    frames: AnswerFrames
    uses: list[ModelUse] = field(default_factory=list[ModelUse])
    failure: models.ModelFailed | None = None


@dataclass(frozen=True, slots=True)
class Agents:
    """Of one tenant at one moment. `effective` has every agent, also those that nobody talks to."""

    effective: Mapping[str, Effective]
    talking: Mapping[str, ChatAgent]
    router: IntentRouter

    @property
    def orchestrator(self) -> Effective | None:
        """None where it is deleted or disabled: then the scores decide."""
        found = self.effective.get(ORCHESTRATOR)
        return found if found is not None and found.fields["enabled"] else None


class AgentLoader:
    """`model` is the installation's; a row that names another one has its requests name it."""

    def __init__(self, table: AgentTable, model: models.LanguageModel) -> None:
        self._table = table
        self._model = model
        self._loaded: dict[str, tuple[Mapping[str, StoredRow], asyncio.Task[Agents]]] = {}

    async def agents(self, tenant_id: str) -> Agents:
        """Made anew when the table has changed; one that is in use goes on as it was. In a thread, once for
        all who wait: the router of a large table takes seconds, and others are talked to meanwhile."""
        rows = await self._table.rows(tenant_id)
        known = self._loaded.get(tenant_id)
        if known is None or known[0] != rows:
            building = asyncio.create_task(asyncio.to_thread(self._built, rows))
            known = self._loaded[tenant_id] = (rows, building)
        return await asyncio.shield(known[1])

    def _built(self, rows: Mapping[str, StoredRow]) -> Agents:
        every = {name: effective(name, rows) for name in rows}
        built: dict[str, ChatAgent] = {}
        for name, agent in every.items():
            if agent.fields["enabled"] and name != ORCHESTRATOR:
                try:
                    built[name] = ChatAgent(agent, self._model)
                except ValidationError as error:  # a variable of the environment is not there any more
                    log.error("agent_left_out", agent=name, reason="; ".join(breaches_of(error)))
        return Agents(every, built, IntentRouter(each.effective for each in built.values()))


class ChatAgent:
    """An agent that talks, by the engine's model."""

    def __init__(self, effective: Effective, model: models.LanguageModel) -> None:
        self.effective = effective
        self.name = effective.name
        self.row = effective.row
        self.agent: Agent[None, Outcome] = Agent(
            name=effective.name,
            output_type=[str, ToolOutput(AskUser, name=ASK_USER), ToolOutput(Refuse, name=REFUSE)],
            end_strategy="early",
            retries=WRONG_CALLS,
        )
        self._system_prompt = effective.system_prompt
        self._model = model

    def model(self, run: Run) -> FunctionModel:
        """The model as pydantic-ai asks it; each call is noted in `run`. Calls of tools have arguments that
        are an object."""
        row = self.row

        async def answer(
            messages: list[ai_messages.ModelMessage], info: AgentInfo
        ) -> ai_messages.ModelResponse:
            request = models.LLMRequest(
                messages=(models.Message("system", self._system_prompt), *turns(messages)),
                tools=[
                    models.ToolSpec(tool.name, tool.description or "", tool.parameters_json_schema)
                    for tool in (*info.function_tools, *info.output_tools)
                ],
                model=row.model,
                max_tokens=MAX_TOKENS,
                temperature=TEMPERATURE if row.temperature is None else row.temperature,
                top_p=row.top_p,
                num_ctx=row.num_ctx,
                deltas=True,
                purpose="agent",
                conversation=run.conversation,
            )
            reply = await shown(self._model, request, run)
            calls = [
                ai_messages.ToolCallPart(call.name, dict(call.arguments), tool_call_id=call.id)
                for call in reply.message.tool_calls
            ]
            return ai_messages.ModelResponse(
                parts=[ai_messages.TextPart(reply.text), *calls] if reply.text else calls,
                usage=RequestUsage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens),
            )

        return FunctionModel(answer, model_name=row.model or "installation")


async def shown(
    model: models.LanguageModel, request: models.LLMRequest, run: Run, *, hidden: bool = False
) -> models.LLMAnswer:
    """The answer, whose text was shown as one paragraph while it came, unless it is `hidden`; the call is
    noted in `run`. Raises ModelFailed, LeaseLost, RetryLater."""
    began, begun = time.monotonic(), False
    answer: models.LLMAnswer | None = None
    try:
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                if isinstance(event, models.TextDelta) and not hidden:
                    await run.frames.dialogue(event.text, begins=not begun)
                    begun = True
                elif isinstance(event, models.LLMAnswer):
                    answer = event
    except models.ModelFailed as failure:
        run.failure = failure
        raise
    finally:
        run.uses.append(use_of(answer, request.model, began))
    if answer is None:
        raise models.ModelFailed("unusable_answer", "the stream ended without an answer")
    run.frames.is_cut = answer.finish_reason == "length"
    return answer


def turns(messages: Sequence[ai_messages.ModelMessage]) -> list[models.Message]:
    """The dialogue in the forms of the engine's models, without instructions."""
    return [turn for message in messages for turn in _turns(message)]


def _turns(message: ai_messages.ModelMessage) -> Iterator[models.Message]:
    if isinstance(message, ai_messages.ModelResponse):
        calls = tuple(
            models.ToolCall(part.tool_call_id, part.tool_name, part.args_as_dict())
            for part in message.parts
            if isinstance(part, ai_messages.ToolCallPart)
        )
        text = "".join(part.content for part in message.parts if isinstance(part, ai_messages.TextPart))
        yield models.Message("assistant", text, tool_calls=calls)
        return
    for part in message.parts:
        if isinstance(part, ai_messages.UserPromptPart):
            yield models.Message("user", part.content if isinstance(part.content, str) else "")
        elif isinstance(part, ai_messages.ToolReturnPart):
            yield models.Message("tool", part.model_response_str(), tool_call_id=part.tool_call_id)


def history_messages(turns_before: Sequence[models.Message]) -> list[ai_messages.ModelMessage]:
    """What users and agents wrote before, for pydantic-ai."""
    return [
        ai_messages.ModelRequest(parts=[ai_messages.UserPromptPart(turn.content)])
        if turn.role == "user"
        else ai_messages.ModelResponse(parts=[ai_messages.TextPart(turn.content)])
        for turn in turns_before
    ]


def use_of(answer: models.LLMAnswer | None, model: str | None, began: float) -> ModelUse:
    """`model` is the one that was asked for, `began` by `time.monotonic`; without an answer it has failed."""
    duration_ms = round((time.monotonic() - began) * 1000)
    if answer is None:
        return ModelUse(model or "", "failed", 0, 0, duration_ms)
    return ModelUse(answer.model, "ok", answer.input_tokens, answer.output_tokens, duration_ms)


def chosen_model(row: AgentRow, flows: LlmSettings | None) -> tuple[str | None, float]:
    """The row's model, else the flow's where its provider is configured, else the installation's; and its
    temperature."""
    own = None if row.model or flows is None else configured_name(flows.provider, flows.model, os.environ)
    temperature = flows.temperature if own and flows else None
    given = temperature if row.temperature is None else row.temperature
    return row.model or own, TEMPERATURE if given is None else given
