"""Documents of other systems: parts that keep what nobody declared, and remarks on what a draft has not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypedDict

from flow_engine.documents.findings import findings_of, quoted
from flow_engine.errors import CorrectTheInput, Finding, pointer


class Remark(TypedDict):
    """Something of the original that the draft has not, or has in another form.

    `pointer` is an RFC 6901 pointer into the original (of several files: the file's name comes first)."""

    pointer: str
    kept: Literal["changed", "dropped"]
    message: str


Place: TypeAlias = tuple[str | int, ...]
"""Where something stands in the original: the parts of its pointer."""
F = TypeVar("F", bound=BaseModel)


class Foreign(BaseModel):
    """A part of a foreign document. What is not declared is kept aside, to be told of."""

    model_config = ConfigDict(frozen=True, extra="allow", coerce_numbers_to_str=True)


class Position(Foreign):
    x: float = 0
    y: float = 0


def read_foreign(model: type[F], raw: object, twice: Sequence[Finding] = ()) -> F:
    """`twice` are mistakes that the model does not see. Raises CorrectTheInput `original_invalid` with every
    mistake that the format's reference knows."""
    try:
        read = model.model_validate(raw)
    except ValidationError as error:
        told = (_placed(each, raw) for each in findings_of(error, model, raw, most=100))
        found = {(each.pointer, each.message): each for each in told}
        # That a union's other branch would be no list says nothing where something in the list is wrong.
        inner = {place[:end] for place, _ in found for end, sign in enumerate(place) if sign == "/"}
        listed = tuple(each for each in found.values() if each.pointer not in inner)
        raise CorrectTheInput(
            "original_invalid", "the file is not of this format", (*listed, *twice)
        ) from None
    if twice:
        raise CorrectTheInput("original_invalid", "what has one name would be lost", twice)
    return read


def given_twice(rows: object, place: Place, name: str, what: str) -> Iterator[Finding]:
    """A finding for each of the rows that has the `name` of an earlier one, of which a draft would have one
    alone. `place` is that of the rows, `what` is what one of them is called."""
    seen: set[str] = set()
    for number, row in enumerate(cast("list[object]", rows) if isinstance(rows, list) else ()):
        given = cast("Mapping[str, object]", row).get(name) if isinstance(row, Mapping) else None
        if isinstance(given, str | int) and str(given) in seen:
            code = "duplicate_id" if name == "id" else "duplicate_name"
            message = f"{quoted(str(given))} is the {name} of an earlier {what}"
            yield Finding(pointer(*place, number, name), code, message)
        seen.add(str(given))


def _placed(finding: Finding, raw: object) -> Finding:
    """With a pointer into the document: without the names that pydantic gives to branches of a union. What is
    missing is pointed at all the same."""
    missing = finding.code == "missing_property"
    parts = [each.replace("~1", "/").replace("~0", "~") for each in finding.pointer.split("/")[1:]]
    place: list[str] = []
    for number, part in enumerate(parts, 1):
        if isinstance(raw, list) and part.isdecimal():
            raw = cast("list[object]", raw)[int(part)]
        elif isinstance(raw, dict) and part in raw:
            raw = cast("dict[str, object]", raw)[part]
        elif not (missing and number == len(parts)):
            continue
        place.append(part)
    return Finding(pointer(*place), finding.code, finding.message)


def unread(part: BaseModel, place: Place = (), known: frozenset[str] = frozenset()) -> Iterator[Remark]:
    """A remark for each property that no importer reads; those in `known` mean nothing here."""
    for name in type(part).model_fields:
        value: object = getattr(part, name)
        alias = type(part).model_fields[name].alias or name
        yield from _unread_in(value, (*place, alias), known)
    for name in (each for each in part.model_extra or {} if each not in known):
        yield Remark(pointer=pointer(*place, name), kept="dropped", message=f"{name!r} has no counterpart")


def _unread_in(value: object, place: Place, known: frozenset[str]) -> Iterator[Remark]:
    if isinstance(value, BaseModel):
        yield from unread(value, place, known)
    elif isinstance(value, tuple):
        for number, each in enumerate(cast("tuple[object, ...]", value)):
            yield from _unread_in(each, (*place, number), known)
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[str, object]", value).items():
            yield from _unread_in(each, (*place, name), known)
