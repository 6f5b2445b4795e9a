"""Findings about documents, bodies and config files: how values are quoted, and what pydantic's become.

Quotes are cut: a hostile document must not blow up the list of its own errors.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, LiteralString, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails
from pydantic_core import PydanticCustomError as Fault

from flow_engine.errors import Finding, pointer

_QUOTED = 60
"""Characters of a text that are shown."""
_LISTED = 20
"""Alternatives that are named; the rest is counted."""

_JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    str: "a string",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "an array",
}


def json_type(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    return _JSON_TYPES.get(type(value), "no JSON value")


def quoted(value: object) -> str:
    """A scalar as it was written, anything else by its type."""
    if isinstance(value, str):
        return repr(value if len(value) <= _QUOTED else value[: _QUOTED - 1] + "…")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else json_type(value)


def listed(names: Iterable[str]) -> str:
    """Names in order, to be offered as alternatives."""
    ordered = sorted(names)
    shown = ", ".join(quoted(name) for name in ordered[:_LISTED]) or "none"
    return shown if len(ordered) <= _LISTED else f"{shown} and {len(ordered) - _LISTED} more"


def nearest(name: str, accepted: Sequence[str]) -> str:
    """What to write instead of a name that is unknown: the most alike of `accepted`, or all of them."""
    near = get_close_matches(name, accepted, n=3) if len(name) <= _QUOTED else []
    if near:
        return f"nearest are {', '.join(map(quoted, near))}"
    return f"accepted are {listed(accepted)}"


# --- errors of pydantic -----------------------------------------------------------------------

Place = tuple[str | int, ...]

EXPECTED_TYPES: Mapping[str, str] = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "an array",
    "tuple_type": "an array",
    "model_type": "an object",
    "dict_type": "an object",
}
"""What should have stood at the place of an error, by pydantic's name of the error."""
MOST_ERRORS = 20_000
"""More than these are counted only: describing them takes longer than others should wait."""

_OF_A_RULE = "Value error, "
_PYDANTICS_SUBJECT = re.compile(r"[A-Z]\w+ should ")
"""How its messages begin, naming what is wrong by a type of Python or as "Input"."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of pydantic: `kind` is pydantic's name of it, `place` leads from the root to it, `given` is
    what stands there, `message` what has to stand there, or the rule's own."""

    kind: str
    place: Place
    given: object
    context: Mapping[str, object]
    message: str


def problems_of(error: ValidationError) -> Iterator[Problem]:
    """Every error, in pydantic's order. What to say of it is for the format. An item of a list that is wrong
    is there all the same: a list is not told to be too short for it."""
    for details in error.errors(include_url=False):
        given, context = cast("object", details["input"]), details.get("ctx", {})
        items = cast("list[object]", given) if isinstance(given, list) else ()
        if details["type"] != "too_short" or len(items) < context["min_length"]:
            yield Problem(details["type"], details["loc"], cast("object", given), context, _told(details))


def first_problems(error: ValidationError, most: int) -> Iterator[Problem]:
    """The first `most` errors; of more than 20,000 only how many there are."""
    count = error.error_count()
    if count <= MOST_ERRORS:
        return islice(problems_of(error), most)
    told = f"{count} errors are too many to be described one by one"
    return iter([Problem("too_many_errors", (), None, {}, told)])


def _told(details: ErrorDetails) -> str:
    """Without what was sent, which may be personal data."""
    kind, given = details["type"], cast("object", details["input"])
    if kind in EXPECTED_TYPES:
        broken = kind == "int_type" and isinstance(given, float)
        found = "one with a fraction" if broken else json_type(given)
        return f"must be {EXPECTED_TYPES[kind]}, not {found}"
    match kind:
        case "missing":
            return f"{details['loc'][-1]!r} is required here"
        case "literal_error":
            return f"must be {details.get('ctx', {})['expected']}"
        case "extra_forbidden":
            return "is no property here"
        case "too_short" if isinstance(given, str):  # a secret, whose length pydantic tells in items
            return f"must have at least {details.get('ctx', {})['min_length']} characters"
        case _:
            return reworded(details["msg"])


def reworded(message: str) -> str:
    """A message of pydantic's as one of ours: what has to stand there, or the rule's own words."""
    if message.startswith(_OF_A_RULE):
        return message.removeprefix(_OF_A_RULE)
    message = message.replace(" after validation", "").partition(", unable to ")[0]
    return _PYDANTICS_SUBJECT.sub("must ", message, count=1)


def breaches_of(error: ValidationError) -> list[str]:
    """Every error as its JSON pointer and message; the message alone for one of the whole."""
    return [f"{pointer(*each.place)} {each.message}".strip() for each in problems_of(error)]


def reading_beside(
    faults: Callable[[Mapping[str, object]], Iterable[str | Fault]],
) -> Callable[[Any, Any, Callable[[Any], _Read]], _Read]:
    """To be given to pydantic's `model_validator` or `field_validator` of the mode "wrap". The errors of the
    fields and the `faults` that these make together, as they were given, are told at once: a validator of the
    mode "after" is asked only where each field can be taken."""

    # pydantic makes a class method of what names its first parameter so
    def reading(cls: Any, given: Any, read: Callable[[Any], _Read]) -> _Read:
        told = list(faults(cast("Mapping[str, object]", given))) if isinstance(given, dict) else []
        found = [
            InitErrorDetails(
                type=Fault("value_error", "{told}", {"told": each}) if isinstance(each, str) else each,
                loc=(),
                input=given,
            )
            for each in told
        ]
        try:
            made = read(given)
        except ValidationError as error:
            if not found or error.error_count() > MOST_ERRORS:
                raise
            found[:0] = map(_told_again, error.errors(include_url=False))
            raise ValidationError.from_exception_data(error.title, found, hide_input=True) from None
        if found:
            raise ValidationError.from_exception_data(type(made).__name__, found, hide_input=True)
        return made

    return reading


def _told_again(details: ErrorDetails) -> InitErrorDetails:
    context = {**details.get("ctx", {}), "told": details["msg"]}
    again = Fault(cast("LiteralString", details["type"]), "{told}", context)
    return InitErrorDetails(type=again, loc=details["loc"], input=details["input"])


def findings_of(
    error: ValidationError, model: type[BaseModel] | None, raw: object, *, most: int
) -> Iterator[Finding]:
    """The first `most` errors of the JSON document `raw`, which `model` refused."""
    return (finding_of(problem, model, raw) for problem in islice(problems_of(error), most))


def finding_of(problem: Problem, model: type[BaseModel] | None, raw: object) -> Finding:
    """Codes are `missing_property`, `unknown_property`, `wrong_type`, `not_allowed`, else pydantic's own. The
    model and `raw`, JSON, only serve to name the properties that an unknown one may have meant; without them
    none are named.
    """
    kind, place, context = problem.kind, problem.place, problem.context
    code, message = kind, problem.message
    if kind in EXPECTED_TYPES:
        code, needed = "wrong_type", []
        if kind == "model_type":
            needed = _required(_model_at(model, place, raw))
        if needed:
            message = (
                f"must be an object with {', '.join(map(quoted, needed))}, not {json_type(problem.given)}"
            )
    elif kind == "missing":
        code = "missing_property"
        message += _instead(_model_at(model, place[:-1], raw), problem.given, str(place[-1]))
    elif kind == "required_here":  # an error of the attribute, whose property has another name
        place = (*place[:-1], str(context["property"]))
        code, message = "missing_property", f"{place[-1]!r} {message}"
    elif kind == "extra_forbidden":
        accepted = _properties(_model_at(model, place[:-1], raw))
        code, message = "unknown_property", f"is no property here; {nearest(str(place[-1]), accepted)}"
    elif kind == "literal_error":
        code, message = "not_allowed", f"{message}, not {quoted(problem.given)}"
    elif kind == "string_pattern_mismatch" and place[-1:] == ("[key]",):
        place, message = place[:-1], f"accepted are names of the form {context['pattern']}"
    return Finding(pointer(*place), code, message)


def told_of_file(error: ValidationError, model: type[BaseModel], raw: object) -> str:
    """What is wrong with an operator's file, which holds `raw`: the first 100 errors with their JSON pointers
    and what is accepted, in one line."""
    found = findings_of(error, model, raw, most=100)
    return "; ".join(f"{each.pointer} {each.message}".strip() for each in found)


def _model_at(model: type[BaseModel] | None, place: Place, raw: object) -> type[BaseModel] | None:
    """The model of the object at a place, None where there is none, or it is not known which."""
    kind: Any = model
    for part in place:
        kind = _inside(_branch(kind, raw), part)
        if isinstance(raw, dict):
            raw = cast("dict[object, object]", raw).get(part)
        else:
            items = cast("list[object]", raw) if isinstance(raw, list) else []
            raw = items[part] if isinstance(part, int) and part < len(items) else None
    kind = _branch(kind, raw)
    return kind if _is_model(kind) else None


def _properties(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _required(model: type[BaseModel] | None) -> list[str]:
    fields = {} if model is None else model.model_fields
    return [field.alias or name for name, field in fields.items() if field.is_required()]


def _instead(model: type[BaseModel] | None, given: object, missing: str) -> str:
    """What an open object has in place of a property. A closed one has an error of its own for it."""
    if model is None or model.model_config.get("extra") == "forbid" or not isinstance(given, dict):
        return ""
    unknown = [str(key) for key in cast("dict[object, object]", given) if key not in _properties(model)]
    near = get_close_matches(missing, [key for key in unknown if len(key) <= _QUOTED], n=1, cutoff=0.75)
    return f", not {quoted(near[0])}" if near else ""


def _branch(kind: Any, raw: object) -> Any:
    """The branch of a union that `raw` was read as: its only model, or the one whose literal `raw` gives."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    models = [branch for branch in get_args(kind) if _is_model(branch)]
    if len(models) == 1:
        return models[0]
    given = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    for branch in models:
        literals = ((n, f) for n, f in branch.model_fields.items() if get_origin(f.annotation) is Literal)
        if any(f.is_required() and given.get(name) in get_args(f.annotation) for name, f in literals):
            return branch
    return None


def _inside(kind: Any, part: str | int) -> Any:
    if _is_model(kind):
        fields = cast("type[BaseModel]", kind).model_fields
        return next((f.annotation for name, f in fields.items() if part == (f.alias or name)), None)
    arguments = get_args(kind)
    if not arguments:
        return None
    return arguments[0] if isinstance(part, int) else arguments[-1]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
