"""An agent that is a flow of the engine (C15): the chat carries between user, model and engine.

    first message   handle-new-contact        → prompt, tools, task
    each message    handle-utterance, prompt  → what the model goes by now
    change_task, MCP tools                    → another task, or an answer
    answers         handle-utterance (bot)
    end             handle-end-contact, once

A contact is named by the message that began it, so that a repetition starts no second one. The state of the
conversation is the engine's: whoever works on the session next asks the engine for it.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson
import structlog
from pydantic import ValidationError

from adapters.models.loop import MAX_ITERATIONS
from adapters.models.tools import Approval, Policy
from channels.chat import agents
from channels.chat.accounts import Accounts, AgentRun
from channels.chat.answer import AnswerRequest, ToolTurn
from channels.chat.frames import FinalState
from channels.chat.people import KeyOfAnotherTenant, People, commands_of, task_note
from channels.chat.state import FlowRun, HeldText, SessionState
from channels.chat.wording import phrase
from channels.engine_client import client
from channels.engine_client.ends import ContactEnds
from channels.engine_client.mcp_tools import OpenMcp
from channels.engine_client.replies import (
    OF_PERSONS,
    AgentData,
    EngineError,
    RequestRefused,
    StateConflict,
    TaskRefused,
)
from channels.engine_client.toolbox import TaskTools, Toolbox, ToolListCache
from channels.engine_client.tools import (
    CHANGE_TASK,
    END_CALL,
    TaskTool,
    change_asked_for,
    change_task_spec,
    not_changed,
    with_missing,
)
from flow_engine.documents.findings import breaches_of
from flow_engine.ports import models
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.clock import Clock
from flow_engine.values import JsonValue

PROMPT_WAIT_MS: Final = 1_500
"""How long the prompt of an answer waits for values that are still being found in the message."""

_ABOUT_TEXTS: Final = "/human_task_"
"""Begins the commands that tell what a person has decided."""

_OWN_TOOLS: Final = (
    models.ToolSpec(agents.ASK_USER, agents.AskUser.__doc__ or "", agents.AskUser.model_json_schema()),
    models.ToolSpec(agents.REFUSE, agents.Refuse.__doc__ or "", agents.Refuse.model_json_schema()),
    models.ToolSpec(
        END_CALL,
        "End the conversation. Call it after saying goodbye, when the user needs nothing more.",
        {"type": "object", "properties": {}},
    ),
)

log: Any = structlog.get_logger("flow_engine.chat")


@dataclass(slots=True)
class _Talk:
    """One answer. `data` tells where its conversation is, `tools` what its model may call there. `turns` are
    its messages, the user's included; `commands` tell it where it has moved."""

    request: AnswerRequest
    agent: agents.ChatAgent
    run: agents.Run
    turn: ToolTurn
    toolbox: Toolbox
    contact: client.Contact
    data: AgentData = field(init=False)
    tools: TaskTools = field(init=False)
    turns: list[models.Message] = field(default_factory=list[models.Message])
    commands: list[str] = field(default_factory=list[str])


class FlowAgents:
    """Agents that are given a flow. `open_mcp` makes MCP connections of one answer; `tenants` is as in
    `People`."""

    def __init__(
        self,
        engine: client.EngineClient,
        ends: ContactEnds,
        open_mcp: OpenMcp,
        model: models.LanguageModel,
        accounts: Accounts,
        clock: Clock,
        policy: Policy,
        *,
        confirm_s: float,
        tenants: Collection[str],
    ) -> None:
        self.people = People(engine, clock, tenants)
        self._engine = engine
        self._ends = ends
        self._open_mcp = open_mcp
        self._model = model
        self._accounts = accounts
        self._policy = policy
        self._confirm_s = confirm_s
        self._lists = ToolListCache()

    async def answer(self, request: AnswerRequest, agent: agents.ChatAgent) -> FinalState:
        """Answers one message, as frames of JSON; begins the flow's contact where there is none.
        `request.state.flow` is None once it has ended."""
        state = request.state
        if state.flow is None:
            name = f"{request.ref.session_id}-{request.id}"
            declared = agent.row.flow
            flow_id = "" if declared is None else declared.flow_id
            state.flow = FlowRun(agent=agent.name, flow_id=flow_id, conversation=name, contact=name)
            await request.keep()  # whoever takes over knows of the contact, goes on with it and ends it
        run = agents.Run(request.conversation, request.frames)
        turn = ToolTurn(request, self._policy, self._confirm_s, run)
        account = AgentRun(agent.name, request.id, tool_calls_log=turn.calls_log, uses=run.uses)
        async with self._accounts.running(request.ref, account, request.frames):
            try:
                async with self._talking(request, agent, run, turn) as talk:
                    return await self._answered(talk)
            except EngineError as error:
                log.warning("flow_unavailable", reason=str(error))
                account.status, account.error = "error", str(error)
                if isinstance(error, StateConflict | RequestRefused):
                    state.flow = None
                await request.frames.error("flow_unavailable", phrase("no_flow", state.language))
                return "refused"

    async def keeps_user(self, ref: SessionRef, state: SessionState, agent: agents.ChatAgent) -> bool:
        """Whether a person talks to the user, or is being asked to: then the user does not break out. Where
        the engine is away, as it was known last."""
        flow = state.flow
        if flow is None or flow.task is None:  # the engine has not been asked yet
            return False
        try:
            return (await self._where(ref, state, agent)).belongs_to_person
        except EngineError as error:
            log.warning("status_unknown", reason=str(error))
            is_over = isinstance(error, StateConflict | RequestRefused)
            return not is_over and flow.status in OF_PERSONS

    async def end(self, tenant_id: str, state: SessionState, reason: str) -> None:
        """Ends the contact, if there is one. Never raises for an engine that is away: it is told again."""
        if state.flow is None:
            return
        try:
            contact = self.people.contact(tenant_id, state.flow)
        except KeyOfAnotherTenant as error:
            log.warning("contact_not_ended", reason=str(error))
        else:
            await self._ends.end(contact, reason)

    # One answer -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _talking(
        self, request: AnswerRequest, agent: agents.ChatAgent, run: agents.Run, turn: ToolTurn
    ) -> AsyncGenerator[_Talk]:
        contact = self.people.contact(request.ref.tenant_id, cast("FlowRun", request.state.flow))

        async def ran(tool: TaskTool, answer: JsonValue) -> None:
            await self.people.report(contact, "bot", tool.told(answer), kind="tool")

        toolbox = Toolbox(self._engine, self._open_mcp(), ran, Approval(self._policy, turn), self._lists)
        talk = _Talk(request, agent, run, turn, toolbox, contact)
        self._engine.follow(contact.conversation_id, talk.commands.append)
        try:
            yield talk
        finally:
            self._engine.follow(contact.conversation_id, None)
            await toolbox.aclose()

    async def _answered(self, talk: _Talk) -> FinalState:
        request, flow = talk.request, cast("FlowRun", talk.request.state.flow)
        is_new = flow.task is None
        await self._enter(talk)
        talk.turns = [models.Message("user", request.content)]
        talk.tools = await talk.toolbox.of_task(talk.data)
        if flow.held is not None:  # another replica has asked the model
            final = await self._released(talk, flow.held)
            if final is not None:
                return final
            talk.turns.insert(1, models.Message("assistant", flow.held.text))
            flow.held = None
        else:
            name = f"{request.ref.session_id}-{request.id}"
            await self.people.report(talk.contact, "user", request.content, message_id=name)
            if talk.data.is_with_person:
                return "done"
            talk.turns[:0] = commands_of(flow, talk.data.command if is_new else None)
        for _ in range(MAX_ITERATIONS):
            answer = await self._asked_model(talk)
            talk.turns.append(answer.message)
            if not answer.message.tool_calls:
                final = await self._uttered(talk, answer.text, "done", is_shown=True)
                if final is not None:
                    return final
            elif not talk.data.approval_required:  # else they were not shown
                await self.people.report(talk.contact, "bot", answer.text)
            for call in answer.message.tool_calls:
                final = await self._called(talk, call)
                if final is not None:
                    return final
        await request.frames.error("max_iterations", phrase("too_long", request.state.language))
        return "refused"

    async def _uttered(
        self, talk: _Talk, text: str, final: FinalState, *, is_shown: bool = False
    ) -> FinalState | None:
        """The last words of an answer, which then ends in `final`. In a task with approval they wait for a
        person: None where that person does not let them be sent, and the model has another try."""
        request, flow = talk.request, cast("FlowRun", talk.request.state.flow)
        if talk.data.approval_required and text.strip():
            last = talk.data.approval
            after = 0 if last is None else last.approval_id
            held = HeldText(message=request.id, text=text, after=after, final=final)
            flow.held = held
            await request.keep()
            state = await self._released(talk, held)
            flow.held = None
            return state
        if not is_shown:
            await request.frames.dialogue(text, begins=True)
        await self.people.report(talk.contact, "bot", text)
        return final

    async def _released(self, talk: _Talk, held: HeldText) -> FinalState | None:
        """As a person decides on the text that is held: the state in which the answer ends, None where it is
        the model's turn again."""
        request, flow = talk.request, cast("FlowRun", talk.request.state.flow)
        known = talk.data.approval
        try:
            if known is None or known.approval_id <= held.after:
                known = await self.people.texts(request.ref.tenant_id, flow).submit(held.text)
        except StateConflict:
            await self._enter(talk)
            if talk.data.is_with_person:
                return "done"
            raise
        await self._enter(talk)
        if talk.data.approval is not None and talk.data.approval.approval_id == known.approval_id:
            known = talk.data.approval
        fate, approval = await self.people.awaited(request, flow, known)
        talk.commands[:] = [each for each in talk.commands if not each.startswith(_ABOUT_TEXTS)]
        match fate:
            case "withdrawn":  # whoever has withdrawn it talks to the user, or nobody does any more
                return "done"
            case "rejected":
                talk.commands.append(f"{_ABOUT_TEXTS}rejected {approval.reason or ''}".rstrip())
                return None
            case "timeout":
                request.frames.close_with(phrase("not_checked", request.state.language))
                return "refused"
            case "approved" | "edited":
                request.frames.close_with(approval.text)
        try:
            await self._enter(talk)
            name = f"{request.ref.session_id}-{request.id}-answer"
            await self.people.report(talk.contact, "bot", approval.text, message_id=name)
        except EngineError as error:  # what a person has approved is sent all the same
            log.warning("answer_not_reported", reason=str(error))
        return held.final

    async def _enter(self, talk: _Talk) -> None:
        """The conversation as it is now, and the user is shown its task."""
        talk.data = await self._where(talk.request.ref, talk.request.state, talk.agent)
        await self._show_task(talk)

    async def _where(self, ref: SessionRef, state: SessionState, agent: agents.ChatAgent) -> AgentData:
        """The conversation as it is now; the engine tells a known contact where it is. Raises EngineError."""
        declared = agent.row.flow
        if declared is None:
            raise LookupError("an agent without a flow talks by itself")
        contact = self.people.contact(ref.tenant_id, cast("FlowRun", state.flow))
        choice = client.FlowChoice(flow_id=declared.flow_id, tag=declared.tag)
        user: dict[str, JsonValue] = {"name": state.user, "session": ref.session_id}
        new = client.NewContact(contact, choice, "chat", facts=user, language=state.language)
        return await self._engine.new_contact(new)

    async def _asked_model(self, talk: _Talk) -> models.LLMAnswer:
        """The model's turn; its text is shown while it comes."""
        request, row = talk.request, talk.agent.row
        # The prompt of the moment, which knows the values of what was just said; and all of the task where
        # the conversation has gone on to another one.
        tagged = await self._engine.prompt(talk.contact.conversation_id, wait_ms=PROMPT_WAIT_MS)
        if talk.commands:
            await self._enter(talk)
            talk.tools = await talk.toolbox.of_task(talk.data)
            talk.turns += [models.Message("user", command) for command in talk.commands]
            talk.commands.clear()
        elif tagged is not None:
            reachable = talk.data.reachable_tasks
            if any(task.required_variables for task in reachable):
                reachable = with_missing(reachable, await self._engine.memory(talk.contact.conversation_id))
            changes = {"prompt": tagged.reply.prompt, "reachable_tasks": reachable}
            talk.data = talk.data.model_copy(update=changes)
        change = change_task_spec(talk.data.reachable_tasks, talk.data.returns_to)
        specs = (change, *(tool.spec for tool in talk.tools.tools), *_OWN_TOOLS)
        model, temperature = agents.chosen_model(row, talk.data.llm)
        llm_request = models.LLMRequest(
            messages=(models.Message("system", talk.data.prompt), *request.before, *talk.turns),
            tools=[spec for spec in specs if spec is not None],
            model=model,
            max_tokens=agents.MAX_TOKENS,
            temperature=temperature,
            top_p=row.top_p,
            num_ctx=row.num_ctx,
            deltas=True,
            conversation=request.conversation,
        )
        return await agents.shown(self._model, llm_request, talk.run, hidden=talk.data.approval_required)

    async def _called(self, talk: _Talk, call: models.ToolCall) -> FinalState | None:
        """Runs a call of the model. The state that ends the answer, None where it goes on."""
        result: JsonValue = {"error": "a person has rejected this text"}
        match call.name:
            case "ask_user" | "refuse":
                try:
                    text, state = agents.told_by(call)
                except ValidationError as error:
                    result = {"error": "; ".join(breaches_of(error))}
                else:
                    final = await self._uttered(talk, text, state)
                    if final is not None:
                        return final
            case "end_call":
                final: FinalState | None = "done"
                words = next(each.content for each in reversed(talk.turns) if each.role == "assistant")
                if talk.data.approval_required and words.strip():
                    final = await self._uttered(talk, words, "done")
                if final is not None:
                    await self.end(talk.request.ref.tenant_id, talk.request.state, "bot_hung_up")
                    talk.request.state.flow = None
                    return final
            case "change_task":
                result = await self._change_task(talk, call)
            case _:
                talk.turn.registry = talk.tools.registry
                result = await talk.turn.act(call)
        talk.turns.append(models.Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id))
        if call.name == CHANGE_TASK and talk.data.command and cast("dict[str, JsonValue]", result)["result"]:
            talk.turns.append(models.Message("user", talk.data.command))
        return None

    async def _change_task(self, talk: _Talk, call: models.ToolCall) -> JsonValue:
        try:
            reply = await self._engine.change_task(talk.contact, *change_asked_for(call.arguments))
        except StateConflict as conflict:
            return not_changed(conflict)
        if isinstance(reply, TaskRefused):
            talk.data = talk.data.model_copy(update={"reachable_tasks": reply.reachable_tasks})
            return not_changed(reply)
        talk.data, talk.tools = reply, await talk.toolbox.of_task(reply)
        await self._show_task(talk)
        return {"result": True, "task": reply.task_name, "type": reply.task_type}

    async def _show_task(self, talk: _Talk) -> None:
        """A state frame, at the start and at each change of task or status."""
        flow, data = cast("FlowRun", talk.request.state.flow), talk.data
        if (data.task_id, data.task_status) != (flow.task, flow.status):
            flow.task, flow.status = data.task_id, data.task_status
            await talk.request.frames.note(task_note(flow, data))
