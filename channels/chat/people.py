"""People in a flow's session (C15): they take over and talk to the user, and decide on what the model wrote.

In a task with approval a text of the model is kept in the session before the engine has it, and sent in the
frame that ends its answer: whichever replica goes on with the answer finds it, and none sends it twice.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

import structlog

from channels.chat.answer import AnswerRequest
from channels.chat.frames import AnswerFrames
from channels.chat.state import Aside, FlowRun, SessionState, Turn
from channels.chat.wording import phrase
from channels.engine_client import client
from channels.engine_client.approvals import GIVEN_UP, Fate, HeldTexts
from channels.engine_client.replies import (
    AgentData,
    ApprovalState,
    EngineError,
    KeyRefused,
    Problem,
    RequestRefused,
    StateConflict,
)
from flow_engine.errors import (
    CallTheOperator,
    CorrectTheInput,
    Finding,
    FlowEngineError,
    ReloadAndDecide,
    RetryLater,
)
from flow_engine.ports.chat import ChatFrames, SessionRef
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import Message
from flow_engine.values import JsonValue, utc_text

PersonsOutcome: TypeAlias = Literal[
    "connected", "completed", "failed", "taken_over", "released", client.Decision
]
_DECISIONS: Final = get_args(client.Decision)
_OUR_POINTERS: Final = {"/approvalId": "/approval_id", "/body": "/text", "/srcName": "/name"}
"""Of a field of the engine's, the one that a person sends."""


log: Any = structlog.get_logger("flow_engine.chat")


class KeyOfAnotherTenant(RequestRefused):
    """The engine is not asked: its key would do in another tenant what this session is about."""


class People:
    """`tenants` are those whose flows the engine's key runs."""

    def __init__(self, engine: client.EngineClient, clock: Clock, tenants: Collection[str]) -> None:
        self._engine = engine
        self._clock = clock
        self._tenants = tenants

    def contact(self, tenant_id: str, flow: FlowRun) -> client.Contact:
        """Without which nothing is asked of the engine. Raises KeyOfAnotherTenant."""
        if tenant_id not in self._tenants:
            raise KeyOfAnotherTenant(f"the key in FLOW_ENGINE_API_KEY is not one of tenant {tenant_id!r}")
        return client.Contact(flow.conversation, flow.contact)

    async def report(
        self,
        contact: client.Contact,
        src: client.Source,
        body: str,
        *,
        kind: client.MessageType = "message",
        message_id: str | None = None,
        name: str | None = None,
    ) -> None:
        """Tell the engine what was said; nothing of an empty text. Raises EngineError."""
        if body.strip():
            at = self._clock.now()
            said = client.Utterance(message_id or uuid4().hex, at, src, body, kind, src_name=name)
            await self._engine.utterance(contact, said)

    async def act(
        self,
        ref: SessionRef,
        state: SessionState,
        frames: ChatFrames,
        keep: Callable[[Aside], Awaitable[None]],
        *,
        outcome: PersonsOutcome | None,
        text: str | None,
        name: str | None,
        reason: str | None,
        approval_id: int | None,
    ) -> Mapping[str, JsonValue]:
        """Pass what a person does, or says, on to the engine and to the user. A decision goes to the engine
        alone: the answer that waits for it shows the text. The task and its status as they are then; of a
        decision also its `result`, with `code` and `reason` where it was not taken. `keep` gets what the
        session is to know of it.

        Raises ReloadAndDecide for a session without a flow, or a conversation that does not take it now;
        CorrectTheInput, LookElsewhere and RetryLater as the engine has it; CallTheOperator where it does
        not take the chat's own key, or that is another tenant's.
        """
        if state.flow is None:
            raise ReloadAndDecide("no_flow", "no flow goes on in this session")
        own_id = f"human-{uuid4().hex}"
        shown = AnswerFrames(frames, ref, own_id, None, name)
        task: dict[str, JsonValue] = {}
        try:
            contact = self.contact(ref.tenant_id, state.flow)
            if outcome is not None and outcome in _DECISIONS:
                return await self._decide(contact, outcome, reason, text, approval_id)
            if outcome is not None:
                data = await self._engine.human_task(contact, outcome, reason)
                if isinstance(data, AgentData):
                    task = _status(data)
                    moved = state.flow.model_copy(update={"task": data.task_id, "status": data.task_status})
                    await shown.note(task_note(moved, data))
                    if data.command or moved != state.flow:
                        await keep(Aside(moved, data.command))
            if text is not None:
                await self.report(contact, "agent", text, name=name)
                if text.strip():
                    await keep(Aside(said=Turn(role="assistant", content=text, id=own_id, agent=name)))
                await shown.whole(text)
        except EngineError as error:
            raise _as_core(error) from error
        await shown.finish("done", {"event": "human"})
        return task

    async def _decide(
        self,
        contact: client.Contact,
        outcome: PersonsOutcome,
        reason: str | None,
        text: str | None,
        approval_id: int | None,
    ) -> Mapping[str, JsonValue]:
        data = await self._engine.human_task(contact, outcome, reason, text=text, approval_id=approval_id)
        if isinstance(data, AgentData):
            return {**_status(data), "result": True}
        refused = {"result": False, "code": data.code, "reason": data.reason}
        return {"task": data.task_name, "task_status": data.task_status, **refused}

    def texts(self, tenant_id: str, flow: FlowRun) -> HeldTexts:
        """Raises KeyOfAnotherTenant."""
        return HeldTexts(self._engine, self.contact(tenant_id, flow), self._clock.now)

    async def awaited(
        self, request: AnswerRequest, flow: FlowRun, known: ApprovalState
    ) -> tuple[Fate, ApprovalState]:
        """What becomes of the text that the engine has; the user is told meanwhile that somebody reads it.
        Raises EngineError, LeaseLost, RetryLater."""
        if known.status == "waiting":
            waiting: dict[str, JsonValue] = {"event": "approval", "status": "waiting"}
            message = phrase("checked", request.state.language)
            await request.frames.note({**waiting, "message": message, "until": utc_text(known.until)})
        return await self.texts(request.ref.tenant_id, flow).decided(known)

    async def give_up(self, tenant_id: str, state: SessionState) -> None:
        """The text that waits for a person is not sent any more, if there is one. Never raises for an engine
        that is away: the failure is logged."""
        flow = state.flow
        if flow is None or flow.held is None:
            return
        flow.held = None
        try:
            await self.texts(tenant_id, flow).give_up(GIVEN_UP)
        except EngineError as error:
            log.warning("text_not_given_up", reason=str(error))


def task_note(flow: FlowRun, data: AgentData) -> Mapping[str, JsonValue]:
    """The content of a state frame that tells the task."""
    named: dict[str, JsonValue] = {"flow_id": flow.flow_id, "conversation": flow.conversation}
    return {"event": "task", **named, "contact": flow.contact, **_status(data)}


def commands_of(flow: FlowRun, first: str | None) -> list[Message]:
    """What the flow's model is to be told before the user's message, once. `first` is the command that the
    contact began with; at each later message the engine, asked where it is, says `/resume` to a model that
    has the whole dialogue before it."""
    told = [*flow.commands, *([] if first is None else [first])]
    flow.commands = ()
    return [Message("user", command) for command in told]


def _status(data: AgentData) -> dict[str, JsonValue]:
    return {"task": data.task_name, "task_type": data.task_type, "task_status": data.task_status}


def _as_core(error: EngineError) -> FlowEngineError:
    """The engine's refusal as a client of the chat gets it."""
    problem = error.problem or Problem(status=0, code="", detail=str(error))
    detail, code = problem.detail, problem.code
    if isinstance(error, StateConflict):
        return ReloadAndDecide(
            code or "state_conflict", detail, state=problem.state, accepted=problem.accepted
        )
    if isinstance(error, KeyOfAnotherTenant):
        return CallTheOperator("engine_refused", detail)
    if isinstance(error, KeyRefused):
        return CallTheOperator("engine_refused", f"the engine refuses FLOW_ENGINE_API_KEY: {detail}")
    if isinstance(error, RequestRefused):
        findings = [
            Finding(_OUR_POINTERS.get(each.pointer, each.pointer), each.code, each.message)
            for each in problem.errors
        ]
        return CorrectTheInput(code or "engine_refused", detail, findings)
    return RetryLater("engine_unavailable", "the flow engine does not answer")
