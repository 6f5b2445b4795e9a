"""What servers offer is remembered across contacts (V2)."""

from __future__ import annotations

from channels.engine_client.mcp_tools import McpTool
from channels.engine_client.toolbox import AWAY_S, KEPT_S, ToolListCache

URL = "https://mcp.example.com/agenda"
TOOLS = (McpTool("book", "Books", {"type": "object"}),)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_listing_is_known_until_it_is_old() -> None:
    clock = Clock()
    cache = ToolListCache(clock=clock)
    assert cache.known(URL) is None
    cache.listed(URL, TOOLS)
    clock.now += KEPT_S - 1
    assert cache.known(URL) == TOOLS
    clock.now += 1
    assert cache.known(URL) is None


def test_a_server_that_was_away_is_left_alone_for_a_moment() -> None:
    clock = Clock()
    cache = ToolListCache(clock=clock)
    cache.listed(URL, TOOLS)
    cache.away(URL)
    assert cache.known(URL) == ()
    clock.now += AWAY_S
    assert cache.known(URL) is None


def test_a_server_that_offers_nothing_is_not_asked_again_at_once() -> None:
    cache = ToolListCache(clock=Clock())
    cache.listed(URL, ())
    assert cache.known(URL) == ()
