"""One message answered (C6, C9, C10): who answers, what the user sees of it, and what remains.

1. A session whose flow goes on: the flow's agent answers.
2. An agent has asked: it gets the answer, and nobody else runs.
3. Else the orchestrator decides: an agent answers, the user is asked, or the message is refused with reasons.

From 1 and 2 the user may break out, in so many words or by a message that fits another agent clearly better;
not while a person talks to the user, or is being asked to.
Every answer ends in exactly one of `clarifying`, `done`, `refused`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from pydantic_ai import UsageLimits
from pydantic_ai.exceptions import AgentRunError, UsageLimitExceeded

from adapters.models.loop import MAX_ITERATIONS
from adapters.models.tools import Policy
from channels.chat.accounts import Accounts, AgentRun
from channels.chat.agents import AgentLoader, Agents, AskUser, ChatAgent, Refuse, Run, history_messages
from channels.chat.answer import AnswerRequest, RegistryTools, ToolTurn
from channels.chat.decisions import Context, Decision, Orchestrator
from channels.chat.flow_agent import FlowAgents
from channels.chat.frames import FinalState
from channels.chat.router import guessed_language
from channels.chat.state import OpenQuestion, SessionState, Turn
from channels.chat.tools import ToolSources
from channels.chat.wording import AFFIRMATIVE, breaks_out, phrase, question, refusal
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import Message, ModelFailed
from flow_engine.values import whole_number_in

log: Any = structlog.get_logger("flow_engine.chat")


class Answering:
    def __init__(
        self,
        loader: AgentLoader,
        orchestrator: Orchestrator,
        sources: ToolSources,
        accounts: Accounts,
        flows: FlowAgents,
        policy: Policy,
        confirm_s: float,
    ) -> None:
        self._loader = loader
        self._orchestrator = orchestrator
        self._sources = sources
        self._accounts = accounts
        self._flows = flows
        self._policy = policy
        self._confirm_s = confirm_s

    async def answer(self, request: AnswerRequest) -> None:
        """Answers one message, as frames of JSON. Raises LeaseLost, RetryLater; any other failure is shown to
        the user as the frame `error`."""
        state = request.state
        state.language = state.language or guessed_language(request.content)
        try:
            final = await self._answered(request)
        except ModelFailed as failure:
            log.warning("model_failed", reason=failure.reason)
            await request.frames.error("model_failed", phrase("failed", state.language))
            final = "refused"
        await self.finish(request, final)

    async def finish(self, request: AnswerRequest, final: FinalState, event: str = "answered") -> None:
        """The last frame, and the answer as a turn of the history; nothing where it is finished."""
        if request.frames.is_finished:
            return
        if request.frames.text:
            turn = Turn(
                role="assistant", content=request.frames.text, id=request.id, agent=request.frames.agent
            )
            request.state.add(turn)
        await request.frames.finish(final, {"event": event})

    async def decide(
        self, tenant_id: str, text: str, state: SessionState | None, conversation: ConversationRef
    ) -> Decision:
        """The dry run of what a message would lead to, with scores from 0 to 1. Raises ModelFailed."""
        agents = await self._loader.agents(tenant_id)
        state = state or SessionState(user="")
        session = SessionRef(tenant_id, conversation.conversation_id)
        going_on = await self._going_on(session, agents, text, state)
        if going_on is not None:
            return going_on
        return await self._decided(agents, text, state, _context(state, state.messages(), conversation))

    # Who answers ------------------------------------------------------------------------------------

    async def _answered(self, request: AnswerRequest) -> FinalState:
        state = request.state
        agents = await self._loader.agents(request.ref.tenant_id)
        decision = await self._going_on(request.ref, agents, request.content, state)
        if decision is None:
            if state.flow is not None:
                await self._flows.end(request.ref.tenant_id, state, "user_left")
                state.flow = None
            context = _context(state, request.before, request.conversation)
            try:
                decision = await self._decided(agents, request.content, state, context)
            finally:
                await self._accounts.routed(request.ref, request.id, context.uses)
        request.frames.confidence = decision.confidence
        effective = None if decision.agent is None else agents.effective[decision.agent]
        revision = None if effective is None else effective.revision
        await self._accounts.decided(request.ref, request.id, decision, revision)
        state.question = None
        match decision.action:
            case "refuse":
                state.active_agent = None
                await request.frames.dialogue(refusal(_descriptions(agents, agents.talking), state.language))
                return "refused"
            case "clarify":
                offered = tuple(decision.offered) or ((decision.agent,) if decision.agent else ())
                text = question(_descriptions(agents, offered), state.language)
                state.question = OpenQuestion(question=text, offered=offered, about=request.content)
                await request.frames.dialogue(text)
                return "clarifying"
            case _:
                return await self._run(request, agents.talking[decision.agent or ""])

    async def _going_on(
        self, ref: SessionRef, agents: Agents, text: str, state: SessionState
    ) -> Decision | None:
        """`continue` with the flow or the agent that has asked, None where there is none, or the user leaves
        it."""
        asking = state.flow.agent if state.flow else state.question.agent if state.question else None
        if asking is None or asking not in agents.talking:
            return None
        if state.flow is not None and agents.talking[asking].effective.fields["flow"] is None:
            return None  # nothing says any more which flow the contact is in
        is_held = state.flow is not None and state.flow.held is not None  # decided when its answer began
        leaves = breaks_out(text) or self._orchestrator.breaks_out(agents, asking, text) is not None
        if leaves and not is_held and not await self._flows.keeps_user(ref, state, agents.talking[asking]):
            return None
        reason = "its flow goes on" if state.flow else "the agent has asked"
        candidates = self._orchestrator.candidates(agents, text)
        return Decision(candidates, asking, None, "continue", reason, "scores")

    async def _decided(self, agents: Agents, text: str, state: SessionState, context: Context) -> Decision:
        open_question = state.question
        chosen = _chosen(open_question, agents, text)
        if chosen is not None:
            candidates = self._orchestrator.candidates(agents, text)
            return Decision(candidates, chosen, None, "accept", "the user chose from the question", "scores")
        decision = await self._orchestrator.decide(agents, text, context)
        if open_question is not None and open_question.agent is None and decision.action != "accept":
            # The answer alone may be too short to say what is meant.
            whole = f"{open_question.about}\n{text}"
            decision = await self._orchestrator.decide(agents, whole, context)
        if (open_question is not None and open_question.agent) or state.flow is not None:
            left = open_question.agent if open_question and open_question.agent else state.active_agent
            decision = replace(decision, reason=f"break-out from {left!r}: {decision.reason}")
        return decision

    # An agent's run ---------------------------------------------------------------------------------

    async def _run(self, request: AnswerRequest, agent: ChatAgent) -> FinalState:
        request.state.active_agent = request.state.last_intent = request.frames.agent = agent.name
        if agent.effective.fields["flow"] is not None:
            return await self._flows.answer(request, agent)
        run = Run(request.conversation, request.frames)
        turn = ToolTurn(request, self._policy, self._confirm_s, run)
        account = AgentRun(agent.name, request.id, tool_calls_log=turn.calls_log, uses=run.uses)
        async with self._accounts.running(request.ref, account, request.frames):
            try:
                log_fields = {"agent": agent.name, "session": request.ref.session_id}
                await self._sources.register(agent.row, turn.registry, log_fields)
                return await self._talked(request, agent, run, turn)
            except UsageLimitExceeded:
                account.status = "max_iterations"
                await request.frames.error("max_iterations", phrase("too_long", request.state.language))
                return "refused"
            except AgentRunError as error:
                raise (run.failure or ModelFailed("unusable_answer", str(error))) from error

    async def _talked(self, request: AnswerRequest, agent: ChatAgent, run: Run, turn: ToolTurn) -> FinalState:
        result = await agent.agent.run(
            request.content,
            message_history=history_messages(request.before),
            model=agent.model(run),
            toolsets=[RegistryTools(turn)],
            usage_limits=UsageLimits(request_limit=MAX_ITERATIONS),
        )
        frames = request.frames
        match result.output:
            case AskUser(question=text):
                await frames.dialogue(text, begins=True)
                request.state.question = OpenQuestion(question=text, agent=agent.name)
                return "clarifying"
            case Refuse(reason=text):
                await frames.dialogue(text, begins=True)
                return "refused"
            case _:
                return "done"


def _context(state: SessionState, before: Sequence[Message], conversation: ConversationRef) -> Context:
    return Context(conversation, before, state.active_agent, state.last_intent, state.language)


def _chosen(open_question: OpenQuestion | None, agents: Agents, text: str) -> str | None:
    """The agent that an answer to the orchestrator's question means: by its number, its name, or a yes."""
    if open_question is None or open_question.agent is not None:
        return None
    answer = text.strip().strip(".!").casefold()
    offered = [name for name in open_question.offered if name in agents.talking]
    number = whole_number_in(answer)
    if number and number <= len(offered):
        return offered[number - 1]
    if answer in AFFIRMATIVE and offered:
        return offered[0] if len(offered) == 1 else None
    return next((name for name in offered if answer == name.casefold()), None)


def _descriptions(agents: Agents, names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """What can be done by these agents, in the words of their rows."""
    found: list[str] = []
    for name in names:
        fields = agents.effective[name].fields
        text = fields["description"] or fields["task"] or fields["role"] or name
        found.append(str(text))
    return found
