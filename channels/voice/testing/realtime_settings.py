"""The settings of a fake Realtime session: what it begins with, and what an update may change."""

from __future__ import annotations

from typing import Final, cast

from channels.voice.call.ports import AudioFormat
from channels.voice.testing.realtime_checks import VOICES, Refusal
from channels.voice.wires.wire_json import Object, optional_part
from flow_engine.values import JsonValue

_FORMATS: Final[dict[object, AudioFormat]] = {
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
    "audio/pcm": "pcm16",
}


class SessionState:
    """`wire` is the session as the server tells it."""

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
        """Why not, or None when the settings are the new ones."""
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
        """How turns are detected; empty when they are not."""
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
