"""What the engine remembers of its own reading along, beside the session (F37, F39).

Kept apart from the snapshot: background work must never make a change of task start again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from flow_engine.errors import CallTheOperator

MinedBy = Literal["rules", "model"]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Provenance(_Stored):
    """Where a mined value comes from, and the mined value that it took the place of. `at` is in UTC,
    `superseded` a JSON value, `confidence` the model's own, from 0 to 1, None where it gave none."""

    source: MinedBy
    message_id: str
    at: datetime
    superseded: object = None
    confidence: float | None = None


class ReachedCheckpoint(_Stored):
    """A checkpoint that was reached, at which message, and why the judge thought so. `at` is in UTC, `reason`
    a text of a model."""

    at: datetime
    message_id: str
    reason: str


class Conclusion(_Stored):
    """What an ended contact was about and what came of it, with the judge's reasons (F39). `scores` by the
    names of scorecard and criterion, in the scale of the scorecard; without what could not be judged."""

    reason_of_contact: str | None = None
    result: str | None = None
    why: str = ""
    scores: Mapping[str, Mapping[str, float]] = Field(default_factory=dict[str, Mapping[str, float]])


class Rollout(_Stored):
    """The split that a conversation was started in, and its tag."""

    split_id: str
    tag: str


class MiningState(_Stored):
    """`mined_through` is the last user turn whose extraction is done, `failed_turn` one whose failed.

    `attempts` count by variable id how often the agent asked without getting it, `task_turns` the user turns
    since the current task was entered, `ready_turns` by task id for how many of them that task could have
    been entered. `stalled` are those of these tasks that are suggested for it. `dropped` counts refused
    values by the reason. `missed_reported`: the required checkpoints that nobody reached have been told.
    `stalls` counts the tasks that stalled; `rollback_told` is the split whose rollback this conversation has
    told; `taken_over`: a person has taken a task of the AI over, noted in a split alone.
    `hidden` are by the names of messages the masks in place of all their words: they gave a sensitive value
    and do not quote it. Stored as JSON.
    """

    mined_through: str | None = None
    failed_turn: str | None = None
    provenance: Mapping[str, Provenance] = Field(default_factory=dict[str, Provenance])
    dropped: Mapping[str, int] = Field(default_factory=dict[str, int])
    task_id: str | None = None
    task_turns: int = 0
    attempts: Mapping[str, int] = Field(default_factory=dict[str, int])
    ready_turns: Mapping[str, int] = Field(default_factory=dict[str, int])
    stalled: tuple[str, ...] = ()
    checkpoints: Mapping[str, ReachedCheckpoint] = Field(default_factory=dict[str, ReachedCheckpoint])
    conclusions: Mapping[str, Conclusion] = Field(default_factory=dict[str, Conclusion])
    missed_reported: bool = False
    stalls: int = 0
    rollout: Rollout | None = None
    rollback_told: str | None = None
    taken_over: bool = False
    hidden: Mapping[str, str] = Field(default_factory=dict[str, str])


NOTHING_MINED = MiningState()
"""Of a conversation in which nobody has spoken yet: one for all."""


def encode_mining(state: MiningState) -> bytes:
    return state.model_dump_json(by_alias=True, exclude_defaults=True).encode()


def decode_mining(stored: bytes) -> MiningState:
    try:
        return MiningState.model_validate_json(stored)
    except ValidationError as error:
        raise CallTheOperator(
            "mining_unreadable", "the stored state of mining does not fit its format"
        ) from error
