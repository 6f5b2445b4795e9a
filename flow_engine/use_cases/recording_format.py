"""Recordings: a conversation by itself, as one JSON object, to be stepped again elsewhere.

1. A recording needs nothing beside it: the versions that the conversation ran on are in it, and whatever
   others answered then: values that were heard, summaries, the verdict of a closure handler.
2. It tells inputs and outcomes, not what is stored: that follows by the same steps.
3. It is as long as the journal that it is made from, and its versions.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired

import pydantic
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from flow_engine.documents.findings import problems_of
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.runtime.mining_state import MinedBy
from flow_engine.vocabulary import Channel, HumanOutcome, Source, UtteranceType

FORMAT_VERSION = 1


class _Part(pydantic.BaseModel):
    """What a later release adds is passed over by this one."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )


class RecordedVersion(_Part):
    """A version that the conversation ran on, as it was saved."""

    version_id: str
    content_hash: str
    document: Mapping[str, object]


class RecordedContact(_Part):
    """A contact of the conversation as it was in the end. Times are in UTC, `data` is JSON."""

    contact_id: str
    channel: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    data: Mapping[str, object]


class HeardValue(_Part):
    """A value that was heard in the dialogue, in canonical form, by what, and how sure a model was of it
    (0 to 1)."""

    value: object
    source: MinedBy
    confidence: float | None = None

    @pydantic.model_serializer(mode="wrap")
    def _without_what_is_not_there(self, write: pydantic.SerializerFunctionWrapHandler) -> dict[str, object]:
        written: dict[str, object] = write(self)
        return {name: part for name, part in written.items() if name != "confidence" or part is not None}


class Heard(_Part):
    """What work in the background had found out: values by variable id, reasons by the ids of checkpoints
    that were reached, and the previous contacts (`{date, channel, resume}`) where their summaries were
    written anew. `failed`: a model gave no usable answer."""

    values: Mapping[str, HeardValue] = pydantic.Field(default_factory=dict[str, HeardValue])
    checkpoints: Mapping[str, str] = pydantic.Field(default_factory=dict[str, str])
    failed: bool = False
    previous_contacts: Sequence[Mapping[str, object]] | None = None


class _Write(TypedDict):
    varId: str
    value: object
    contactId: str
    updatedBy: str
    descriptionForLLM: Sequence[Mapping[str, str]] | None


class _OfContact(TypedDict):
    contactId: str


class _NewContact(_OfContact):
    channel: Channel
    tenant: Mapping[str, object]
    contact: Mapping[str, object]
    language: str | None
    conversationalFlowVersionId: str


class _ChangeTask(_OfContact):
    task: str


class _Memory(TypedDict):
    writes: Sequence[_Write]


class _Utterance(_OfContact):
    messageId: str
    ts: pydantic.AwareDatetime
    type: UtteranceType
    src: Source
    srcId: str | None
    srcName: str | None
    body: str | Mapping[str, object]
    language: str | None


class _End(_OfContact):
    reason: str | None


class _HumanTask(_End):
    outcome: HumanOutcome
    text: NotRequired[str]
    approvalId: NotRequired[int]


_INPUTS: Mapping[str, pydantic.TypeAdapter[Any]] = {
    "handle-new-contact": pydantic.TypeAdapter(_NewContact),
    "change-task": pydantic.TypeAdapter(_ChangeTask),
    "memory": pydantic.TypeAdapter(_Memory),
    "handle-utterance": pydantic.TypeAdapter(_Utterance),
    "handle-end-contact": pydantic.TypeAdapter(_End),
    "handle-human-task": pydantic.TypeAdapter(_HumanTask),
}
"""What is read of the input of each request."""


def _that_can_be_asked(given: Mapping[str, object]) -> Mapping[str, object]:
    shape = _INPUTS.get(str(given.get("op")))
    if shape is not None:
        try:
            shape.validate_python(given)
        except pydantic.ValidationError as error:
            problem = next(problems_of(error))
            raise ValueError(f"{pointer(*problem.place)}: {problem.message}") from None
    return given


class RecordedEntry(_Part):
    """A commit: what it was asked for (`input.op` and the fields of the request), and what came of it. `at`
    is in UTC."""

    seq: int = pydantic.Field(ge=1)
    at: pydantic.AwareDatetime
    by: str
    input: Annotated[Mapping[str, object], pydantic.AfterValidator(_that_can_be_asked)]
    outcome: Mapping[str, object]
    rationale: str | None = None
    heard: Heard | None = None

    @property
    def op(self) -> str:
        return str(self.input.get("op"))


class Recording(_Part):
    """`complete`: from the conversation's first commit on; elsewhere `start` is what was stored before the
    first entry, or what a fork began with, in the form of a journal's `delta`. `entries` ascend by `seq`.
    Times are in UTC."""

    format: Literal["flow-engine-recording"] = "flow-engine-recording"
    format_version: Literal[1] = FORMAT_VERSION
    conversation_id: str = pydantic.Field(min_length=1)
    campaign_id: str
    flow_id: str
    tag: str | None
    complete: bool
    start: Mapping[str, object] | None = None
    versions: Sequence[RecordedVersion] = pydantic.Field(min_length=1)
    contacts: Sequence[RecordedContact]
    entries: Sequence[RecordedEntry] = pydantic.Field(min_length=1)


def recording_schema() -> dict[str, Any]:
    """The JSON Schema of recordings, as JSON values."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recording.model_json_schema(by_alias=True, mode="serialization"),
    }


def read_recording(text: bytes) -> Recording:
    """Raises CorrectTheInput `recording_unreadable` with every breach. `text` is JSON in UTF-8."""
    try:
        return Recording.model_validate_json(text)
    except pydantic.ValidationError as error:
        findings = [Finding(pointer(*p.place), p.kind, p.message) for p in problems_of(error)]
        raise CorrectTheInput(
            "recording_unreadable", f"no recording of format {FORMAT_VERSION}", findings
        ) from None
