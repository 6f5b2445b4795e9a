"""The port to language models, as the engine's own background work needs it (F30, F37, F39)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, cast

Purpose = Literal["mining", "summary", "conclusion", "rewriting"]
FailureReason = Literal[
    "not_configured", "too_many_calls", "timeout", "unreachable", "refused", "unusable_answer"
]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question. `output_schema` is the JSON Schema of an object, None asks for plain text.

    `model` names another model than the installation's; `purpose` is for accounting.
    """

    purpose: Purpose
    system: str
    user: str
    max_output_tokens: int
    output_schema: Mapping[str, object] | None = None
    model: str | None = None
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """`data` is the decoded object where a schema was asked for: not checked against it yet."""

    text: str
    data: object
    model: str
    input_tokens: int
    output_tokens: int


class ModelFailed(Exception):
    """No usable answer. The reason is for counting and for deciding whether to try again."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: FailureReason = reason


class Model(Protocol):
    """Raises ModelFailed, never a vendor's error. Bounded in time by its configuration."""

    async def ask(self, call: ModelCall) -> ModelAnswer: ...


def as_object(data: object) -> Mapping[str, object]:
    """A model's data read as a JSON object, whatever it is: no answer is trusted to have its shape."""
    return cast("Mapping[str, object]", data) if isinstance(data, dict) else {}


class NoModel:
    """Implements `Model` where none is configured."""

    async def ask(self, call: ModelCall) -> ModelAnswer:
        raise ModelFailed("not_configured", "set FLOW_ENGINE_LLM_MODEL")
