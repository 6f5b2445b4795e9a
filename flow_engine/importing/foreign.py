"""Documents of other systems: parts that keep what nobody declared, and remarks on what a draft has not."""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypedDict

from flow_engine.documents.findings import findings_of
from flow_engine.errors import CorrectTheInput, pointer


class Remark(TypedDict):
    """Something of the original that the draft has not, or has in another form.

    `pointer` is an RFC 6901 pointer into the original (of several files: the file's name comes first)."""

    pointer: str
    kept: Literal["changed", "dropped"]
    message: str


F = TypeVar("F", bound=BaseModel)


class Foreign(BaseModel):
    """A part of a foreign document. What is not declared is kept aside, to be told of."""

    model_config = ConfigDict(frozen=True, extra="allow", coerce_numbers_to_str=True)


def read_foreign(model: type[F], raw: object) -> F:
    """Raises CorrectTheInput `original_invalid` with every mistake that the format's reference knows."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        found = tuple(findings_of(error, model, raw, most=100))
        raise CorrectTheInput("original_invalid", "the file is not of this format", found) from None


def unread(
    part: BaseModel, place: tuple[str | int, ...] = (), known: frozenset[str] = frozenset()
) -> Iterator[Remark]:
    """A remark for each property that no importer reads; those in `known` mean nothing here."""
    for name in type(part).model_fields:
        value: object = getattr(part, name)
        alias = type(part).model_fields[name].alias or name
        yield from _unread_in(value, (*place, alias), known)
    for name in (part.model_extra or {}).keys() - known:
        yield Remark(pointer=pointer(*place, name), kept="dropped", message=f"{name!r} has no counterpart")


def _unread_in(value: object, place: tuple[str | int, ...], known: frozenset[str]) -> Iterator[Remark]:
    if isinstance(value, BaseModel):
        yield from unread(value, place, known)
    elif isinstance(value, tuple):
        for number, each in enumerate(cast("tuple[object, ...]", value)):
            yield from _unread_in(each, (*place, number), known)
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[str, object]", value).items():
            yield from _unread_in(each, (*place, name), known)
