"""Which models, voices and settings an agent uses now (F3, F28)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from flow_engine.documents import FlowVersion
from flow_engine.runtime.replies import JsonObject, MediaReply
from flow_engine.templates import TemplateScope, compile_template

Presets = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """A version's settings with the preset merged in, worked out once: every prompt needs them."""

    audio: JsonObject
    text: JsonObject

    @classmethod
    def of(cls, version: FlowVersion, presets: Presets) -> MediaSettings:
        text = version.media_config.text.model_dump(by_alias=True, mode="json")
        return cls(audio_settings(version, presets), text)

    def reply(self, channel: str, scope: TemplateScope) -> MediaReply:
        """The channel's settings, provider and voice templates rendered, the language's entry chosen."""
        return _audio(self.audio, scope) if channel == "phone" else _text(self.text)

    def model(self, channel: str) -> str | None:
        """The name of the model that will read the prompt: it chooses the system prompts (F26)."""
        llm = (self.audio if channel == "phone" else self.text).get("llm")
        name = cast("Mapping[str, object]", llm).get("model") if isinstance(llm, Mapping) else None
        return name if isinstance(name, str) else None


def audio_settings(version: FlowVersion, presets: Presets) -> JsonObject:
    """The preset, overridden by the keys that the document really holds, defaults not among them (F3).

    `llm` and `vad` are flat lists of settings, so their keys override one by one; `stt` and `tts` name
    engines with settings that only make sense together, so they are taken whole.
    """
    audio, preset = version.media_config.audio, presets[version.media_config.audio.preset_id]
    own = audio.model_dump(by_alias=True, mode="json", include=audio.model_fields_set)
    held = audio.model_dump(by_alias=True, mode="json", exclude_unset=True)
    for key in ("llm", "vad"):
        if key in held:
            own[key] = {**cast("JsonObject", preset.get(key) or {}), **held[key]}
    return {**preset, **own}


def _text(text: JsonObject) -> MediaReply:
    return MediaReply(
        llm=_object(text, "llm"),
        tts=None,
        stt=None,
        vad=None,
        courtesyMessages=_object(text, "courtesyMessageConfig"),
        allowInterruptionsOnStart=False,
        allowInterruptions=False,
        enableRecording=False,
        userInteractionTimeout=cast("float | None", text.get("userInteractionTimeout")),
        preemptiveGeneration=False,
    )


def _audio(settings: JsonObject, scope: TemplateScope) -> MediaReply:
    return MediaReply(
        llm=_object(settings, "llm"),
        tts=_speech(_object(settings, "tts"), scope),
        stt=_speech(_object(settings, "stt"), scope),
        vad=_object(settings, "vad"),
        courtesyMessages=_object(settings, "courtesyMessageConfig"),
        allowInterruptionsOnStart=bool(settings.get("allowInterruptionsOnStart")),
        allowInterruptions=bool(settings.get("allowInterruptions")),
        enableRecording=bool(settings.get("enableRecording")),
        userInteractionTimeout=cast("float", settings.get("userInteractionTimeout")),
        preemptiveGeneration=bool(settings.get("preemptiveGeneration")),
    )


def _object(settings: JsonObject, key: str) -> JsonObject | None:
    return cast("JsonObject | None", settings.get(key))


def _speech(config: JsonObject | None, scope: TemplateScope) -> JsonObject | None:
    if config is None:
        return None
    rendered = cast("JsonObject", _rendered(config, scope))
    return {**rendered, "active": _for_language(rendered, scope.language)}


def _for_language(config: JsonObject, language: str) -> object:
    """The entry of `languageCustomConfig` for the language, by its two letters, else `default`."""
    wanted = language.partition("-")[0].lower()
    for entry in cast("list[JsonObject]", config.get("languageCustomConfig") or []):
        if str(entry.get("language", "")).partition("-")[0].lower() == wanted and entry.get("config"):
            return entry["config"]
    return config.get("default")


def _rendered(value: object, scope: TemplateScope) -> object:
    """Only `provider` and `voice` may be templates; everything else is passed on as it is."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        rendered: dict[str, object] = {
            key: compile_template(item, lenient=True).render(scope)
            if key in ("provider", "voice") and isinstance(item, str) and "{{" in item
            else _rendered(item, scope)
            for key, item in items
        }
        return rendered
    if isinstance(value, list):
        return [_rendered(item, scope) for item in cast("list[object]", value)]
    return value
