"""What a fake model says and does: reactions to its input.

A reaction answers one response. It is chosen by what the model was told since the response before, written as
lines of `user: …`, `system: …`, `tool: …` (a tool's output) and `instructions: …`: the first reaction that
was not used yet and whose `when` is part of that, upper and lower case being the same. A reaction without
`when` answers anything, so a list of such reactions is a play in order.

As JSON, for the command line:

    {"reactions": [{"when": "user: hello", "steps": [{"text": "Good evening!", "ms": 900}]},
                   {"steps": [{"tool": "book", "arguments": {"at": "20:00"}}]}]}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

_CLOSED = ConfigDict(extra="forbid")
_MS_PER_LETTER = 60


@dataclass(frozen=True, config=_CLOSED)
class Say:
    """Speech of `ms` milliseconds, by default as long as the text takes."""

    text: str
    ms: int | None = None

    @property
    def lasts_ms(self) -> int:
        return max(200, _MS_PER_LETTER * len(self.text)) if self.ms is None else self.ms


@dataclass(frozen=True, config=_CLOSED)
class UseTool:
    """A call of a tool. `arguments` may be a text, for arguments that are no JSON."""

    tool: str
    arguments: dict[str, JsonValue] | str = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, config=_CLOSED)
class Fail:
    """The response ends here: it has failed, or is incomplete."""

    code: str
    message: str = ""
    status: Literal["failed", "incomplete"] = "failed"


Step: TypeAlias = Say | UseTool | Fail


@dataclass(frozen=True, config=_CLOSED)
class Reaction:
    """`think_ms` milliseconds pass before anything comes. One that is not `once` may be used again and
    again."""

    steps: tuple[Step, ...]
    when: str | None = None
    think_ms: int = 0
    once: bool = True


@dataclass(frozen=True, config=_CLOSED)
class Script:
    """`otherwise` is what the model does when no reaction is left that fits; times in milliseconds."""

    reactions: tuple[Reaction, ...] = ()
    otherwise: tuple[Step, ...] = (Say("Yes?", 300),)

    @classmethod
    def of(cls, *steps: Step | Iterable[Step]) -> Script:
        """Reactions in order to whatever comes, each of one step or of several."""
        parts = [(step,) if isinstance(step, Say | UseTool | Fail) else tuple(step) for step in steps]
        return cls(tuple(Reaction(part) for part in parts))


_SCRIPT: TypeAdapter[Script] = TypeAdapter(Script)


def read_script(file: Path) -> Script:
    """Raises pydantic.ValidationError, and OSError when there is no such file."""
    return _SCRIPT.validate_json(file.read_bytes())


class Reacts(Protocol):
    def next(self, message: str) -> Reaction:
        """What the model does about the lines that it was told since its last response."""
        ...


class ScriptCursor:
    """Implements `Reacts`: one model's way through a script; an unknown input has what `otherwise` says."""

    def __init__(self, script: Script) -> None:
        self._left = list(script.reactions)
        self._otherwise = Reaction(script.otherwise)

    def next(self, message: str) -> Reaction:
        heard = message.casefold()
        for reaction in self._left:
            if reaction.when is None or reaction.when.casefold() in heard:
                if reaction.once:
                    self._left.remove(reaction)
                return reaction
        return self._otherwise
