"""Which models, voices and settings an agent uses now (F3, F28)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from flow_engine.documents import FlowVersion
from flow_engine.runtime.replies import JsonObject, MediaReply
from flow_engine.templates import REFERENCE, Allowance, TemplateScope, render_source

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
    """The settings with their templates rendered, and the `active` ones: the entry of `languageCustomConfig`
    for the language, by its two letters, else `default`; `fallback` when a template of it has no value."""
    if config is None:
        return None
    allowance, wanted = Allowance(), scope.language.partition("-")[0].lower()
    default, default_whole = _rendered(config.get("default"), scope, allowance)
    fallback, _ = _rendered(config.get("fallback"), scope, allowance)
    entries, chosen, whole = [], default, default_whole
    for entry in cast("list[JsonObject]", config.get("languageCustomConfig") or []):
        settings, settings_whole = _rendered(entry.get("config"), scope, allowance)
        entries.append({**entry, "config": settings} if "config" in entry else entry)
        if (
            settings
            and chosen is default
            and str(entry.get("language", "")).partition("-")[0].lower() == wanted
        ):
            chosen, whole = settings, settings_whole
    rendered = {**config, "default": default, "fallback": fallback}
    if config.get("languageCustomConfig") is not None:
        rendered["languageCustomConfig"] = entries
    return {**rendered, "active": chosen if whole or not fallback else fallback}


def _rendered(settings: object, scope: TemplateScope, allowance: Allowance) -> tuple[object, bool]:
    """Settings of one engine, and whether each of their templates has a value.

    Only `provider` and `voice` may be templates. A reference to the memory is no value here.
    """
    if not isinstance(settings, Mapping):
        return settings, True
    rendered, whole = {**cast("JsonObject", settings)}, True
    for key in ("provider", "voice"):
        source = rendered.get(key)
        if isinstance(source, str) and "{{" in source:
            value = render_source(source, scope, allowance)
            rendered[key] = value.text
            whole = whole and value.whole and bool(value.text.strip()) and REFERENCE not in value.text
    return rendered, whole
