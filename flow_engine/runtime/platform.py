"""What the installation itself brings to every flow: system prompts, presets, default tools (F3, F26)."""

from __future__ import annotations

from collections.abc import Callable

from flow_engine.documents import FlowVersion
from flow_engine.ports.system_prompts import SystemMcpServer, SystemPrompts
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.media import MediaSettings
from flow_engine.runtime.prompt import PromptSections
from flow_engine.vocabulary import MemoryFormat

FALLBACK_LANGUAGE = "en-US"


VERSIONS_REMEMBERED = 256


class Platform:
    """`address` tells where agents and tools reach this service, a URL without a slash at its end; it may be
    another for each request."""

    def __init__(
        self, prompts: SystemPrompts, address: Callable[[], str], memory_format: MemoryFormat
    ) -> None:
        self.prompts = prompts
        self.address = address
        self.memory_format: MemoryFormat = memory_format
        self._media: dict[str, MediaSettings] = {}

    def prompt_sections(self, flow: CompiledFlow, channel: str) -> PromptSections:
        """The system prompts for the model that the channel uses, in the flow's language (F26)."""
        version = flow.document
        model = self.media(flow).model(channel)
        return self.prompts.prompt_sections(version.api_version, model, self.language(version))

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


def prompt_language(version: FlowVersion, available: tuple[str, ...]) -> str:
    wanted = (version.system_prompts_language, version.default_language)
    return next((language for language in wanted if language in available), FALLBACK_LANGUAGE)
