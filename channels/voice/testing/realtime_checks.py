"""Whether a command is one that the Realtime protocol knows, to the last field.

The models are those of the `openai` package, which keep fields that they do not know: the real server refuses
those, so that what only the beta knew (`modalities`, `temperature`) is refused here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from openai.types.realtime import RealtimeClientEvent
from pydantic import BaseModel, ValidationError

from channels.voice.wires.wire_json import Object


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the server. `param` is the place in the command."""

    code: str
    message: str
    param: str | None = None


def _models() -> Iterator[tuple[str, type[BaseModel]]]:
    union = get_args(RealtimeClientEvent)[0]
    for model in cast("tuple[type[BaseModel], ...]", get_args(union)):
        yield get_args(model.model_fields["type"].annotation)[0], model


_MODELS: Final = dict(_models())
VOICES: Final = ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")


def refusal_of(command: Object) -> Refusal | None:
    """Why the server refuses the command; None when it has the right form."""
    kind = command.get("type")
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        return Refusal("invalid_value", f"Invalid value: {kind!r}. Supported: {sorted(_MODELS)}.", "type")
    try:
        known = model.model_validate(command, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = _place(first["loc"], command)
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        return Refusal(code, f"{place}: {first['msg']}.", place)
    unknown = next(_unknown(known, ""), None)
    if unknown is not None:
        return Refusal("unknown_parameter", f"Unknown parameter: '{unknown}'.", unknown)
    return None


def _place(location: tuple[int | str, ...], command: object) -> str:
    """The fields of a validator's location; it also names members of unions there, which are no fields."""
    named: list[str] = []
    node: Any = command
    for part in location:
        if isinstance(node, dict) and part in node:
            named.append(str(part))
            node = cast("dict[str, Any]", node)[str(part)]
        elif isinstance(node, list) and isinstance(part, int):
            named.append(str(part))
            node = cast("list[Any]", node)[part]
    if location and str(location[-1]) not in named:
        named.append(str(location[-1]))
    return ".".join(named)


def _unknown(node: object, path: str) -> Iterator[str]:
    if isinstance(node, BaseModel):
        for key in node.model_extra or {}:
            yield f"{path}{key}"
        for key in type(node).model_fields:
            yield from _unknown(getattr(node, key), f"{path}{key}.")
    elif isinstance(node, list):
        for index, value in enumerate(cast("list[object]", node)):
            yield from _unknown(value, f"{path.removesuffix('.')}[{index}].")
