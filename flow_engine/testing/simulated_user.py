"""A persona and an agent that talk to each other, each played by a model, while the flow holds the state.

The agent has the prompt that the flow gives it at each turn, and two tools: `change_task`, and
`remember_values` in place of the flow's own tools, whose servers a simulation never calls. What they said and
did is a run that can be played again without a model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
from pydantic import ValidationError

from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import LanguageModel, LLMRequest, Message, ToolSpec, ask, instruction
from flow_engine.runtime.agent_data import compose_prompt
from flow_engine.testing.bench import InstalledFlow
from flow_engine.testing.expectations import Outcome
from flow_engine.testing.simulation import (
    LONGEST,
    AgentAction,
    Opinion,
    Persona,
    Run,
    RunVerdict,
    Simulation,
    Turn,
    refusal_of,
)
from flow_engine.values import JsonValue

MOST_STEPS = 8
"""Answers of the agent's model within one turn: then it has said what it has said."""
UNUSABLE: Mapping[str, JsonValue] = {"error": "these arguments cannot be used"}

_PERSONA = """You play a person who has contacted a service. Stay in your role; you are never the service.
Your name: {name}
What you want: {goal}
How you feel: {mood}
You speak: {language}
What you know, and tell when you are asked: {knowledge}
Answer with the next thing that you say, as one says it aloud: short, one matter at a time. Set `done` when
you have got what you want, or have given up, and say goodbye then."""
_PERSONA_SAYS = {
    "type": "object",
    "properties": {"say": {"type": "string"}, "done": {"type": "boolean"}},
    "required": ["say", "done"],
    "additionalProperties": False,
}
_JUDGE = """You read a dialogue between a person and a service. The person wanted: {goal}
Say whether that was reached, and why, in one sentence."""
_JUDGE_SAYS = {
    "type": "object",
    "properties": {"reached": {"type": "boolean"}, "why": {"type": "string"}},
    "required": ["reached", "why"],
    "additionalProperties": False,
}
REMEMBER = "remember_values"
AGENT_TOOLS = (
    ToolSpec(
        "change_task",
        "Move the conversation to another of the reachable tasks.",
        {
            "type": "object",
            "properties": {"task": {"type": "string", "description": "The task's name."}},
            "required": ["task"],
        },
    ),
    ToolSpec(
        REMEMBER,
        "Stands in for every other tool that the prompt names: store what such a tool would have found or "
        "done, as values of variables by their names.",
        {
            "type": "object",
            "properties": {"values": {"type": "object", "additionalProperties": True}},
            "required": ["values"],
        },
    ),
)


async def converse(
    persona: Persona, flow: InstalledFlow, model: LanguageModel, number: int
) -> tuple[Run, RunVerdict]:
    """A conversation of at most `max_turns` turns, as a run, and what became of it. One model plays all.
    Raises ModelFailed."""
    simulation = Simulation(persona, flow)
    await simulation.open()
    dialogue = Dialogue(simulation, model)
    turns: list[Turn] = []
    done = False
    while not done and len(turns) < persona.max_turns and refusal_of(simulation.last) is None:
        words, done = await dialogue.user_says()
        await simulation.hear(words)
        turns.append(Turn(user=words, agent=tuple(await dialogue.agent_answers())))
    opinion = await dialogue.opinion()
    return Run(turns=tuple(turns)), await simulation.verdict(number, len(turns), opinion)


class Dialogue:
    """What a persona and the agent say by a model: `said` are who, `user` or `agent`, and the words. Raises
    ModelFailed."""

    def __init__(self, simulation: Simulation, model: LanguageModel) -> None:
        self._simulation = simulation
        self._model = model
        self.said: list[tuple[str, str]] = []

    async def user_says(self) -> tuple[str, bool]:
        """The next words of the persona, and whether they are the last."""
        persona = self._simulation.persona
        system = _PERSONA.format(
            name=persona.name,
            goal=persona.goal,
            mood=persona.mood,
            language=persona.language,
            knowledge=orjson.dumps(persona.knowledge).decode(),
        )
        mine = [Message("assistant" if who == "user" else "user", words) for who, words in self.said]
        begin = [Message("user", "The line is open. Begin.")] if not mine or mine[0].role != "user" else []
        request = LLMRequest(
            (Message("system", system), *begin, *mine),
            output_schema=_PERSONA_SAYS,
            purpose="simulated_user",
        )
        answer = as_object((await ask(self._model, request)).data)
        words = str(answer.get("say") or "").strip()[:LONGEST] or "…"
        self.said.append(("user", words))
        return words, answer.get("done") is True

    async def agent_answers(self) -> Sequence[AgentAction]:
        """What the agent does about the last words: its tools first, then what it says."""
        history = [Message("user" if who == "user" else "assistant", words) for who, words in self.said]
        actions = await agent_turn(self._model, history, self._prompt, self._simulation.do)
        self.said += [("agent", action.say) for action in actions if action.say is not None]
        return actions

    async def opinion(self) -> Opinion:
        persona = self._simulation.persona
        dialogue = "\n".join(f"{who}: {words}" for who, words in self.said)
        request = LLMRequest(
            instruction(_JUDGE.format(goal=persona.goal), dialogue or "Nobody said anything."),
            output_schema=_JUDGE_SAYS,
            temperature=0,
            purpose="simulation_opinion",
        )
        answer = as_object((await ask(self._model, request)).data)
        return Opinion(answer.get("reached") is True, " ".join(str(answer.get("why") or "").split())[:500])

    async def _prompt(self) -> str:
        return compose_prompt(await self._simulation.player.stage.runner()).text


async def agent_turn(
    model: LanguageModel,
    history: Sequence[Message],
    prompt: Callable[[], Awaitable[str]],
    act: Callable[[AgentAction], Awaitable[Outcome]],
    *,
    purpose: str = "simulated_agent",
    conversation: ConversationRef | None = None,
) -> Sequence[AgentAction]:
    """What an agent that a model plays does about a dialogue: the calls of its tools, at most 8 answers with
    some, then what it says. Each is done by `act` as it comes, and the prompt is asked for anew after it.
    Raises ModelFailed."""
    actions: list[AgentAction] = []
    own: list[Message] = []
    for _ in range(MOST_STEPS):
        request = LLMRequest(
            (Message("system", await prompt()), *history, *own),
            tools=AGENT_TOOLS,
            purpose=purpose,
            conversation=conversation,
        )
        message = (await ask(model, request)).message
        own.append(message)
        for call in message.tool_calls:
            action = action_of(call.name, call.arguments)
            if action is None:
                result = UNUSABLE
            else:
                outcome = await act(action)
                code = refusal_of(outcome)
                actions.append(action if code is None else action.model_copy(update={"refused": code}))
                result = result_of(outcome)
            own.append(Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id))
        if not message.tool_calls:
            words = message.content.strip()[:LONGEST]
            if words:
                actions.append(AgentAction(say=words))
                await act(actions[-1])
            break
    return actions


def action_of(tool: str, arguments: object) -> AgentAction | None:
    """What a call of one of `AGENT_TOOLS` does; None for arguments that are no action."""
    given = as_object(arguments)
    fields = {"change_task": ("change_task", "task"), REMEMBER: ("memory", "values")}.get(tool)
    if fields is None:
        return None
    name, argument = fields
    try:
        return AgentAction.model_validate({name: given.get(argument)})
    except ValidationError:
        return None


def result_of(outcome: Outcome) -> Mapping[str, JsonValue]:
    """What the agent's model is answered. JSON values."""
    if outcome.refusal is not None:
        return {"result": False, "code": outcome.refusal["code"], "reason": outcome.refusal["reason"]}
    if outcome.problem is not None:
        return {"error": outcome.problem.detail}
    return {"result": True, "command": outcome.command}
