"""The agent's part in a simulated call: what the Realtime model says and does, known beforehand or thought
of."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from channels.engine_client.tools import CHANGE_TASK
from channels.voice.testing import realtime_session, script
from flow_engine.ports.models import ModelFailed
from flow_engine.testing.simulated_user import REMEMBER
from flow_engine.testing.simulation import AgentAction, Turn
from flow_engine.values import JsonValue

MOST_THOUGHTS: Final = 8
"""Answers of the agent's model within one turn of the caller."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the caller says, and what the agent is to do about it where that is known. Without words the
    agent begins."""

    words: str | None
    agent: Sequence[AgentAction] = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Intent:
    """A step of the agent's model; `action` is None for a call of a tool that is no action."""

    step: script.Say | script.UseTool
    action: AgentAction | None = None


Think = Callable[[realtime_session.RealtimeSession], Sequence[Intent]]
"""What the agent's model does next; returns when it has thought. Raises ModelFailed."""


class AgentPart:
    """Implements `Reacts`. One call of a tool a response, so that each has its answer before the next.
    `turns` are what was said and done so far."""

    def __init__(self, think: Think | None = None) -> None:
        self.asked = 0
        """Responses so far."""
        self.turns: list[Turn] = []
        self.called: AgentAction | None = None
        """The action of the call of a tool that was handed out last."""
        self.session: realtime_session.RealtimeSession | None = None
        self.failed: ModelFailed | None = None
        """Why the agent does nothing any more."""
        self._think = think
        self._thoughts = 0
        self._left: deque[Intent] = deque()

    @property
    def has_more(self) -> bool:
        return bool(self._left)

    def turn(self, line: Line) -> None:
        """The caller's turn comes. What the agent has not done about the one before it does not do any
        more."""
        self._left.clear()
        self._left += map(intent_of, line.agent)
        self._thoughts = 0
        self.turns.append(Turn(user=line.words))

    def next(self, message: str) -> script.Reaction:
        self.asked += 1
        if not self._left and self._think is not None and self.session is not None:
            self._thoughts += 1
            if self._thoughts <= MOST_THOUGHTS and self.failed is None:
                try:
                    self._left += self._think(self.session)
                except ModelFailed as failure:
                    self.failed = failure
        steps: list[script.Step] = []
        while self._left:
            intent = self._left.popleft()
            steps.append(intent.step)
            if isinstance(intent.step, script.UseTool):
                self.called = intent.action
                break
            if intent.action is not None:
                self.did(intent.action)
        return script.Reaction(tuple(steps))

    def did(self, action: AgentAction) -> None:
        turns = self.turns or [Turn()]
        turns[-1] = turns[-1].model_copy(update={"agent": (*turns[-1].agent, action)})
        self.turns = turns


def intent_of(action: AgentAction) -> Intent:
    """As a Realtime model does it: says something, or calls a tool."""
    if action.say is not None:
        return Intent(script.Say(action.say), action)
    if action.change_task is not None:
        return Intent(script.UseTool(CHANGE_TASK, {"task": action.change_task}), action)
    names: list[JsonValue] = [entry.var_id for entry in action.memory or ()]
    return Intent(script.UseTool(REMEMBER, {"values": names}), action)
