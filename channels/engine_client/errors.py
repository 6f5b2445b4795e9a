"""What can go wrong between an agent and the flow engine, named by what the agent does next.

EngineError
├── EngineUnavailable    nothing usable came back, however often it was asked: do without, or say sorry
├── StateConflict        the conversation is not as the agent thinks: load it anew, then decide
├── RequestRefused       the request cannot be taken as it is: a mistake of the agent or its operator
└── EngineMisbehaved     the answer is none of the engine's: a wrong address, or a bug behind it

A change of task that is refused is none of these: it is data, see `replies.TaskRefused`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class ProblemFinding(BaseModel):
    model_config = ConfigDict(frozen=True)

    pointer: str
    code: str
    message: str


class Problem(BaseModel):
    """The problem document of an answer (RFC 9457). `accepted` is what would have gone instead."""

    model_config = ConfigDict(frozen=True)

    status: int
    code: str
    detail: str = ""
    errors: tuple[ProblemFinding, ...] = ()
    state: Mapping[str, object] = Field(default_factory=dict[str, object])
    accepted: tuple[str, ...] = ()


class EngineError(Exception):
    """Base of the tree. `problem` is the engine's own account, None where it gave none."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem

    @property
    def code(self) -> str | None:
        return None if self.problem is None else self.problem.code


class EngineUnavailable(EngineError):
    """Not reached, too slow, or out of order for the moment."""


class RequestRefused(EngineError):
    """A status 4xx other than 409: unknown ids, a missing key or scope, or a body that breaks a rule."""


class StateConflict(EngineError):
    """Status 409. `problem.state` tells the state and `problem.accepted` what would go."""


class EngineMisbehaved(EngineError):
    """A status or a body that the engine never answers with, or an error of its own."""
