"""A call that follows a flow of the engine: `session.mode: flow` (V2).

The engine owns tasks, memory and prompts; the call's machine owns audio. This handler carries between them:

    open      handle-new-contact         → the session
    started                              → its command, `/start` or `/resume`
    run_tool  change_task, MCP tools     → another task, or an answer
    notice    a turn, or keys: handle-utterance, in order → a fresh prompt, when it says something new
              silence: handle-utterance (system) → the model asks whether somebody is there
              a transfer failed: handle-human-task
    ended     handle-end-contact, once

In a task with approval the model gets neither its prompt nor its tools: it tells the caller that this is not
settled on the phone, and goes on elsewhere.

What goes wrong at the engine never ends a call by itself: the model is told, or goes on as it was. Only a
call that cannot even begin is refused.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

import structlog

from adapters.models.answers import tool_arguments
from adapters.models.tools import Approval
from channels.engine_client import replies
from channels.engine_client.client import EngineClient, Pause, Utterance
from channels.engine_client.mcp_tools import McpServers
from channels.engine_client.toolbox import Toolbox, ToolListCache
from channels.engine_client.tools import (
    CHANGE_TASK,
    END_CALL,
    TaskTool,
    change_asked_for,
    task_names,
    with_missing,
)
from channels.voice.call import ports
from channels.voice.flow import task_context
from channels.voice.flow.engine_sync import (
    DialogueReport,
    MemoryNotices,
    PromptRefresher,
    TranscriptBarrier,
    is_over,
)
from flow_engine.ports.models import ToolCall
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.voice")

DRAIN_WITHIN_S: Final = 10.0
NO_UTTERANCE: Final = "no_utterance"

END_REASONS: Final[Mapping[ports.EndReason, str]] = {"agent_hung_up": "bot_hung_up"}
"""Reasons that the engine would misread: it tells from the words who ended a contact, and takes an agent for
a person. All others go as they are."""


class FlowCallHandler:
    """Implements `CallHandler`. `base` is what the agent's own configuration says about the session,
    `servers` are this call's own, `tool_lists` what is remembered of them from other calls. `now` is the time
    of day, aware. Without `notices` the engine is polled for changes of the memory. `pause` waits that many
    seconds for an engine that is away."""

    def __init__(
        self,
        start: task_context.FlowStart,
        base: ports.SessionSettings,
        caller: ports.Caller,
        controls: ports.CallSeat,
        *,
        engine: EngineClient,
        servers: McpServers,
        now: Callable[[], datetime],
        approval: Approval | None = None,
        tool_lists: ToolListCache | None = None,
        notices: MemoryNotices | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._start = start
        self._base = base
        self._controls = controls
        self._engine = engine
        self._now = now
        self._new = task_context.new_contact(start, caller)
        self.contact = self._new.contact
        self._span = task_context.ContactSpan(engine, self._new, pause)
        self._ids = {"agent_id": start.agent_id, "call_id": caller.call_id}
        self._toolbox = Toolbox(engine, servers, self._tool_ran, approval, tool_lists)
        self._watch = PromptRefresher(engine, self.contact.conversation_id, self._refreshed, self._lose)
        self._notices = notices
        self._words = TranscriptBarrier(controls, self._watch)
        self._report = DialogueReport(engine, self.contact, self._settled, pause=pause)
        self._task_lock = asyncio.Lock()
        self._following: set[asyncio.Task[None]] = set()
        self._task: task_context.TaskContext | None = None
        self._first_words = True
        self._transfer = task_context.HumanTransfer(start, engine, self.contact)
        self._messages = 0
        self._silences = 0
        self._is_lost = False
        self._has_ended = False

    async def open(self) -> ports.SessionSettings | ports.Refused:
        self._name_call()
        try:
            data = await self._span.begin()
        except replies.EngineError as error:
            log.error("flow_not_started", reason=str(error))
            return ports.Refused(self._start.apology)
        model = None if data.llm is None else data.llm.model
        if "realtime" not in (model or ""):
            # A realtime model speaks whatever the flow says, but the engine has other prompts for those.
            log.info("flow_not_for_realtime", flow_model=model, task=data.task_name)
        self._engine.follow(self.contact.conversation_id, self._commanded)
        await self._set_task(await self._transfer.or_without(data))
        self._transfer.after_first_words = self._transfer.target is not None
        if self._notices is not None:
            await self._notices.follow(self.contact.conversation_id, self._watch.noticed)
        return self._settings()

    async def started(self) -> str | None:
        return self._current.data.command

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        self._name_call()
        now = asyncio.get_running_loop().time
        began, outcome = now(), "failed"
        try:
            answer = await self._run_tool(name, tool_arguments(arguments))
            is_error = isinstance(answer, dict) and ("error" in answer or answer.get("result") is False)
            outcome = "failed" if is_error else "ok"
            return answer
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            ms = round((now() - began) * 1000)
            log.info("tool_call", tool=name, outcome=outcome, duration_ms=ms)

    async def _run_tool(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        if name == CHANGE_TASK:
            return await self._change_task(*change_asked_for(arguments))
        if name == END_CALL:
            self._controls.hang_up()
            return {"status": "ok"}
        tools = self._current.tools
        if any(tool.takes_variables for tool in tools.tools if tool.name == name):
            await self._words.read()
        return await tools.registry.execute(ToolCall(name, name, arguments))

    async def notice(self, notice: ports.HandlerNotice) -> None:
        self._name_call()
        if self._task is None:  # the words of the apology: there is no task for them
            return
        match notice:
            case ports.Turn():
                if notice.role == "user":
                    self._silences = 0
                elif self._first_words:
                    self._first_words_spoken()
                if not notice.text.strip():
                    return
                if notice.role == "user":
                    self._report_utterance(Utterance(self._message_id(), notice.at, "user", notice.text))
                else:
                    self._report_utterance(replace(self._own(notice.text), at=notice.at))
            case ports.KeysPressed():
                self._silences = 0
                self._report_utterance(Utterance(self._message_id(), self._now(), "user", notice.text))
            case ports.CallerSilent():
                self._silences += 1
                self._report_utterance(self._own(NO_UTTERANCE, "system"))
                if self._silences > task_context.SILENCES_BEFORE_GOODBYE:
                    self._controls.hang_up()
                else:
                    seconds = self._current.data.user_interaction_timeout or 0.0
                    self._controls.instruct(task_context.nobody_spoke(seconds, self._silences))
            case ports.TransferFailed():
                # The engine is told, and says how the conversation goes on without that person.
                async with self._task_lock:
                    data = await self._transfer.failed()
                    if data is None:
                        self._controls.instruct(task_context.NOBODY_FREE)
                    else:
                        await self._set_task(data)
                        self._transfer.target = None  # the same address again would be no help
                        self._controls.switch_task(self._settings(), data.command)

    def _first_words_spoken(self) -> None:
        before, self._first_words = self._settings(), False
        if self._settings() != before:
            self._controls.reconfigure(self._settings())
        if self._transfer.after_first_words and self._transfer.target is not None:
            self._controls.transfer(self._transfer.target)

    async def ended(self, ending: ports.Ending) -> None:
        if self._has_ended:
            return
        self._name_call()
        self._has_ended = True
        self._engine.follow(self.contact.conversation_id, None)
        if self._notices is not None:
            await self._notices.unfollow(self.contact.conversation_id, self._watch.noticed)
        await self._watch.stop()
        await asyncio.gather(self._report.finish(DRAIN_WITHIN_S), self._toolbox.aclose())
        await self._transfer.ended(ending.reason)
        await self._span.end(END_REASONS.get(ending.reason, ending.reason))

    def _name_call(self) -> None:
        """In every log line of this task from here on, the engine's client's included."""
        structlog.contextvars.bind_contextvars(**self._ids)

    @property
    def _current(self) -> task_context.TaskContext:
        if self._task is None:
            raise LookupError("the call has not been opened")
        return self._task

    def _settings(self) -> ports.SessionSettings:
        task = self._current
        return task_context.session_settings(
            self._base, task.data, task.declarations(), first_words=self._first_words
        )

    async def _set_task(self, data: replies.AgentData) -> None:
        if data.approval_required:
            log.warning("approval_not_spoken", task=data.task_name)
            data = data.model_copy(update={"mcp_tools": ()})
        tools = await self._toolbox.of_task(data)
        self._task = task_context.TaskContext(data, tools, data.reachable_tasks)
        self._watch.knows(data.prefix_hash, data.prompt)
        self._transfer.enter(data)
        log.info("task_entered", task=data.task_name, type=data.task_type, tools=len(tools.tools))

    async def _change_task(self, task_name: str, why: str | None) -> JsonValue:
        if any(not task.can_be_entered for task in self._current.reachable if task.name == task_name):
            await self._words.read()
        async with self._task_lock:
            try:
                reply = await self._engine.change_task(self.contact, task_name, why)
            except replies.StateConflict as conflict:
                # Somebody else has changed the conversation: go on by what it is now.
                alive = await self._reload()
                detail = "" if conflict.problem is None else conflict.problem.detail
                return {
                    "result": False,
                    "code": conflict.code,
                    "reason": detail,
                    "reachableTasks": _named(self._current.reachable) if alive else [],
                }
            except replies.EngineError as error:
                log.error("task_not_changed", reason=str(error))
                if is_over(error):
                    self._lose()
                return {"result": False, "reason": task_context.TRY_AGAIN}
            if isinstance(reply, replies.TaskRefused):
                return self._refused(reply)
            await self._enter(reply)
            return {"result": True, "task": reply.task_name, "type": reply.task_type}

    async def _enter(self, data: replies.AgentData) -> None:
        """Another task: the old one's words and tools stop, and the model begins by the command."""
        data = await self._transfer.or_without(data)
        await self._set_task(data)
        self._controls.switch_task(self._settings(), data.command)
        self._transfer.after_first_words = False
        if self._transfer.target is not None:
            self._controls.transfer(self._transfer.target)

    def _refused(self, refusal: replies.TaskRefused) -> JsonValue:
        log.info("task_refused", code=refusal.code)
        task = self._current
        data = task.data.model_copy(update={"revision": max(refusal.revision, task.data.revision)})
        self._task = replace(task, data=data, reachable=refusal.reachable_tasks)
        if self._task.declarations() != task.declarations():
            self._controls.reconfigure(self._settings())
        return {
            "result": False,
            "code": refusal.code,
            "reason": refusal.reason,
            "missing": [
                {
                    "name": variable.name,
                    "type": variable.type,
                    "fillableBy": list(variable.fillable_by),
                    "fillableIn": [each.model_dump(mode="json") for each in variable.fillable_in],
                }
                for variable in refusal.missing
            ],
            "reachableTasks": _named(refusal.reachable_tasks),
        }

    def _commanded(self, command: str) -> None:
        """The conversation has moved without this call: by a person who never came, or by itself."""
        task = asyncio.create_task(self._follow(command))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, command: str) -> None:
        self._name_call()
        async with self._task_lock:
            try:
                data = await self._engine.new_contact(self._new)
            except replies.EngineError as error:
                log.warning("conversation_not_reloaded", reason=str(error))
                return
            if not self._has_ended:
                await self._enter(data.model_copy(update={"command": command}))

    async def _reload(self) -> bool:
        """Whether the conversation is still this call's. The engine tells a known contact where it is."""
        before = self._current.data
        try:
            data = await self._engine.new_contact(self._new)
        except replies.StateConflict as conflict:
            log.info("conversation_not_active", reason=str(conflict))
            self._lose()
            return False
        except replies.EngineError as error:
            log.warning("conversation_not_reloaded", reason=str(error))
            return True
        if data.task_id != before.task_id:
            await self._enter(data)
        elif data.prefix_hash != before.prefix_hash or data.revision != before.revision:
            await self._set_task(data)
            self._controls.reconfigure(self._settings())
        return True

    def _lose(self) -> None:
        """The conversation is over, or another contact's: this call can only say goodbye."""
        if not self._is_lost and not self._has_ended:
            log.warning("conversation_lost")
            self._is_lost = True
            self._controls.instruct(task_context.LOST)

    async def _refreshed(self, reply: replies.PromptReply) -> bool:
        """Give the model a prompt that says something new; False for one that is too late."""
        async with self._task_lock:
            task = self._current
            if self._has_ended or reply.revision < task.data.revision:
                return False
            if reply.prefix_hash != task.data.prefix_hash:
                if reply.command is None:  # whoever follows commands loads it anew
                    await self._reload()
                return False
            data = task.data.model_copy(update={"prompt": reply.prompt, "revision": reply.revision})
            self._task = replace(task, data=data, reachable=await self._reachable_now(task))
            self._controls.reconfigure(self._settings())
            return True

    async def _reachable_now(self, task: task_context.TaskContext) -> tuple[replies.ReachableTask, ...]:
        if not any(task.required_variables for task in task.reachable):
            return task.reachable
        try:
            memory = await self._engine.memory(self.contact.conversation_id)
        except replies.EngineError as error:
            log.warning("memory_not_read", reason=str(error))
            return task.reachable
        return with_missing(task.reachable, memory)

    def _report_utterance(self, utterance: Utterance) -> None:
        if not self._is_lost:
            self._report.add(utterance)

    def _own(self, body: str, type: Literal["system", "message"] = "message") -> Utterance:
        """Something of the agent itself."""
        names = (self._start.agent_id or None, self._start.agent_name or None)
        return Utterance(self._message_id(), self._now(), "bot", body, type, *names)

    def _settled(self, utterance: Utterance) -> None:
        if utterance.src == "user" and not self._has_ended:
            self._words.arrived(utterance)
            self._watch.after_user_turn()

    def _message_id(self) -> str:
        self._messages += 1
        return f"{self.contact.contact_id}-{self._messages}"

    async def _tool_ran(self, tool: TaskTool, answer: JsonValue) -> None:
        told = tool.told(answer)
        self._report_utterance(
            Utterance(self._message_id(), self._now(), "bot", told, "tool", src_id=tool.name)
        )
        await self._watch.look()


def _named(tasks: tuple[replies.ReachableTask, ...]) -> JsonValue:
    return [
        {"task": name, "missing": list(task.missing_variables)}
        for name, task in zip(task_names(tasks), tasks, strict=True)
    ]
