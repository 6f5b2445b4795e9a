"""What a fake Realtime server checks: commands to the last field, and the settings of a session.

The models of commands are those of the `openai` package, which keep fields that they do not know: the real
server refuses those, so that what only the beta knew (`modalities`, `temperature`) is refused here too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from openai.types.realtime import RealtimeClientEvent
from pydantic import BaseModel, ValidationError

from channels.voice.call.ports import AudioFormat
from channels.voice.wires.frames import Object, optional_part
from flow_engine.values import JsonValue


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the server, as its JSON has it. `param` is the place in the command, None where it has
    none."""

    code: str
    message: str
    param: str | None = None


_MODELS: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in cast("tuple[type[BaseModel], ...]", get_args(get_args(RealtimeClientEvent)[0]))
}
VOICES: Final = ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")


def refusal_of(command: Object) -> Refusal | None:
    """Why the server refuses the command, a JSON object; None when it has the right form."""
    kind = command.get("type")
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        return Refusal("invalid_value", f"Invalid value: {kind!r}. Supported: {sorted(_MODELS)}.", "type")
    try:
        known = model.model_validate(command, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # The fields of a validator's location; it also names members of unions there, which are no fields.
        location = first["loc"]
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
        place = ".".join(named)
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        return Refusal(code, f"{place}: {first['msg']}.", place)
    unknown = next(_unknown(known, ""), None)
    if unknown is not None:
        return Refusal("unknown_parameter", f"Unknown parameter: '{unknown}'.", unknown)
    return None


def _unknown(node: object, path: str) -> Iterator[str]:
    if isinstance(node, BaseModel):
        for key in node.model_extra or {}:
            yield f"{path}{key}"
        for key in type(node).model_fields:
            yield from _unknown(getattr(node, key), f"{path}{key}.")
    elif isinstance(node, list):
        for index, value in enumerate(cast("list[object]", node)):
            yield from _unknown(value, f"{path.removesuffix('.')}[{index}].")


_FORMATS: Final[dict[object, AudioFormat]] = {
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
    "audio/pcm": "pcm16",
}


class SessionState:
    """`wire` is the session as the server tells it, JSON."""

    def __init__(self, model: str) -> None:
        detection: dict[str, JsonValue] = {
            "type": "server_vad",
            "threshold": 0.5,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 200,
            "create_response": True,
            "interrupt_response": True,
        }
        pcm: dict[str, JsonValue] = {"type": "audio/pcm", "rate": 24000}
        self.wire: dict[str, JsonValue] = {
            "type": "realtime",
            "object": "realtime.session",
            "id": "sess_fake",
            "model": model,
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "audio": {
                "input": {"format": {**pcm}, "turn_detection": detection},
                "output": {"format": {**pcm}, "voice": "marin", "speed": 1.0},
            },
        }

    def update(self, changes: Object, *, has_spoken: bool) -> Refusal | None:
        """Why the change is refused, or None when the settings are the new ones."""
        voice = optional_part(optional_part(changes, "audio"), "output").get("voice")
        if isinstance(voice, str) and voice not in VOICES:
            message = f"Invalid value: '{voice}'. Supported values are: {', '.join(VOICES)}."
            return Refusal("invalid_value", message, "session.audio.output.voice")
        if voice is not None and voice != self._side("output").get("voice") and has_spoken:
            message = "Cannot update a conversation's voice if assistant audio is present."
            return Refusal("cannot_update_voice", message, "session.audio.output.voice")
        self.wire = _merged(self.wire, cast("dict[str, JsonValue]", changes))
        return None

    @property
    def input_format(self) -> AudioFormat:
        return _FORMATS[optional_part(self._side("input"), "format").get("type")]

    @property
    def output_format(self) -> AudioFormat:
        return _FORMATS[optional_part(self._side("output"), "format").get("type")]

    @property
    def is_transcribed(self) -> bool:
        return bool(optional_part(self._side("input"), "transcription"))

    @property
    def detection(self) -> Object:
        """How turns are detected, in milliseconds; empty when they are not."""
        return optional_part(self._side("input"), "turn_detection")

    def _side(self, side: str) -> Object:
        return optional_part(optional_part(cast(Object, self.wire), "audio"), side)


def _merged(old: dict[str, JsonValue], new: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Fields that are said change, in objects within objects too; a format is one value."""
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and key != "format":
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged
