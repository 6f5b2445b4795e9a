"""One answer of the chat: what it needs of its session, and the tools that it runs, shown to the user."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson
from pydantic_ai import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from adapters.models.tools import USER_REJECTED, Approval, Policy, ToolRegistry
from channels.chat.agents import Run
from channels.chat.frames import AnswerFrames
from channels.chat.state import SessionState
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import Message, ToolCall
from flow_engine.values import JsonValue

MOST_SHOWN: Final = 16_000
"""Characters of a tool's arguments or result in a frame."""

_ANY: Final = SchemaValidator(schema=core_schema.any_schema())


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One message of a user, and everything that its answer needs of its session. `state` changes by it;
    `keep` stores it as it is now, for whoever goes on with the answer, and raises LeaseLost, RetryLater.
    `confirmed` tells whether the user says yes to a call within so many seconds; silence refuses it.
    """

    ref: SessionRef
    id: str
    content: str
    state: SessionState
    frames: AnswerFrames
    confirmed: Callable[[str, float], Awaitable[bool]]
    keep: Callable[[], Awaitable[None]]

    @property
    def conversation(self) -> ConversationRef:
        return ConversationRef(self.ref.tenant_id, self.ref.session_id)

    @property
    def before(self) -> Sequence[Message]:
        """The dialogue before this message."""
        turns = [turn for turn in self.state.history if turn.id != self.id]
        return self.state.model_copy(update={"history": turns}).messages()


class ToolTurn:
    """Implements `Person`: the tools of one answer, shown to the user in action frames."""

    def __init__(self, request: AnswerRequest, policy: Policy, confirm_s: float, run: Run) -> None:
        self._request = request
        self._confirm_s = confirm_s
        self._run = run
        self._shown = ""
        self.registry = ToolRegistry(Approval(policy, self))
        self.calls_log: list[JsonValue] = []

    async def act(self, call: ToolCall) -> JsonValue:
        """The result for the model as JSON holds it, a refusal included. Raises LeaseLost, RetryLater."""
        frames, shown = self._request.frames, uuid4().hex[:16]
        self._shown = shown
        refused = await self.registry.refusal(call)
        result: JsonValue
        if refused is not None:
            rejected = refused.get("error") == USER_REJECTED
            result = refused
            await frames.action(call.name, shown, "rejected" if rejected else "failed", result=result)
        else:
            arguments = _shortened(dict(call.arguments))
            await frames.action(call.name, shown, "started", arguments=arguments)
            result = await self.registry.run(call)
            failed = isinstance(result, dict) and "error" in result
            status = "failed" if failed else "finished"
            await frames.action(call.name, shown, status, result=_shortened(result))
        self.calls_log.append(
            {
                "tool": call.name,
                "arguments": dict(call.arguments),
                "result": result,
                "iteration": len(self._run.uses),
            }
        )
        return result

    async def confirms(self, call: ToolCall) -> bool:
        arguments = _shortened(dict(call.arguments))
        await self._request.frames.action(call.name, self._shown, "waiting", arguments=arguments)
        return await self._request.confirmed(self._shown, self._confirm_s)


class RegistryTools(AbstractToolset[None]):
    """The tools of one answer, as pydantic-ai sees them."""

    def __init__(self, turn: ToolTurn) -> None:
        self._turn = turn

    @property
    def id(self) -> str:
        return "registry"

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[None]]:
        return {
            spec.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=spec.name,
                    description=spec.description,
                    parameters_json_schema=dict(spec.parameters),
                    sequential=True,
                ),
                max_retries=0,
                args_validator=_ANY,
            )
            for spec in self._turn.registry.specs()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:
        return await self._turn.act(ToolCall(ctx.tool_call_id or name, name, tool_args))


def _shortened(value: JsonValue) -> JsonValue:
    text = orjson.dumps(value).decode()
    return value if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
