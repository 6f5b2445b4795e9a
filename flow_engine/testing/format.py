"""The format of files of scenarios, as docs/flow-tests.md describes it, in frozen models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import pydantic
from pydantic_core import PydanticCustomError

from flow_engine.documents import parse_date_time
from flow_engine.runtime.compiled import LONGEST_S
from flow_engine.runtime.human_part import LONGEST_TEXT, text_fault
from flow_engine.runtime.rules import RefusalCode
from flow_engine.vocabulary import Channel, HumanOutcome, Phase, Source, TaskType, TextRefusalCode

Verdict = Literal[True, False, "fails"]
REFUSED = "refused"
"""The type of pydantic's error where a rule of this file is broken; its message is ready to be shown."""
TOOL = "flow-test"
"""Who writes to the memory where a scenario does not say."""

LATEST_START = 9_900
"""A year: what comes after it has to end within the calendar."""

_Text = Annotated[str, pydantic.Field(min_length=1, max_length=512)]
_Facts = Mapping[str, object]
_Item = TypeVar("_Item")
_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(second|minute|hour|day)s?")
_DURATION_ACCEPTED = (
    f"accepted are seconds above 0 and at most {LONGEST_S}, "
    "or a text such as '90 seconds', '2 minutes', '3 days'"
)
_SOME_VALUES = "accepted is at least one variable with its value"


def refused(message: str) -> PydanticCustomError:
    return PydanticCustomError(REFUSED, "{message}", {"message": message})


def _seconds(value: object) -> float:
    written = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if written is not None:
        value = float(written[1]) * _UNITS[written[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
        raise refused(_DURATION_ACCEPTED)
    return float(value)


def _moment(value: object) -> datetime:
    try:
        moment = parse_date_time(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or not 2 <= moment.year <= LATEST_START:
        raise refused(f"accepted is an RFC 3339 date-time until {LATEST_START}, as '2026-01-15T09:00:00Z'")
    return moment.astimezone(UTC)


def short_for(key: str, kind: type = str) -> pydantic.BeforeValidator:
    """A text (or list) alone stands for the mapping with that one key, nothing for the empty mapping."""

    def expand(value: object) -> object:
        if value is None:
            return {}
        return {key: value} if isinstance(value, kind) else value

    return pydantic.BeforeValidator(expand)


def entries(value: object) -> object:
    """Of the memory: `{variable: value}` stands for a list of entries that say no more than that."""
    if isinstance(value, dict):
        values = cast("dict[str, object]", value)
        if not values:
            raise refused(_SOME_VALUES)
        return [{"varId": var, "value": found} for var, found in values.items()]
    if not isinstance(value, list | tuple):
        raise refused("accepted is a mapping of variables to values, or a list of entries")
    return cast("object", value)


def _some(values: _Facts) -> _Facts:
    if not values:
        raise refused(_SOME_VALUES)
    return values


def not_empty(items: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """Asked after the items: pydantic's own rule counts one that is refused as not there."""
    if not items:
        raise refused("accepted is a list of at least one")
    return items


class Shape(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# --- what a step does -------------------------------------------------------------------------


class NewContactBody(Shape):
    """What is left out is the scenario's; `id` left out: `contact-1`, `contact-2`, … `language` is a BCP 47
    tag, `data` JSON."""

    id: _Text | None = None
    channel: Channel | None = None
    language: _Text | None = None
    data: _Facts | None = None


class UtteranceBody(Shape):
    body: str
    src: Source = "user"
    language: _Text | None = None


def _answer(value: object) -> object:
    return {"fails": True} if value == "fails" else {} if value is None else value


class ModelAnswer(Shape):
    """What the model finds in what was said: values of variables, by `_id` or name, how sure it is of them,
    from 0 to 1, and checkpoints, by id with the reason. The text `fails` stands for a model that gives no
    usable answer."""

    values: _Facts = pydantic.Field(default_factory=dict[str, object])
    confidence: Mapping[str, Annotated[float, pydantic.Field(ge=0, le=1)]] = pydantic.Field(
        default_factory=dict[str, float]
    )
    checkpoints: Annotated[
        Mapping[str, str],
        pydantic.BeforeValidator(
            lambda ids: dict.fromkeys(cast(list[str], ids), "") if isinstance(ids, list) else ids
        ),
    ] = pydantic.Field(default_factory=dict[str, str])
    fails: bool = False


Answer = Annotated[ModelAnswer, pydantic.BeforeValidator(_answer)]


class SayBody(Shape):
    """`model` is asked after the rules, for what they have left; left out, there is none."""

    body: str
    language: _Text | None = None
    model: Answer | None = None


class DescriptionBody(Shape):
    name: str
    value: str


class MemoryEntryBody(Shape):
    """An entry as tools send it; `varId` is a variable's `_id` or name. `value` is any JSON."""

    var_id: _Text = pydantic.Field(alias="varId")
    value: object
    updated_by: str = pydantic.Field(default=TOOL, alias="updatedBy")
    contact_id: _Text | None = pydantic.Field(default=None, alias="contactId")
    description_for_llm: tuple[DescriptionBody, ...] | None = pydantic.Field(
        default=None, alias="descriptionForLLM"
    )


class ToolBody(Shape):
    """A tool of the task and what it answers, any JSON."""

    name: _Text
    result: object


class HumanTaskBody(Shape):
    outcome: HumanOutcome
    reason: str | None = None
    text: Annotated[str | None, pydantic.Field(max_length=LONGEST_TEXT, validate_default=True)] = None

    @pydantic.field_validator("text")
    @classmethod
    def _beside_its_outcome(cls, text: str | None, info: pydantic.ValidationInfo) -> str | None:
        fault = text_fault(info.data.get("outcome"), text)
        if fault is not None:
            raise refused(fault)
        return text


class EndContactBody(Shape):
    """`closes` is what the customHandler answers; left out, it answers false when it is asked."""

    reason: str | None = None
    closes: Verdict | None = None


class Names(Shape):
    """Either all the names that there are, in any order, or some that must be among them."""

    ACCEPTED: ClassVar[str] = (
        "accepted is a list of all names, or a mapping with `includes` alone, of one at least"
    )

    exactly: tuple[str, ...] | None = None
    includes: tuple[str, ...] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_name_alone(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise refused(cls.ACCEPTED)
        return cast("object", value)

    @pydantic.model_validator(mode="after")
    def _one_of_two(self) -> Names:
        if (self.exactly is None) == (self.includes is None) or self.includes == ():
            raise refused(self.ACCEPTED)
        return self


def every_of(names: Names | None) -> tuple[str, ...]:
    return () if names is None else names.exactly or names.includes or ()


NameList = Annotated[Names, short_for("exactly", list)]
Texts = Annotated[
    tuple[_Text, ...],
    pydantic.BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    pydantic.AfterValidator(not_empty),
]


class ExpectBody(Shape):
    """Everything given must hold, and there is something in it that may not. Null means null for `status`,
    `command` and `advanced`, and is refused elsewhere."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset(("status", "command", "advanced"))

    task: str | None = None
    status: str | None = None
    type: TaskType | None = None
    refused: Literal[RefusalCode, TextRefusalCode] | None = None
    missing: tuple[str, ...] | None = None
    reachable: NameList | None = None
    not_reachable: Annotated[tuple[str, ...], pydantic.AfterValidator(not_empty)] | None = None
    unmet: NameList | None = None
    checkpoints: NameList | None = None
    suggested: NameList | None = None
    advanced: str | None = None
    command: str | None = None
    prompt_contains: Texts | None = None
    prompt_lacks: Texts | None = None
    memory: Annotated[_Facts, pydantic.AfterValidator(_some)] | None = None
    stale: NameList | None = None
    conflicts: NameList | None = None
    conversation: Phase | None = None
    language: str | None = None
    mcp_tools: NameList | None = None
    error: _Text | None = None

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _null_where_it_means_something(cls, value: object, info: Any) -> object:
        if value is None and info.field_name not in cls.NULLABLE:
            raise refused("accepted is a value here: leave the key out to expect nothing of it")
        return value

    @pydantic.model_validator(mode="after")
    def _something(self) -> ExpectBody:
        if not self.model_fields_set:
            raise refused(f"accepted is at least one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def takes_note_of_refusals(self) -> bool:
        return not self.model_fields_set.isdisjoint(("refused", "missing", "error"))


# --- steps: one key each ----------------------------------------------------------------------


class OpenContact(Shape):
    contact: Annotated[NewContactBody, short_for("id")]


class Say(Shape):
    utterance: Annotated[UtteranceBody, short_for("body")]


class Speak(Shape):
    say: Annotated[SayBody, short_for("body")]


class Read(Shape):
    read: Answer


class Remember(Shape):
    memory: Annotated[
        tuple[MemoryEntryBody, ...], pydantic.BeforeValidator(entries), pydantic.AfterValidator(not_empty)
    ]


class RunTool(Shape):
    tool: ToolBody


class ChangeTask(Shape):
    change_task: str


class HumanTask(Shape):
    human_task: Annotated[HumanTaskBody, short_for("outcome")]


class EndContact(Shape):
    end_contact: Annotated[EndContactBody, short_for("reason")]


class Wait(Shape):
    wait: Annotated[float, pydantic.BeforeValidator(_seconds)]


class Expect(Shape):
    expect: ExpectBody


# What stands under a step's key; None where it is no mapping.
BODIES: Mapping[str, type[Shape] | None] = {
    "contact": NewContactBody,
    "utterance": UtteranceBody,
    "say": SayBody,
    "read": ModelAnswer,
    "memory": MemoryEntryBody,
    "tool": ToolBody,
    "change_task": None,
    "human_task": HumanTaskBody,
    "end_contact": EndContactBody,
    "wait": None,
    "expect": ExpectBody,
}


def _kind(step: object) -> str | None:
    if not isinstance(step, dict):
        return None
    return next((key for key in cast("dict[str, object]", step) if key in BODIES), None)


Action = (
    Annotated[OpenContact, pydantic.Tag("contact")]
    | Annotated[Say, pydantic.Tag("utterance")]
    | Annotated[Speak, pydantic.Tag("say")]
    | Annotated[Read, pydantic.Tag("read")]
    | Annotated[Remember, pydantic.Tag("memory")]
    | Annotated[RunTool, pydantic.Tag("tool")]
    | Annotated[ChangeTask, pydantic.Tag("change_task")]
    | Annotated[HumanTask, pydantic.Tag("human_task")]
    | Annotated[EndContact, pydantic.Tag("end_contact")]
    | Annotated[Wait, pydantic.Tag("wait")]
)
Step = Action | Annotated[Expect, pydantic.Tag("expect")]


class Scenario(Shape):
    """A story. Unless it begins with a contact, one is opened before the first step. Its waits together last
    at most 10 years, in seconds. It begins at `start` (UTC), else at the bench's. Refused without a step."""

    name: _Text
    start: Annotated[datetime, pydantic.BeforeValidator(_moment)] | None = None
    channel: Channel | None = None
    language: _Text | None = None
    tenant: _Facts = pydantic.Field(default_factory=dict[str, object])
    contact: _Facts = pydantic.Field(default_factory=dict[str, object])
    steps: Annotated[
        tuple[Annotated[Step, pydantic.Discriminator(_kind)], ...], pydantic.AfterValidator(not_empty)
    ]

    @pydantic.model_validator(mode="after")
    def _ends_in_time(self) -> Scenario:
        if sum(step.wait for step in self.steps if isinstance(step, Wait)) > LONGEST_S:
            raise refused(f"accepted are waits of at most {LONGEST_S} seconds together")
        return self


class ScenarioFile(Shape):
    """`flow` is the path of a version document or sample file, from the directory of this file. A YAML
    document of at most 512 KiB. Refused without a scenario."""

    flow: _Text | None = None
    scenarios: Annotated[tuple[Scenario, ...], pydantic.AfterValidator(not_empty)]


def kind_of(step: Step) -> str:
    return next(iter(type(step).model_fields))
