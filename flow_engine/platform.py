"""What the installation itself brings to every flow: system prompts, presets, default tools (F3, F26)."""

from __future__ import annotations

from dataclasses import dataclass

from flow_engine.documents import FlowVersion
from flow_engine.media import media_for, model_of
from flow_engine.ports import SystemMcpServer, SystemPrompts
from flow_engine.prompt import MemoryFormat, Pieces
from flow_engine.replies import MediaReply
from flow_engine.templates import TemplateScope

FALLBACK_LANGUAGE = "en-US"


@dataclass(frozen=True, slots=True)
class Platform:
    """`base_url` is where agents and tools reach this service."""

    prompts: SystemPrompts
    base_url: str
    memory_format: MemoryFormat

    def pieces(self, version: FlowVersion, channel: str) -> Pieces:
        """The system prompts for the model that the channel uses, in the flow's language (F26)."""
        model = model_of(version, self.prompts.audio_presets(), channel)
        return self.prompts.pieces(version.api_version, model, self.language(version))

    def language(self, version: FlowVersion) -> str:
        return prompt_language(version, self.prompts.available_languages(version.api_version))

    def media(self, version: FlowVersion, channel: str, scope: TemplateScope) -> MediaReply:
        return media_for(version, self.prompts.audio_presets(), channel, scope)

    def system_servers(self, version: FlowVersion) -> tuple[SystemMcpServer, ...]:
        return self.prompts.mcp_servers(version.api_version)


def prompt_language(version: FlowVersion, available: tuple[str, ...]) -> str:
    wanted = (version.system_prompts_language, version.default_language)
    return next((language for language in wanted if language in available), FALLBACK_LANGUAGE)
