"""What MCP servers offer, remembered from one contact to the next.

Every task begins with the tools of its servers, and somebody waits for its first words: asking a server takes
a few round trips, and one that is away takes the whole time that is allowed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from channels.engine_client.mcp_tools import McpTool

KEPT_S: Final = 60.0
"""How long a server that has got another tool may go unnoticed."""

AWAY_S: Final = 10.0
"""How long a server that could not be reached is not asked again."""


class Listings:
    """For as many contacts as there are in the process. `clock` gives monotonic seconds."""

    def __init__(
        self, *, kept_s: float = KEPT_S, away_s: float = AWAY_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._kept_s = kept_s
        self._away_s = away_s
        self._clock = clock
        self._by_url: dict[str, tuple[float, tuple[McpTool, ...] | None]] = {}

    def known(self, url: str) -> tuple[McpTool, ...] | None:
        """None where the server has to be asked; nothing for one that was away a moment ago."""
        until, tools = self._by_url.get(url, (0.0, None))
        if url not in self._by_url or self._clock() >= until:
            return None
        return () if tools is None else tools

    def listed(self, url: str, tools: tuple[McpTool, ...]) -> None:
        self._by_url[url] = (self._clock() + self._kept_s, tools)

    def away(self, url: str) -> None:
        self._by_url[url] = (self._clock() + self._away_s, None)
