"""An agent that is a flow of the engine (C15): the chat carries between user, model and engine.

    first message   handle-new-contact        → prompt, tools, task
    each message    handle-utterance, prompt  → what the model goes by now
    change_task, MCP tools                    → another task, or an answer
    answers         handle-utterance (bot)
    end             handle-end-contact, once

A contact is named by the message that began it, so that a repetition starts no second one. The state of the
conversation is the engine's: whoever works on the session next asks the engine for it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import uuid4

import orjson
import structlog

from adapters.models.loop import MAX_ITERATIONS
from adapters.models.tools import Approval, Policy
from channels.chat.accounts import Accounts, AgentRun
from channels.chat.agents import (
    ASK_USER,
    MAX_TOKENS,
    REFUSE,
    TEMPERATURE,
    AskUser,
    ChatAgent,
    Refuse,
    Run,
    shown,
)
from channels.chat.answering import Asked, ToolTurn
from channels.chat.frames import AnswerFrames, FinalState
from channels.chat.state import FlowRun, SessionState
from channels.chat.wording import phrase
from channels.engine_client import client
from channels.engine_client.mcp_tools import OpenMcp
from channels.engine_client.replies import AgentData, EngineError, RequestRefused, StateConflict, TaskRefused
from channels.engine_client.toolbox import TaskTools, Toolbox, ToolListCache
from channels.engine_client.tools import (
    CHANGE_TASK,
    END_CALL,
    TaskTool,
    change_asked_for,
    change_task_declaration,
    task_names,
    with_missing,
)
from flow_engine.errors import CorrectTheInput, LookElsewhere, ReloadAndDecide, RetryLater
from flow_engine.ports import models
from flow_engine.ports.chat import ChatFrames, SessionRef
from flow_engine.ports.clock import Clock
from flow_engine.values import JsonValue

PROMPT_WAIT_MS: Final = 1_500
"""How long the prompt of an answer waits for values that are still being found in the message."""

MOST_TOOL_CHARS: Final = 2_000
_HUMAN: Final = "HUM"
_CONNECTED: Final = "connected"

_OWN_TOOLS: Final = (
    models.ToolSpec(ASK_USER, AskUser.__doc__ or "", AskUser.model_json_schema()),
    models.ToolSpec(REFUSE, Refuse.__doc__ or "", Refuse.model_json_schema()),
    models.ToolSpec(
        END_CALL,
        "End the conversation. Call it after saying goodbye, when the user needs nothing more.",
        {"type": "object", "properties": {}},
    ),
)

log: Any = structlog.get_logger("flow_engine.chat")


@dataclass(slots=True)
class _Scene:
    """Where a conversation is, and what its model may call."""

    data: AgentData
    tools: TaskTools


@dataclass(slots=True)
class _Talk:
    """One answer of a flow. `said` are the model's own turns in it, and what its tools answered; `commands`
    tell it that the conversation has moved meanwhile."""

    asked: Asked
    agent: ChatAgent
    run: Run
    turn: ToolTurn
    toolbox: Toolbox
    contact: client.Contact
    said: list[models.Message] = field(default_factory=list[models.Message])
    commands: list[str] = field(default_factory=list[str])


class FlowAgents:
    """Implements `FlowTalk`. `open_mcp` makes the MCP connections of one answer."""

    def __init__(
        self,
        engine: client.EngineClient,
        open_mcp: OpenMcp,
        model: models.LanguageModel,
        accounts: Accounts,
        clock: Clock,
        policy: Policy,
        *,
        confirm_s: float,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._engine = engine
        self._open_mcp = open_mcp
        self._model = model
        self._accounts = accounts
        self._clock = clock
        self._policy = policy
        self._confirm_s = confirm_s
        self._new_id = new_id
        self._lists = ToolListCache()

    async def answer(self, asked: Asked, agent: ChatAgent) -> FinalState:
        state = asked.state
        if state.flow is None:
            name = f"{asked.ref.session_id}-{asked.id}"
            declared = agent.effective.row.flow
            flow_id = "" if declared is None else declared.flow_id
            state.flow = FlowRun(agent=agent.name, flow_id=flow_id, conversation=name, contact=name)
        run = Run(asked.conversation, asked.frames)
        turn = ToolTurn(asked, self._policy, self._confirm_s, run)
        account = AgentRun(agent.name, asked.id, tool_calls_log=turn.calls_log, uses=run.uses)
        try:
            async with self._talking(asked, agent, run, turn) as talk:
                return await self._answered(talk)
        except EngineError as error:
            log.warning("flow_unavailable", reason=str(error))
            account.status, account.error = "error", str(error)
            if isinstance(error, StateConflict | RequestRefused):
                state.flow = None
            await asked.frames.error("flow_unavailable", phrase("no_flow", state.language))
            return "refused"
        except models.ModelFailed as failure:
            account.status, account.error = "error", str(failure)
            raise
        except asyncio.CancelledError:
            account.status = "cancelled"
            raise
        finally:
            account.final_message = asked.frames.text or None
            await self._accounts.ran(asked.ref, account)

    async def end(self, tenant_id: str, state: SessionState, reason: str) -> None:
        if state.flow is None:
            return
        try:
            await self._engine.end_contact(
                client.Contact(state.flow.conversation, state.flow.contact), reason
            )
        except EngineError as error:
            log.warning("contact_not_ended", reason=str(error))

    async def human(
        self,
        ref: SessionRef,
        state: SessionState,
        frames: ChatFrames,
        *,
        outcome: client.HumanOutcome | None,
        text: str | None,
        name: str | None,
        reason: str | None,
    ) -> Mapping[str, JsonValue]:
        """Pass what a person does, or says, on to the engine and to the user. The task and its status as they
        are then.

        Raises ReloadAndDecide for a session without a flow, or a conversation that does not take it now;
        CorrectTheInput, LookElsewhere and RetryLater as the engine has it.
        """
        if state.flow is None:
            raise ReloadAndDecide("no_flow", "no flow goes on in this session")
        contact = client.Contact(state.flow.conversation, state.flow.contact)
        shown = AnswerFrames(frames, ref, f"human-{self._new_id()}", None, name)
        task: dict[str, JsonValue] = {}
        try:
            if outcome is not None:
                data = await self._engine.human_task(contact, outcome, reason)
                task = {"task": data.task_name, "task_type": data.task_type, "task_status": data.task_status}
                await shown.note({"event": "task", **_task(state.flow, data)})
            if text is not None:
                await self._report(contact, "agent", text, name=name)
                await shown.whole(text)
        except EngineError as error:
            raise _as_core(error) from error
        await shown.finish("done", {"event": "human"})
        return task

    # One answer -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _talking(
        self, asked: Asked, agent: ChatAgent, run: Run, turn: ToolTurn
    ) -> AsyncGenerator[_Talk]:
        flow = cast("FlowRun", asked.state.flow)
        contact = client.Contact(flow.conversation, flow.contact)

        async def ran(tool: TaskTool, answer: JsonValue) -> None:
            body = f"{tool.name}: {orjson.dumps(answer).decode()}"[:MOST_TOOL_CHARS]
            await self._report(contact, "bot", body, kind="tool")

        approval = Approval(self._policy, turn)
        toolbox = Toolbox(self._engine, self._open_mcp(), ran, approval, self._lists)
        talk = _Talk(asked, agent, run, turn, toolbox, contact)
        self._engine.follow(contact.conversation_id, talk.commands.append)
        try:
            yield talk
        finally:
            self._engine.follow(contact.conversation_id, None)
            await toolbox.aclose()

    async def _answered(self, talk: _Talk) -> FinalState:
        asked = talk.asked
        data = await self._enter(talk)
        await self._report(
            talk.contact, "user", asked.content, message_id=f"{asked.ref.session_id}-{asked.id}"
        )
        if data.task_type == _HUMAN and data.task_status == _CONNECTED:
            return "done"
        opening = [models.Message("user", data.command)] if data.command else []
        talk.said = [*opening, models.Message("user", asked.content)]
        scene = _Scene(data, await talk.toolbox.of_task(data))
        for _ in range(MAX_ITERATIONS):
            answer = await self._asked_model(talk, scene)
            if not answer.message.tool_calls:
                await self._report(talk.contact, "bot", answer.text)
                return "done"
            talk.said.append(answer.message)
            for call in answer.message.tool_calls:
                final = await self._called(talk, scene, call)
                if final is not None:
                    await self._report(talk.contact, "bot", asked.frames.text)
                    return final
        await asked.frames.error("max_iterations", phrase("too_long", asked.state.language))
        return "refused"

    async def _enter(self, talk: _Talk) -> AgentData:
        """The conversation as it is now; the engine tells a known contact where it is."""
        asked = talk.asked
        declared = talk.agent.effective.row.flow
        if declared is None:
            raise LookupError("an agent without a flow talks by itself")
        user: dict[str, JsonValue] = {"name": asked.state.user, "session": asked.ref.session_id}
        data = await self._engine.new_contact(
            client.NewContact(
                talk.contact,
                client.FlowChoice(flow_id=declared.flow_id, tag=declared.tag),
                "chat",
                facts=user,
                language=asked.state.language,
            )
        )
        await self._show_task(asked, data)
        return data

    async def _asked_model(self, talk: _Talk, scene: _Scene) -> models.LLMAnswer:
        """The model's turn; its text is shown while it comes."""
        asked, row = talk.asked, talk.agent.effective.row
        # The prompt of the moment, which knows the values of what was just said; and all of the task where
        # the conversation has gone on to another one.
        conversation_id = talk.contact.conversation_id
        tagged = await self._engine.prompt(conversation_id, wait_ms=PROMPT_WAIT_MS)
        if talk.commands:
            scene.data = await self._enter(talk)
            scene.tools = await talk.toolbox.of_task(scene.data)
            talk.said += [models.Message("user", command) for command in talk.commands]
            talk.commands.clear()
        elif tagged is not None:
            reachable = scene.data.reachable_tasks
            if any(task.required_variables for task in reachable):
                reachable = with_missing(reachable, await self._engine.memory(conversation_id))
            changes = {"prompt": tagged.reply.prompt, "reachable_tasks": reachable}
            scene.data = scene.data.model_copy(update=changes)
        change = change_task_declaration(scene.data.reachable_tasks, scene.data.returns_to)
        declared = [tool.declaration() for tool in scene.tools.tools]
        request = models.LLMRequest(
            messages=(models.Message("system", scene.data.prompt), *asked.before, *talk.said),
            tools=[
                *(
                    models.ToolSpec(
                        str(each["name"]),
                        str(each["description"]),
                        cast("Mapping[str, object]", each["parameters"]),
                    )
                    for each in (declared if change is None else [change, *declared])
                ),
                *_OWN_TOOLS,
            ],
            model=row.model,
            max_tokens=MAX_TOKENS,
            temperature=TEMPERATURE if row.temperature is None else row.temperature,
            top_p=row.top_p,
            num_ctx=row.num_ctx,
            deltas=True,
            conversation=asked.conversation,
        )
        return await shown(self._model, request, talk.run)

    async def _called(self, talk: _Talk, scene: _Scene, call: models.ToolCall) -> FinalState | None:
        """Runs a call of the model. The state that ends the answer, None where it goes on."""
        frames = talk.asked.frames
        match call.name:
            case "ask_user":
                await frames.dialogue(str(call.arguments.get("question", "")), begins=True)
                return "clarifying"
            case "refuse":
                await frames.dialogue(str(call.arguments.get("reason", "")), begins=True)
                return "refused"
            case "end_call":
                await self.end(talk.asked.ref.tenant_id, talk.asked.state, "bot_hung_up")
                talk.asked.state.flow = None
                return "done"
            case "change_task":
                result = await self._change_task(talk, scene, call)
            case _:
                talk.turn.registry = scene.tools.registry
                result = await talk.turn.act(call)
        talk.said.append(models.Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id))
        if call.name == CHANGE_TASK and scene.data.command and cast("dict[str, JsonValue]", result)["result"]:
            talk.said.append(models.Message("user", scene.data.command))
        return None

    async def _change_task(self, talk: _Talk, scene: _Scene, call: models.ToolCall) -> JsonValue:
        try:
            reply = await self._engine.change_task(talk.contact, *change_asked_for(call.arguments))
        except StateConflict as conflict:
            return {"result": False, "code": conflict.code, "reason": str(conflict)}
        if isinstance(reply, TaskRefused):
            scene.data = scene.data.model_copy(update={"reachable_tasks": reply.reachable_tasks})
            return {
                "result": False,
                "code": reply.code,
                "reason": reply.reason,
                "missing": [variable.name for variable in reply.missing],
                "reachableTasks": list[JsonValue](task_names(reply.reachable_tasks)),
            }
        scene.data, scene.tools = reply, await talk.toolbox.of_task(reply)
        await self._show_task(talk.asked, reply)
        return {"result": True, "task": reply.task_name, "type": reply.task_type}

    async def _show_task(self, asked: Asked, data: AgentData) -> None:
        """A state frame, at the start and at each change of task or status."""
        flow = cast("FlowRun", asked.state.flow)
        if (data.task_id, data.task_status) != (flow.task, flow.status):
            flow.task, flow.status = data.task_id, data.task_status
            await asked.frames.note({"event": "task", **_task(flow, data)})

    async def _report(
        self,
        contact: client.Contact,
        src: client.Source,
        body: str,
        *,
        kind: Any = "message",
        message_id: str | None = None,
        name: str | None = None,
    ) -> None:
        if body.strip():
            at = self._clock.now()
            said = client.Utterance(message_id or self._new_id(), at, src, body, kind, src_name=name)
            await self._engine.utterance(contact, said)


def _task(flow: FlowRun, data: AgentData) -> dict[str, JsonValue]:
    return {
        "flow_id": flow.flow_id,
        "conversation": flow.conversation,
        "contact": flow.contact,
        "task": data.task_name,
        "task_type": data.task_type,
        "task_status": data.task_status,
    }


def _as_core(error: EngineError) -> CorrectTheInput | LookElsewhere | ReloadAndDecide | RetryLater:
    """The engine's refusal as a client of the chat gets it."""
    detail = error.problem.detail if error.problem else str(error)
    if isinstance(error, StateConflict):
        return ReloadAndDecide(error.code or "state_conflict", detail)
    if isinstance(error, RequestRefused):
        return CorrectTheInput(error.code or "engine_refused", detail)
    return RetryLater("engine_unavailable", "the flow engine does not answer")
