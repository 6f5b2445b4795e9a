"""A thread of mails as a conversation of the engine: each mail is a contact of it, on the channel `mail`.

    a mail comes     handle-new-contact, handle-utterance, prompt → what the model goes by, and its tools
    change_task      → another task; its prompt is the tool's result
    send_reply       in a task with approval: handle-human-task, and the run waits for the decision
    escalate         change-task to the first human task that can be entered
    the run ends     handle-utterance (bot), handle-end-contact unless a person has the conversation now

All ids are made of the run's, so that a run that is taken over repeats the same calls, and the engine knows
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import structlog

from adapters.models.tools import Approval, Arguments, Tool
from channels.engine_client import client, replies
from channels.engine_client.approvals import SENT, HeldTexts, is_decided
from channels.engine_client.mcp_tools import McpServers
from channels.engine_client.toolbox import Toolbox, ToolListCache
from channels.engine_client.tools import (
    MOST_TOOL_CHARS,
    REASON_CHARS,
    TaskTool,
    change_asked_for,
    change_task_spec,
    not_changed,
)
from channels.mail.config import FlowChoice as DeclaredFlow
from channels.mail.ports import Decision, FlowTask
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import ToolCall
from flow_engine.ports.outbound import header_key
from flow_engine.values import JsonValue

PROMPT_WAIT_MS: Final = 1_500
"""How long the prompt waits for values that are still being found in the mail."""

MOST_TEXT_CHARS: Final = 16_000
_HUMAN: Final = "HUM"

log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class FlowRun:
    """Which run of which conversation; `facts` are what the flow's templates know as `$contact`."""

    run_id: str
    conversation_id: str
    facts: Mapping[str, JsonValue]


def conversation_of(mailbox: str, thread: str) -> str:
    """The id of a thread's conversation."""
    digest = hashlib.sha256(f"{mailbox}\0{thread}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"mail-{digest[:32]}"


class FlowConversations:
    """The engines that the profiles name. `environ` has their API keys; `open_mcp` makes the MCP connections
    of one run, of the engine's address and the headers that each trusted address gets."""

    def __init__(
        self,
        environ: Mapping[str, str],
        open_mcp: Callable[[str, Mapping[str, Mapping[str, str]]], McpServers],
        clock: Clock,
    ) -> None:
        self._environ = environ
        self._open_mcp = open_mcp
        self._clock = clock
        self._http: dict[tuple[str, str], httpx2.AsyncClient] = {}
        self._lists = ToolListCache()

    async def aclose(self) -> None:
        for http in self._http.values():
            await http.aclose()

    @asynccontextmanager
    async def contact(self, declared: DeclaredFlow, run: FlowRun) -> AsyncGenerator[EngineContact]:
        """Open while the run is worked on."""
        engine, key = self._engine(declared), self._key(declared)
        trusted = {engine.mcp_url: {"Authorization": f"Bearer {key}"} if key else {}}
        contact = EngineContact(engine, declared, run, self._clock)
        servers = self._open_mcp(declared.engine_url, trusted)
        contact.toolbox = Toolbox(engine, servers, contact.tool_ran, Approval(), self._lists)
        try:
            yield contact
        finally:
            await contact.toolbox.aclose()

    async def decision(
        self, declared: DeclaredFlow, contact: client.Contact, known: replies.ApprovalState
    ) -> Decision | None:
        """What a person has decided on the text, None while it waits; a text that was not decided in time, or
        was withdrawn, counts as rejected. Raises RetryLater, CallTheOperator."""
        with _translated():
            now = await HeldTexts(self._engine(declared), contact, self._clock.now).look(known)
        if not is_decided(now):
            return None
        return "approved" if now.status in SENT else "rejected"

    def _engine(self, declared: DeclaredFlow) -> client.EngineClient:
        named = (declared.engine_url, declared.api_key_env)
        if named not in self._http:
            self._http[named] = client.engine_http(declared.engine_url, self._key(declared))
        return client.EngineClient(self._http[named])

    def _key(self, declared: DeclaredFlow) -> str | None:
        return header_key(self._environ.get(declared.api_key_env))


class EngineContact:
    """Implements `ports.FlowContact`. Raises RetryLater `engine_unavailable`, and CallTheOperator
    `engine_refused` where the engine takes a call not at all."""

    toolbox: Toolbox

    def __init__(
        self, engine: client.EngineClient, declared: DeclaredFlow, run: FlowRun, clock: Clock
    ) -> None:
        self._engine = engine
        self._declared = declared
        self._run = run
        self._clock = clock
        self._contact = client.Contact(run.conversation_id, run.run_id)
        self._data: replies.AgentData | None = None
        self._tools_ran = 0
        engine.follow(self.conversation_id, self._moved)

    @property
    def conversation_id(self) -> str:
        return self._contact.conversation_id

    async def enter(self, text: str) -> FlowTask:
        with _translated():
            try:
                await self._now()
            except replies.StateConflict as conflict:  # ended, by a later mail of the thread most often
                log.info("contact_is_over", code=conflict.code)
                return FlowTask("", is_quiet=True)
            await self._report("user", text[:MOST_TEXT_CHARS], f"{self._run.run_id}-mail")
            tagged = await self._engine.prompt(self.conversation_id, wait_ms=PROMPT_WAIT_MS)
            data = await self._now()
            prompt = data.prompt if tagged is None else tagged.reply.prompt
            tools = await self.toolbox.of_task(data)
        own = [] if (change := self._change_task_tool(data)) is None else [change]

        def of_server(tool: TaskTool) -> Tool:
            async def run(chosen: Arguments) -> object:
                answer = await tools.registry.run(ToolCall(self._run.run_id, tool.name, chosen))
                if self._data is not None:
                    return answer
                now = await self._now()  # what the tool has found led on to another task
                return {"answer": answer, "task": now.task_name, "type": now.task_type, "prompt": now.prompt}

            return Tool(tool.spec, run)

        own += [of_server(tool) for tool in tools.tools]
        return FlowTask(prompt, tuple(own), is_quiet=_is_a_persons(data))

    async def escalate(self, reason: str) -> Mapping[str, JsonValue]:
        with _translated():
            data = await self._now()
            if data.task_type == _HUMAN:
                return {"status": "escalated", "task": data.task_name}
            for task in data.reachable_tasks:
                if task.type != _HUMAN:
                    continue
                reply = await self._engine.change_task(self._contact, task.name, reason[:REASON_CHARS])
                if not isinstance(reply, replies.TaskRefused):
                    self._data = reply
                    await self._report(
                        "bot", f"escalate: {reason}"[:MOST_TOOL_CHARS], self._tool_id(), "tool"
                    )
                    return {"status": "escalated", "task": reply.task_name}
        return {"error": "no human task of the flow can be reached from here"}

    async def last_text(self) -> int | None:
        with _translated():
            data = await self._now()
        if not data.approval_required:
            return None
        return 0 if data.approval is None else data.approval.approval_id

    async def put_before_person(
        self, text: str, after: int, decision: Decision | None
    ) -> replies.ApprovalState | None:
        texts = HeldTexts(self._engine, self._contact, self._clock.now)
        with _translated():
            self._data = None
            known = (await self._now()).approval
            if known is None or known.approval_id <= after:
                try:
                    return await texts.submit(text)
                except replies.StateConflict as conflict:
                    log.info("text_not_taken", code=conflict.code)
                    return None
            if decision is None or known.status != "waiting":
                return await texts.look(known)
            reply = await self._engine.human_task(
                self._contact, decision, None, approval_id=known.approval_id
            )
            return reply.approval

    async def leave(self, answer: str | None) -> None:
        with _translated():
            try:
                if answer and answer.strip():
                    await self._report("bot", answer[:MOST_TEXT_CHARS], f"{self._run.run_id}-answer")
                if not _is_a_persons(await self._now()):
                    await self._engine.end_contact(self._contact, "mail_answered")
            except replies.StateConflict as conflict:  # ended by an earlier attempt, or by another mail
                log.info("contact_not_ended", code=conflict.code)

    async def tool_ran(self, tool: TaskTool, answer: JsonValue) -> None:
        await self._report("bot", tool.told(answer), self._tool_id(), "tool")

    def _moved(self, command: str) -> None:
        """The conversation went on without this run: where to, the engine is asked for anew."""
        self._data = None

    async def _now(self) -> replies.AgentData:
        """Where the conversation is; the engine tells a contact that it knows."""
        if self._data is None:
            declared = self._declared
            choice = client.FlowChoice(declared.version, declared.flow_id, declared.tag)
            self._data = await self._engine.new_contact(
                client.NewContact(self._contact, choice, "mail", facts=self._run.facts)
            )
        return self._data

    async def _report(self, src: client.Source, body: str, message_id: str, kind: Any = "message") -> None:
        if body.strip():
            said = client.Utterance(message_id, self._clock.now(), src, body, kind)
            await self._engine.utterance(self._contact, said)

    def _tool_id(self) -> str:
        self._tools_ran += 1
        return f"{self._run.run_id}-tool-{self._tools_ran}-{self._clock.now().timestamp():.6f}"

    def _change_task_tool(self, data: replies.AgentData) -> Tool | None:
        spec = change_task_spec(data.reachable_tasks, data.returns_to)
        if spec is None:
            return None

        async def run(arguments: Mapping[str, JsonValue]) -> object:
            try:
                reply = await self._engine.change_task(self._contact, *change_asked_for(arguments))
            except replies.StateConflict as conflict:
                return not_changed(conflict)
            if isinstance(reply, replies.TaskRefused):
                return not_changed(reply)
            self._data = reply
            return {"result": True, "task": reply.task_name, "type": reply.task_type, "prompt": reply.prompt}

        return Tool(spec, run)


def _is_a_persons(data: replies.AgentData) -> bool:
    return data.task_type == _HUMAN or data.is_with_person


@contextmanager
def _translated() -> Generator[None]:
    """The engine's errors as the core's."""
    try:
        yield
    except replies.EngineUnavailable as error:
        raise RetryLater("engine_unavailable", "the flow engine does not answer") from error
    except replies.EngineError as error:
        raise CallTheOperator("engine_refused", str(error)) from error
