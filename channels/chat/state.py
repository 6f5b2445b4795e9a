"""What a session knows (C14): history, last intent, active agent, an open question, a flow that goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import Message

MOST_TURNS: Final = 40
MOST_CHARS: Final = 40_000
"""Of the history that agents get, the newest kept."""


class _Part(BaseModel):
    model_config = ConfigDict(validate_assignment=True)


class Turn(_Part):
    """`agent` is who wrote an assistant's turn; `id` the message that it belongs to."""

    role: Literal["user", "assistant"]
    content: str
    id: str
    agent: str | None = None


class OpenQuestion(_Part):
    """A question to the user. `agent` is who asked, None for the orchestrator itself, which then has
    `offered` these agents for the message `about`."""

    question: str
    agent: str | None = None
    offered: tuple[str, ...] = ()
    about: str = ""


class HeldText(_Part):
    """What the model has written in answer to the message `message`, while a person has not decided on it:
    kept before the engine has it. `after` is the number of the contact's last text before it, 0 for none;
    `final` the state that the answer ends in when it is sent."""

    message: str
    text: str
    after: int
    final: Literal["clarifying", "done", "refused"]


class FlowRun(_Part):
    """A contact of the engine that this session is. `task` and `status` are those that the user has seen,
    `commands` what the model is to be told before the next message."""

    agent: str
    flow_id: str
    conversation: str
    contact: str
    task: str | None = None
    status: str | None = None
    held: HeldText | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Aside:
    """What has happened in a session beside its answers: a task of its `flow` that the user was shown, a
    `command` for that flow's model, what a person has `said`."""

    flow: FlowRun | None = None
    command: str | None = None
    said: Turn | None = None


class SessionState(_Part):
    """`answering` is the message whose answer was begun and not finished."""

    user: str
    language: str | None = None
    history: list[Turn] = []
    active_agent: str | None = None
    last_intent: str | None = None
    question: OpenQuestion | None = None
    flow: FlowRun | None = None
    answering: str | None = None
    ended: bool = False

    @classmethod
    def read(cls, text: bytes) -> SessionState:
        """From the JSON that `write` gave. Raises CallTheOperator `session_unreadable`."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise CallTheOperator("session_unreadable", "a stored session is none of this release") from error

    def written(self) -> bytes:
        return self.model_dump_json().encode()

    def add(self, turn: Turn) -> None:
        """Old turns go, whole ones, when there are too many, or too many characters in them."""
        self.history.append(turn)
        while len(self.history) > MOST_TURNS or (
            len(self.history) > 1 and sum(len(each.content) for each in self.history) > MOST_CHARS
        ):
            self.history.pop(0)

    def messages(self) -> Sequence[Message]:
        """The history as a model reads it; a user's turns that nobody answered are joined."""
        merged: list[Message] = []
        for turn in self.history:
            if merged and merged[-1].role == turn.role:
                merged[-1] = Message(turn.role, f"{merged[-1].content}\n{turn.content}")
            elif turn.content:
                merged.append(Message(turn.role, turn.content))
        return merged


def item_of(aside: Aside) -> Mapping[str, str]:
    """Of kind `task`, with or without one: a replica of a release that knows no more of it skips the rest."""
    flow, said = aside.flow, aside.said
    item = {"kind": "task", "contact": "", "command": aside.command or ""}
    if flow is not None:
        item |= {"contact": flow.contact, "task": flow.task or "", "status": flow.status or ""}
    if said is not None:
        item |= {"said": said.content, "id": said.id, "agent": said.agent or ""}
    return item


def take(state: SessionState, item: Mapping[str, str]) -> None:
    """What `item_of` says of an aside, or a release before it."""
    flow = state.flow
    if flow is not None and flow.contact == item["contact"]:
        flow.task, flow.status = item["task"] or None, item["status"] or None
        if item.get("command"):
            flow.commands = (*flow.commands, item["command"])
    if item.get("said"):
        state.add(Turn(role="assistant", content=item["said"], id=item["id"], agent=item["agent"] or None))
