"""The port to prompts, presets and default tools of an API version (F3, F26)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SystemMcpServer:
    """An MCP server that every flow of an API version gets. `url` may hold `{baseUrl}`. `url` is an http://
    or https:// URL otherwise."""

    name: str
    url: str
    tools: tuple[str, ...]


class SystemPrompts(Protocol):
    """Files of the platform, read once at the start. Nothing here does I/O after that. Languages are BCP 47
    tags. Every method that takes an API version raises CallTheOperator `api_version_unknown`."""

    def prompt_sections(self, api_version: str, model: str | None, language: str) -> Mapping[str, str]:
        """Named prompt sections after the fallbacks of F26: model → default group, language → en-US."""
        ...

    def available_languages(self, api_version: str) -> tuple[str, ...]: ...

    def api_versions(self) -> tuple[str, ...]: ...

    def audio_presets(self) -> Mapping[str, Mapping[str, object]]:
        """Audio presets by id; `default` is always there (F3). Their settings are JSON values."""
        ...

    def mcp_servers(self, api_version: str) -> tuple[SystemMcpServer, ...]: ...
