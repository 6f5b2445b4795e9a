"""Request bodies, parsed in one pass with every error at once. They are closed to unknown properties."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, from_json

from flow_engine.documents.findings import MOST_ERRORS, Problem, first_problems, json_type, nearest
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.exact_numbers import read_exactly
from flow_engine.json_values import as_object
from flow_engine.ports.flow_store import GuardMetric
from flow_engine.runtime.human_part import LONGEST_TEXT, text_fault
from flow_engine.use_cases.dialogue import Utterance, body_fault
from flow_engine.use_cases.splits import MOST_SIDES
from flow_engine.values import JsonValue, ValueRejected, check_json
from flow_engine.vocabulary import Channel, HumanOutcome, Source, UtteranceType

MOST_ENTRIES = 1_000
"""Entries of one batch for the memory."""

Id = Annotated[str, pydantic.Field(min_length=1, max_length=512)]
Name = Annotated[str, pydantic.Field(min_length=1, max_length=256)]
Reason = Annotated[str, pydantic.Field(max_length=2_000)]


def sound(value: Mapping[str, object]) -> Mapping[str, object]:
    """JSON that can be kept. Raises ValueError."""
    try:
        check_json(cast("JsonValue", value))
    except ValueRejected as rejected:
        raise ValueError(rejected.message) from rejected
    return value


def _in_utc(instant: datetime) -> datetime:
    if not 2 <= instant.year <= 9998:  # at the ends of the calendar a time zone would lead out of it
        raise ValueError("accepted are moments of the years 2 to 9998")
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _text_or_sound(
    value: object, read: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo
) -> str | Mapping[str, object]:
    """One finding, at the property itself, where a union would have one for each of its types."""
    if not isinstance(value, (str, dict)):
        raise PydanticCustomError("text_or_object_type", "must be a string or an object")
    fault = body_fault(info.data.get("type"), cast("object", value))
    if fault is not None:
        raise ValueError(fault)
    taken: str | Mapping[str, object] = read(value)
    return taken if isinstance(taken, str) else sound(taken)


Facts = Annotated[Mapping[str, object], pydantic.AfterValidator(sound)]
Instant = Annotated[datetime, pydantic.AfterValidator(_in_utc)]


class Body(pydantic.BaseModel):
    """Closed to unknown properties, in camel case as JSON."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=False,
        hide_input_in_errors=True,
    )


_REFUSED = object()
"""In place of a field that cannot be taken, where another is looked at beside it."""

_OF_SEVERAL = "of_several"
"""The kind of a breach that fields make together, told at the last of them: pydantic looks at a whole body
only where each of its fields can be taken, and so would tell it in another round."""


class HandleNewContact(Body):
    """A version is named by `conversationalFlowVersionId`, or by `flowId` and `tag`."""

    contact_id: Id
    conversation_id: Id
    conversational_flow_version_id: Id | None = None
    flow_id: Id | None = None
    tag: Id | None = pydantic.Field(default=None, validate_default=True)
    channel: Channel
    tenant: Facts = pydantic.Field(default_factory=dict[str, object])
    contact: Facts = pydantic.Field(default_factory=dict[str, object])
    language: Name | None = None

    @pydantic.field_validator("tag")
    @classmethod
    def _one_version(cls, tag: str | None, info: pydantic.ValidationInfo) -> str | None:
        version = info.data.get("conversational_flow_version_id", _REFUSED)
        flow = info.data.get("flow_id", _REFUSED)
        told = version is not _REFUSED and flow is not _REFUSED
        if told and ((flow is None) != (tag is None) or (version is None) == (flow is None)):
            fault = "give either 'conversationalFlowVersionId', or 'flowId' and 'tag'"
            raise PydanticCustomError(_OF_SEVERAL, fault)
        return tag


class ChangeTask(Body):
    """`reason` is the model's, for the journal."""

    contact_id: Id
    conversation_id: Id
    task: Annotated[str, pydantic.Field(max_length=512)]
    reason: Reason | None = None


class HandleEndContact(Body):
    contact_id: Id
    conversation_id: Id
    reason: Reason | None = None


def _beside_its_outcome(text: str | None, info: pydantic.ValidationInfo) -> str | None:
    fault = text_fault(info.data.get("outcome"), text)
    if fault is not None:
        raise ValueError(fault)
    return text


HumanText = Annotated[
    Annotated[str, pydantic.Field(max_length=LONGEST_TEXT)] | None,
    pydantic.AfterValidator(_beside_its_outcome),
    pydantic.Field(validate_default=True),
]
"""Stands after the `outcome` that says whether there has to be one."""


class HandleHumanTask(Body):
    """`text` is the AI's with `waiting`, the person's with `edited`, and the one that is decided on with the
    other decisions, as `approvalId` is its number."""

    contact_id: Id
    conversation_id: Id
    outcome: HumanOutcome
    reason: Reason | None = None
    text: HumanText = None
    approval_id: Annotated[int, pydantic.Field(ge=1)] | None = None


class HandleUtterance(Body):
    contact_id: Id
    conversation_id: Id
    message_id: Id
    ts: Annotated[Instant, pydantic.Field(strict=False)]
    type: UtteranceType
    src: Source
    src_id: Id | None = None
    src_name: Name | None = None
    body: Annotated[str | Mapping[str, object], pydantic.WrapValidator(_text_or_sound)]
    language: Name | None = None


def utterance_of(body: HandleUtterance) -> Utterance:
    return Utterance(
        contact_id=body.contact_id,
        message_id=body.message_id,
        ts=body.ts,
        type=body.type,
        src=body.src,
        body=body.body,
        src_id=body.src_id,
        src_name=body.src_name,
        language=body.language,
    )


class DescriptionEntry(Body):
    name: str
    value: str


class MemoryEntryBody(Body):
    """`updatedAt` may be sent, the server stamps its own; a null `value` takes the tool's value back."""

    updated_by: Annotated[str, pydantic.Field(max_length=256)]
    updated_at: object = None
    contact_id: Id
    var_id: Id
    value: Any
    description_for_llm: Annotated[
        tuple[DescriptionEntry, ...] | None, pydantic.Field(strict=False, alias="descriptionForLLM")
    ] = None


MemoryBatch = pydantic.TypeAdapter(
    Annotated[tuple[MemoryEntryBody, ...], pydantic.Field(strict=False, max_length=MOST_ENTRIES)]
)


class _PlainDescription(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str


_PlainId = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class PlainEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    updated_by: Annotated[str, msgspec.Meta(max_length=256)]
    contact_id: _PlainId
    var_id: _PlainId
    value: Any
    updated_at: object = None
    description_for_llm: tuple[_PlainDescription, ...] | None = msgspec.field(
        name="descriptionForLLM", default=None
    )


_PLAIN_BATCH = msgspec.json.Decoder(list[PlainEntry])
_PLAIN_BRACKETS = 150  # fewer than the levels that a body may have, and than the entries of a batch


def memory_entries(body: bytes) -> Sequence[MemoryEntryBody | PlainEntry]:
    """Of a `MemoryBatch`, which alone refuses and says why: what is plainly one is read in a quarter of its
    time. Values are JSON, with each number that a float would change as an `InexactNumber`. Raises
    CorrectTheInput as `parse_body`."""
    if body.count(b"{") + body.count(b"[") <= _PLAIN_BRACKETS:
        try:
            entries = _PLAIN_BATCH.decode(body)
            if read_exactly(body) is None:
                return entries
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
    return parse_body(body, MemoryBatch, exactly=True)


class CreateFlow(Body):
    name: Name
    campaign_id: Id
    updated_by: Name
    schema_version: Annotated[str, pydantic.Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")] = "1.0.0"


class RenameFlow(Body):
    name: Name
    updated_by: Name


class SplitShare(Body):
    version_id: Id
    weight: Annotated[float, pydantic.Field(gt=0, le=1e9, allow_inf_nan=False)]


class SplitGuard(Body):
    """A side is given up whose `metric` is above the base's by `worseBy` or more, an absolute difference in
    the metric's unit, once both sides have `minimum` conversations."""

    metric: GuardMetric
    worse_by: Annotated[float, pydantic.Field(gt=0, le=1e9, allow_inf_nan=False)]
    minimum: Annotated[int, pydantic.Field(ge=1, le=1_000_000)]


_Split = tuple[SplitShare, ...] | None


class PutTag(Body):
    """A tag points to one version, or shares its new conversations out among those of `split`; the first of
    these is the base."""

    version_id: Id | None = None
    split: (
        Annotated[tuple[SplitShare, ...], pydantic.Field(strict=False, min_length=2, max_length=MOST_SIDES)]
        | None
    ) = pydantic.Field(default=None, validate_default=True)
    guard: SplitGuard | None = None
    updated_by: Name

    @pydantic.field_validator("split")
    @classmethod
    def _one_or_several(cls, split: _Split, info: pydantic.ValidationInfo) -> _Split:
        version = info.data.get("version_id", _REFUSED)
        if version is not _REFUSED and (version is None) == (split is None):
            raise PydanticCustomError(_OF_SEVERAL, "give either 'versionId' or 'split'")
        return split

    @pydantic.field_validator("guard")
    @classmethod
    def _of_several(cls, guard: SplitGuard | None, info: pydantic.ValidationInfo) -> SplitGuard | None:
        if guard is not None and info.data.get("split", _REFUSED) is None:
            raise PydanticCustomError(_OF_SEVERAL, "a 'guard' is of a 'split'")
        return guard


MOST_FINDINGS = 100
"""Breaches of one body that are described."""
LONGEST_NAME = 64
LARGE_BODY_BYTES = 8_192

_NO_JSON = {
    BOM_UTF8: "accepted is JSON without a byte order mark before it",
    BOM_UTF16_LE: "accepted is JSON in UTF-8",
    BOM_UTF16_BE: "accepted is JSON in UTF-8",
    b"\x1f\x8b": "accepted is JSON that is not compressed",
}
"""What is told of a body by its first bytes."""

_Parsed = TypeVar("_Parsed")


def parse_body(body: bytes, shape: pydantic.TypeAdapter[_Parsed], *, exactly: bool = False) -> _Parsed:
    """Raises CorrectTheInput: `json_invalid` for what is no JSON, else `body_invalid` with every breach; the
    first 100 are described. `exactly`: a number that a float would change is an `InexactNumber`."""
    try:
        parsed = _validated(body, shape)
        exact = read_exactly(body) if exactly else None
        return parsed if exact is None else shape.validator.validate_python(exact)
    except pydantic.ValidationError as error:
        count = error.error_count()
        problems = list(first_problems(error, MOST_FINDINGS))
        if count <= MOST_ERRORS and 0 < len(problems) < MOST_FINDINGS:
            count = len(problems)
        findings = [_finding(problem, shape) for problem in problems]
        if any(finding.code == "json_invalid" for finding in findings):
            known = (message for start, message in _NO_JSON.items() if body.startswith(start))
            raise CorrectTheInput.breach("json_invalid", next(known, findings[0].message)) from None
        raise CorrectTheInput(
            "body_invalid", f"{count} field(s) of the body cannot be taken", findings
        ) from None


def _validated(body: bytes, shape: pydantic.TypeAdapter[_Parsed]) -> _Parsed:
    """Raises ValidationError, of a large body without a copy of it for every property that is missing."""
    if len(body) > LARGE_BODY_BYTES:
        try:
            raw: object = from_json(body)
        except ValueError:
            pass  # told below, in pydantic's words
        else:
            _refuse_long_batches(raw)
            return shape.validator.validate_python(raw)
    return shape.validator.validate_json(body)


def _refuse_long_batches(raw: object) -> None:
    """Batches are counted before their entries are read: a million wrong ones would hold up others."""
    for place, batch in (("", raw), ("/entries", as_object(raw).get("entries"))):
        if isinstance(batch, list) and len(cast("list[object]", batch)) > MOST_ENTRIES:
            message = f"a batch has at most {MOST_ENTRIES} entries"
            raise CorrectTheInput("body_invalid", message, [Finding(place, "too_long", message)])


def _finding(problem: Problem, shape: pydantic.TypeAdapter[Any]) -> Finding:
    if problem.kind == _OF_SEVERAL:
        return Finding(pointer(*problem.place[:-1]), "value_error", problem.message)
    if problem.kind.startswith("datetime_"):
        cause = problem.context.get("error", f"not {json_type(problem.given)}")
        message = f"must be a date and time such as '2026-01-15T09:31:00Z': {cause}"
        return Finding(pointer(*problem.place), problem.kind, message)
    if problem.kind != "extra_forbidden":
        return Finding(pointer(*problem.place), problem.kind, problem.message)
    *outer, name = problem.place
    # Longer than any property's name: nothing is near it, and to find that out takes long.
    message = f"is no property here; {nearest(str(name)[:LONGEST_NAME], _properties(shape, tuple(outer)))}"
    return Finding(pointer(*problem.place), "unknown_property", message)


@lru_cache(maxsize=256)
def _properties(shape: pydantic.TypeAdapter[Any], place: tuple[str | int, ...]) -> list[str]:
    """The names that the object at that place of a body may have."""
    root: dict[str, Any] = shape.json_schema()

    def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        for branch in schema.get("anyOf", [schema]):
            yield from [branch] if "$ref" not in branch else objects(branch)

    found = list(objects(root))
    for part in place:
        inner = "items" if isinstance(part, int) else "properties"
        down = [
            each[inner] if inner == "items" else each[inner].get(part, {}) for each in found if inner in each
        ]
        found = [each for schema in down for each in objects(schema)]
    return [name for each in found for name in each.get("properties", {})]
