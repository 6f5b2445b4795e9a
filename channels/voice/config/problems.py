"""What pydantic says of a config, as findings: a JSON pointer into the file, and what would be accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flow_engine.documents.wording import json_type, listed, quoted
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue

MOST_PROBLEMS = 200

_EXPECTED_TYPES = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "an array",
    "model_type": "an object",
    "dict_type": "an object",
}

Place = tuple[str | int, ...]


def problems_of(error: ValidationError, model: type[BaseModel], raw: JsonValue) -> Iterator[Finding]:
    """Every problem of `raw`, which `model` refused, in its order; cut after two hundred."""
    for details in islice(error.errors(include_url=False), MOST_PROBLEMS):
        yield _finding(details, model, raw)


def _finding(details: ErrorDetails, model: type[BaseModel], raw: JsonValue) -> Finding:
    kind, given, place = details["type"], cast("object", details["input"]), details["loc"]
    context = cast("Mapping[str, object]", details.get("ctx", {}))
    if kind == "missing":
        return Finding(pointer(*place), "missing_property", "is required")
    if kind == "extra_forbidden":
        return Finding(
            pointer(*place), "unknown_property", _nearest(str(place[-1]), _accepted(model, place, raw))
        )
    if kind == "string_pattern_mismatch" and place[-1] == "[key]":
        return Finding(pointer(*place[:-1]), kind, f"accepted are names of the form {context['pattern']}")
    if kind in _EXPECTED_TYPES:
        message = f"must be {_EXPECTED_TYPES[kind]}, not {json_type(given)}"
        return Finding(pointer(*place), "wrong_type", message)
    if kind == "literal_error":
        return Finding(pointer(*place), "not_allowed", f"must be {context['expected']}, not {quoted(given)}")
    message = details["msg"].removeprefix("Input ")
    return Finding(pointer(*place), kind, message)


def _nearest(name: str, accepted: Sequence[str]) -> str:
    near = get_close_matches(name, accepted, n=3)
    if near:
        return f"is no property here; nearest are {', '.join(map(repr, near))}"
    return f"is no property here; accepted are {listed(accepted)}"


def _accepted(model: type[BaseModel], place: Place, raw: JsonValue) -> list[str]:
    """The properties of the object that has one too many."""
    kind: Any = model
    for part in place[:-1]:
        kind = _inside(_branch(kind, raw), part)
        raw = _value_at(raw, part)
    kind = _branch(kind, raw)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _branch(kind: Any, raw: JsonValue) -> Any:
    """The branch of a union that `raw` was read as: its only model, or the one whose literal `raw` gives."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    models = [branch for branch in get_args(kind) if _is_model(branch)]
    if len(models) == 1:
        return models[0]
    return next((branch for branch in models if _is_meant(branch, raw)), None)


def _is_meant(model: type[BaseModel], raw: JsonValue) -> bool:
    return isinstance(raw, dict) and any(
        field.is_required()
        and get_origin(field.annotation) is Literal
        and raw.get(name) in get_args(field.annotation)
        for name, field in model.model_fields.items()
    )


def _inside(kind: Any, part: str | int) -> Any:
    if _is_model(kind):
        fields = cast("type[BaseModel]", kind).model_fields
        return next((f.annotation for name, f in fields.items() if part == (f.alias or name)), None)
    arguments = get_args(kind)
    if not arguments:
        return None
    return arguments[0] if isinstance(part, int) else arguments[-1]


def _value_at(raw: JsonValue, part: str | int) -> JsonValue:
    if isinstance(raw, dict) and isinstance(part, str):
        return raw.get(part)
    return raw[part] if isinstance(raw, list) and isinstance(part, int) and part < len(raw) else None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
