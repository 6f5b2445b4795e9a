"""What the installation brings to every flow: system prompts, presets, default tools; and which models,
voices and settings an agent uses now (F3, F26, F28)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from flow_engine.documents import FlowVersion
from flow_engine.documents.checks import prompt_language
from flow_engine.ports.system_prompts import SystemMcpServer, SystemPrompts
from flow_engine.runtime.beginnings import BEGINNING_BYTES, Beginning
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.prompt import Composer, PromptSections
from flow_engine.runtime.rendered import Reads, TaskTexts, reads_of, values_read
from flow_engine.runtime.replies import FixedParts, JsonObject, MediaReply
from flow_engine.templates import REFERENCE, Allowance, TemplateScope, is_template, render_source
from flow_engine.vocabulary import MemoryFormat

VERSIONS_REMEMBERED = 256
FIXED_BYTES = 16 * 1024 * 1024
"""Of parts of replies that a process keeps."""
MEDIA_BYTES = 4 * 1024 * 1024
"""Of voices and models in them."""
REACHABLE_BYTES = 8 * 1024 * 1024
"""Of the tasks that can follow in them, and what they are kept by."""


class Platform:
    """`address` tells where agents and tools reach this service, a URL without a slash at its end; it may be
    another for each request."""

    def __init__(
        self, prompts: SystemPrompts, address: Callable[[], str], memory_format: MemoryFormat
    ) -> None:
        self.prompts = prompts
        self.address = address
        self.memory_format: MemoryFormat = memory_format
        self.composer = Composer()
        self.texts = TaskTexts()
        self.fixed = Kept[tuple[str, ...], FixedParts](FIXED_BYTES, lambda parts: parts.weight)
        self.media_texts = Kept[tuple[str | bytes, ...], bytes](MEDIA_BYTES, len)
        """`MediaReply` as members of a reply, by all that its templates read. Bytes of JSON."""
        self.reachable_texts = Kept[Hashable, bytes](REACHABLE_BYTES, lambda text: 2 * len(text))
        """`reachableTasks` of replies, by all that they follow from. Bytes of JSON."""
        self.beginnings = Kept[Hashable, Beginning](BEGINNING_BYTES, lambda beginning: beginning.weight)
        self._begin_reads = Kept[tuple[str, str], Reads](VERSIONS_REMEMBERED)
        self._media: dict[str, MediaSettings] = {}
        self._sections: dict[tuple[str, str], PromptSections] = {}

    def for_another_thread(self) -> Platform:
        """The same installation: what a platform keeps belongs to one thread."""
        return Platform(self.prompts, self.address, self.memory_format)

    def begins_as(
        self,
        flow: CompiledFlow,
        campaign_id: str,
        contact: NewContact,
        tenant: Mapping[str, object],
    ) -> Hashable | None:
        """By what the beginning with that contact is kept; None for one that is worked out each time."""
        if not flow.begins_alike:
            return None
        task, known_by = flow.tasks[flow.document.first_task], (flow.content_hash, contact.channel)
        reads = self._begin_reads.get(known_by)
        if reads is None:
            reads = (*self.texts.reads(flow, task), *self.media(flow).reads(contact.channel))
            self._begin_reads.put(known_by, reads)
        seen = values_read(reads, flow, task, campaign_id, contact.data, {}, tenant)
        return *known_by, campaign_id, contact.language, self.address(), seen

    def prompt_sections(self, flow: CompiledFlow, channel: str) -> PromptSections:
        """The system prompts for the model that the channel uses, in the flow's language (F26). Raises
        CallTheOperator `api_version_unknown`."""
        known = self._sections.get((flow.content_hash, channel))
        if known is None:
            if len(self._sections) >= VERSIONS_REMEMBERED:
                self._sections.clear()
            version = flow.document
            model = self.media(flow).model(channel)
            known = self.prompts.prompt_sections(version.api_version, model, self.language(version))
            self._sections[flow.content_hash, channel] = known
        return known

    def language(self, version: FlowVersion) -> str:
        return prompt_language(version, self.prompts.available_languages(version.api_version))

    def media(self, flow: CompiledFlow) -> MediaSettings:
        known = self._media.get(flow.content_hash)
        if known is None:
            if len(self._media) >= VERSIONS_REMEMBERED:
                self._media.clear()
            known = MediaSettings.of(flow.document, self.prompts.audio_presets())
            self._media[flow.content_hash] = known
        return known

    def system_servers(self, version: FlowVersion) -> tuple[SystemMcpServer, ...]:
        return self.prompts.mcp_servers(version.api_version)


# --- media settings ---------------------------------------------------------------------------

Presets = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """A version's settings with the preset merged in, worked out once: every prompt needs them. JSON values;
    times in seconds."""

    audio: JsonObject
    text: JsonObject

    @classmethod
    def of(cls, version: FlowVersion, presets: Presets) -> MediaSettings:
        text = version.media_config.text.model_dump(by_alias=True, mode="json")
        return cls(audio_settings(version, presets), text)

    def reply(
        self, channel: str, scope: TemplateScope, courtesy_prompt: str, allowance: Allowance
    ) -> MediaReply:
        """The channel's settings, templates rendered, the language's entry chosen. JSON values, times in
        seconds. Never raises: a provider or voice without a value has the fallback chosen, a model without
        one is null; `allowance` is what all templates together may spend.

        Courtesy messages that a model makes have `courtesy_prompt` where the version gives none."""
        spoken = channel == "phone"
        settings = self.audio if spoken else self.text
        courtesy = _object(settings, "courtesyMessageConfig")
        if courtesy is not None and courtesy.get("provider") == "groq":
            params = {"prompt": None, **cast("JsonObject", courtesy.get("providerParams"))}
            if params["prompt"] is None:
                params["prompt"] = courtesy_prompt
            courtesy = {**courtesy, "providerParams": params}
        rendered, whole = _rendered(_object(settings, "llm"), scope, allowance)
        llm = cast("JsonObject | None", rendered)
        return MediaReply(
            llm=llm if whole or llm is None else {**llm, "model": None},
            tts=_speech(_object(settings, "tts"), scope, allowance) if spoken else None,
            stt=_speech(_object(settings, "stt"), scope, allowance) if spoken else None,
            vad=_object(settings, "vad") if spoken else None,
            courtesyMessages=courtesy,
            allowInterruptionsOnStart=spoken and bool(settings.get("allowInterruptionsOnStart")),
            allowInterruptions=spoken and bool(settings.get("allowInterruptions")),
            enableRecording=spoken and bool(settings.get("enableRecording")),
            userInteractionTimeout=cast("float | None", settings.get("userInteractionTimeout")),
            preemptiveGeneration=spoken and bool(settings.get("preemptiveGeneration")),
        )

    def reads(self, channel: str) -> Reads:
        """What the channel's templates read beside channel and language."""
        sources = _templates(self.audio if channel == "phone" else self.text)
        return reads_of(sources, besides=("$channel", "$language"))

    def model(self, channel: str) -> str | None:
        """The name of the model that will read the prompt: it chooses the system prompts (F26). None for a
        template, which may change its mind in the middle of a conversation."""
        name = (_object(self.audio if channel == "phone" else self.text, "llm") or {}).get("model")
        return name if isinstance(name, str) and not is_template(name) else None


def audio_settings(version: FlowVersion, presets: Presets) -> JsonObject:
    """The preset, overridden by the keys that the document really holds, defaults not among them (F3).

    `llm` and `vad` are flat lists of settings, so their keys override one by one; `stt` and `tts` name
    engines with settings that only make sense together, so they are taken whole. JSON values, times in
    seconds. Raises KeyError for a preset that is not there, which a save refuses.
    """
    audio, preset = version.media_config.audio, presets[version.media_config.audio.preset_id]
    own = audio.model_dump(by_alias=True, mode="json", include=audio.model_fields_set)
    held = audio.model_dump(by_alias=True, mode="json", exclude_unset=True)
    for key in ("llm", "vad"):
        if key in held:
            own[key] = {**cast("JsonObject", preset.get(key) or {}), **held[key]}
    return {**preset, **own}


def _object(settings: JsonObject, key: str) -> JsonObject | None:
    return cast("JsonObject | None", settings.get(key))


def _templates(settings: object) -> Iterator[str]:
    if isinstance(settings, str):
        if is_template(settings):
            yield settings
    elif isinstance(settings, Mapping):
        for part in cast("JsonObject", settings).values():
            yield from _templates(part)
    elif isinstance(settings, list):
        for part in cast("list[object]", settings):
            yield from _templates(part)


def _speech(config: JsonObject | None, scope: TemplateScope, allowance: Allowance) -> JsonObject | None:
    """The settings with their templates rendered, and the `active` ones: the entry of `languageCustomConfig`
    for the language, by its two letters, else `default`; `fallback` when a template of it has no value."""
    if config is None:
        return None
    wanted = scope.language.partition("-")[0].lower()
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

    Only `provider`, `voice` and `model` may be templates. A reference to the memory is no value here.
    """
    if not isinstance(settings, Mapping):
        return settings, True
    rendered, whole = {**cast("JsonObject", settings)}, True
    for key in ("provider", "voice", "model"):
        source = rendered.get(key)
        if isinstance(source, str) and is_template(source):
            value = render_source(source, scope, allowance)
            rendered[key] = value.text
            whole = whole and value.whole and bool(value.text.strip()) and REFERENCE not in value.text
    return rendered, whole
