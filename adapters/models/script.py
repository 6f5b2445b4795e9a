"""What a scripted model does, one step a call: shared by `ScriptedModel` and the fake OpenAI server.

Every way in which models go wrong is a step, so that whoever calls models can rehearse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

from adapters.models.chat import ToolCall
from flow_engine.ports.models import FailureReason, ModelCall


@dataclass(frozen=True, slots=True)
class Says:
    """Plain text, whatever was asked for."""

    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """An object where one was asked for."""

    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CallsTools:
    """Calls of tools, with or without words before them."""

    calls: Sequence[ToolCall]
    text: str = ""


@dataclass(frozen=True, slots=True)
class CallsToolBadly:
    """A tool call whose arguments are not JSON."""

    name: str
    arguments: str = '{"cut'


@dataclass(frozen=True, slots=True)
class Truncated:
    """The first half of the object's JSON, as a model leaves it that ran out of tokens."""

    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Endless:
    """Text that does not end by itself."""

    text: str = "and so on "


@dataclass(frozen=True, slots=True)
class Fails:
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Stalls:
    """Nothing for `seconds`, then what `then` says."""

    seconds: float
    then: Says | Answers = Says("")


Step: TypeAlias = Says | Answers | CallsTools | CallsToolBadly | Truncated | Endless | Fails | Stalls

AskedT = TypeVar("AskedT")
StepT = TypeVar("StepT")


class Script(Generic[AskedT, StepT]):
    """Steps in order, the last one repeating; or a function from what was asked to a step. Records."""

    def __init__(self, steps: Sequence[StepT] | Callable[[AskedT], StepT]) -> None:
        self._steps = steps
        self.asked: list[AskedT] = []

    def next(self, asked: AskedT) -> StepT:
        self.asked.append(asked)
        if callable(self._steps):
            return self._steps(asked)
        return self._steps[min(len(self.asked), len(self._steps)) - 1]


def unknown_variables(call: ModelCall) -> Answers:
    """An answer to a mining call that names a variable nobody asked for."""
    return Answers({**_shape(call), "values": {"neverAskedFor": "x"}})


def wrong_types(call: ModelCall) -> Answers:
    """An answer to a mining call whose every value is of a type that no variable has."""
    return Answers({**_shape(call), "values": {name: [{"of": "another type"}] for name in _asked_for(call)}})


def _shape(call: ModelCall) -> dict[str, object]:
    properties = _properties(call.output_schema or {})
    return {"checkpoints": []} if "checkpoints" in properties else {}


def _asked_for(call: ModelCall) -> Mapping[str, object]:
    values = _properties(call.output_schema or {}).get("values")
    return _properties(cast("Mapping[str, object]", values)) if isinstance(values, Mapping) else {}


def _properties(schema: Mapping[str, object]) -> Mapping[str, object]:
    found = schema.get("properties")
    return cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}
