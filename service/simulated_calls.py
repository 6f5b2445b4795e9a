"""Personas that telephone: the voice agent on a fake line, against the flow's use cases behind the API's own
routes.

The call runs in a thread of its own, in virtual time. The engine and a model answer in the loop that asked
for the call, while the call's time stands still.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import httpx2
import orjson
from starlette.types import Receive, Scope, Send

from api.app import HotEndpoints
from api.auth import ALL_SCOPES, Headers, LocalOnly, Principal
from api.conversations import AgentRoutes, MemoryRoutes
from api.gateway import Guarded, Metrics, WayIn
from channels.voice.carriers.carrier import CALL_ID_PARAMETER
from channels.voice.flow.task_context import CONVERSATION_PARAMETER, END_CALL_SPEC
from channels.voice.runner import PHONE_PARAMETERS
from channels.voice.testing import agent_part, persona_calls, script
from channels.voice.testing.realtime_session import RealtimeSession
from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.ports.models import LanguageModel, LLMRequest, Message, ModelFailed, ToolCall, ask
from flow_engine.ports.telemetry import Untraced
from flow_engine.testing import simulated_user, simulation
from flow_engine.testing.bench import START, InstalledFlow
from flow_engine.testing.expectations import Outcome

_T = TypeVar("_T")
GIVEN_UP = "the call was given up"


async def call(
    persona: simulation.Persona,
    flow: InstalledFlow,
    number: int,
    run: simulation.Run | None,
    model: LanguageModel,
) -> tuple[simulation.Run, simulation.RunVerdict]:
    """Implements `PlayRun`: a call as it was recorded, or by a model. The verdict is that of the moment
    before the contact ends. Raises ModelFailed."""
    played = simulation.Simulation(persona, flow)
    engine = _Engine(played, asyncio.get_running_loop())
    dialogue = None
    if run is not None:
        agent, lines = agent_part.AgentPart(), _recorded(run)
    else:
        dialogue = simulated_user.Dialogue(played, model)
        agent = agent_part.AgentPart(_Thinking(model, dialogue, engine))
        lines = _improvised(persona, dialogue, engine)
    caller = persona.contact.get("callerId")
    order = persona_calls.CallOrder(
        persona_calls.agent_config(flow.flow.version_id, persona.tenant, persona.language),
        {
            CALL_ID_PARAMETER: UUID(int=number).hex,
            CONVERSATION_PARAMETER: played.player.stage.conversation.conversation_id,
            **({PHONE_PARAMETERS[0]: caller} if isinstance(caller, str) else {}),
        },
        persona.phone,
        lambda: next(lines, None),
        agent,
        engine,
        START,
    )
    try:
        played.failures += await asyncio.to_thread(persona_calls.call_by_persona, order)
    finally:
        engine.is_over = True
        agent.failed = agent.failed or ModelFailed("timeout", GIVEN_UP)  # so that its thread ends, too
    turns = tuple(turn for turn in agent.turns if turn.user is not None or turn.agent)
    said = sum(turn.user is not None for turn in turns)
    opinion = None if dialogue is None else await dialogue.opinion()
    missed = await played.missed() if engine.missed is None else engine.missed
    task_id = played.player.task_id or None
    verdict = simulation.RunVerdict(number, said, (*played.failures, *missed), opinion, task_id)
    return simulation.Run(turns=turns or (simulation.Turn(),)), verdict


def _recorded(run: simulation.Run) -> Iterator[agent_part.Line]:
    """Its turns; what the agent does without a word of the user belongs to the turn before."""
    lines: list[agent_part.Line] = []
    for turn in run.turns:
        if turn.user is None and lines:
            lines[-1] = agent_part.Line(lines[-1].words, (*lines[-1].agent, *turn.agent))
        else:
            lines.append(agent_part.Line(turn.user, turn.agent))
    yield from lines


def _improvised(
    persona: simulation.Persona, dialogue: simulated_user.Dialogue, engine: "_Engine"
) -> Iterator[agent_part.Line]:
    yield agent_part.Line(None)
    for _ in range(persona.max_turns):
        words, is_last = engine.wait_for(dialogue.user_says())
        yield agent_part.Line(words, is_last=is_last)
        if is_last:
            return


class _Thinking:
    """Implements `Think` by a language model that reads what the Realtime session holds."""

    def __init__(self, model: LanguageModel, dialogue: simulated_user.Dialogue, engine: "_Engine") -> None:
        self._model = model
        self._dialogue = dialogue
        self._engine = engine

    def __call__(self, session: RealtimeSession) -> Sequence[agent_part.Intent]:
        messages = [Message("system", str(session.settings.wire["instructions"]))]
        for item in session.conversation.items:
            match item.kind:
                case "function_call":
                    call = ToolCall(item.call_id, item.name, orjson.loads(item.text))
                    messages.append(Message("assistant", "", tool_calls=(call,)))
                case "function_call_output":
                    messages.append(Message("tool", item.text, tool_call_id=item.call_id))
                case "message":
                    role = "assistant" if item.role == "assistant" else "user"
                    messages.append(Message(role, item.text or "…"))
        request = LLMRequest(
            tuple(messages), tools=(*simulated_user.AGENT_TOOLS, END_CALL_SPEC), purpose="simulated_agent"
        )
        message = self._engine.wait_for(ask(self._model, request)).message
        words, intents = message.content.strip()[: simulation.LONGEST], list[agent_part.Intent]()
        if words:
            self._dialogue.said.append(("agent", words))
            intents.append(agent_part.intent_of(simulation.AgentAction(say=words)))
        for call in message.tool_calls:
            action = simulated_user.action_of(call.name, call.arguments)
            step = script.UseTool(call.name, dict(call.arguments))
            intents.append(agent_part.Intent(step, action))
        return intents


class _Engine(httpx2.AsyncBaseTransport):
    """Implements `Engine` for one call: the use cases behind the API's routes of conversations, and a server
    of tools that writes values. Its methods are called from the call's thread."""

    def __init__(self, played: simulation.Simulation, loop: asyncio.AbstractEventLoop) -> None:
        self.missed: Sequence[str] | None = None
        """What does not hold of what is expected, right before the contact ends; None until then."""
        self.is_over = False
        """Nobody waits for the call any longer: its thread gets no answer any more, and ends."""
        self._played = played
        self._stage = played.player.stage
        self._loop = loop
        self._answered = Outcome(kind="change_task")
        way_in = WayIn(_OneAgent(self._stage.conversation.tenant_id), Metrics(), Untraced())
        routes = AgentRoutes(self._stage.conversations, self._stage.dialogue)
        self._hot = HotEndpoints()
        for endpoint in (*routes.endpoints(), *MemoryRoutes(self._stage.dialogue).endpoints()):
            if endpoint.hot:
                self._hot.add(endpoint, Guarded(endpoint, way_in))
        self._door = httpx2.ASGITransport(self._app)

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        return self

    def wait_for(self, answer: Coroutine[Any, Any, _T]) -> _T:
        """Raises ModelFailed when nobody waits for the call any longer."""
        if self.is_over:
            answer.close()
            raise ModelFailed("timeout", GIVEN_UP)
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()

    def remember(self, action: simulation.AgentAction) -> Outcome:
        return self.wait_for(self._remember(action))

    def changed_task(self, action: simulation.AgentAction) -> Outcome:
        self._played.saw(f"change_task: {action.change_task}", self._answered, action.refused)
        return self._answered

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises what no route of the API answers."""
        if self.is_over:
            raise httpx2.ConnectError(GIVEN_UP, request=request)
        content, at_s = await request.aread(), asyncio.get_running_loop().time()
        status, headers, body = self.wait_for(self._answer(request, content, at_s))
        return httpx2.Response(status, headers=headers, content=body)

    async def _remember(self, action: simulation.AgentAction) -> Outcome:
        await self._follow()
        return await self._played.do(action)

    async def _answer(
        self, request: httpx2.Request, content: bytes, at_s: float
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """At that second of the call."""
        clock, route = self._stage.clock, request.url.path.removeprefix("/v1/")
        clock.advance(max(0.0, (START - clock.now() + timedelta(seconds=at_s)).total_seconds()))
        if route == "handle-new-contact":
            # A line tells less of a caller than another channel: contact and language are those in text.
            persona, body = self._played.persona, orjson.loads(content)
            contact = {**body.get("contact", {}), **persona.contact}
            content = orjson.dumps({**body, "contact": contact, "language": persona.language})
        if route == "handle-end-contact" and self.missed is None:
            self.missed = await self._played.missed()
        headers = [(k, v) for k, v in request.headers.raw if k.lower() != b"content-length"]
        asked = httpx2.Request(request.method, request.url, headers=headers, content=content)
        answer = await self._door.handle_async_request(asked)
        body = await answer.aread()
        await self._note(route, answer.status_code, body, content)
        return answer.status_code, answer.headers.raw, body

    async def _note(self, route: str, status: int, body: bytes, content: bytes) -> None:
        """What a failure of the run is made of; words of the user are read by the rules at once."""
        reply, asked, problem = orjson.loads(body or b"{}"), orjson.loads(content or b"{}"), None
        if status >= 400:
            findings = [Finding(f["pointer"], f["code"], f["message"]) for f in reply.get("errors", ())]
            problem = CorrectTheInput(reply["code"], reply["detail"], findings)
        if route == "change-task":
            refusal = reply if problem is None and not reply["result"] else None
            self._answered = Outcome(kind="change_task", refusal=refusal, problem=problem)
        elif problem is not None and self.missed is None:
            self._played.saw(route, Outcome(kind=route, problem=problem))
        elif route == "handle-new-contact":
            self._played.player.contact_id = asked["contactId"]
        elif route == "handle-utterance" and asked["src"] == "user":
            self._played.last = Outcome(kind="say")
            await self._stage.read(None)
        await self._follow()

    async def _follow(self) -> None:
        session = (await self._stage.transactor.memory.load(self._stage.conversation)).session
        if session is not None:
            self._played.player.task_id = session.task.task_id

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._hot.find(scope)
        if found is None:
            raise LookupError(f"{scope['path']!r} is no route of a conversation")
        await found(scope, receive, send)


class _OneAgent(LocalOnly):
    """Whoever calls is the agent of this tenant's conversation."""

    def __init__(self, tenant_id: str) -> None:
        super().__init__()
        self._principal = Principal(tenant_id, ALL_SCOPES, "voice")

    def authenticate(self, headers: Headers) -> Principal:
        return self._principal
