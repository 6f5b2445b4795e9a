"""What servers offer is remembered across contacts (V2)."""

from __future__ import annotations

from channels.engine_client.listings import AWAY_S, KEPT_S, Listings
from channels.engine_client.mcp_tools import McpTool

URL = "https://mcp.example.com/agenda"
TOOLS = (McpTool("book", "Books", {"type": "object"}),)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_listing_is_known_until_it_is_old() -> None:
    clock = Clock()
    listings = Listings(clock=clock)
    assert listings.known(URL) is None
    listings.listed(URL, TOOLS)
    clock.now += KEPT_S - 1
    assert listings.known(URL) == TOOLS
    clock.now += 1
    assert listings.known(URL) is None


def test_a_server_that_was_away_is_left_alone_for_a_moment() -> None:
    clock = Clock()
    listings = Listings(clock=clock)
    listings.listed(URL, TOOLS)
    listings.away(URL)
    assert listings.known(URL) == ()
    clock.now += AWAY_S
    assert listings.known(URL) is None


def test_a_server_that_offers_nothing_is_not_asked_again_at_once() -> None:
    listings = Listings(clock=Clock())
    listings.listed(URL, ())
    assert listings.known(URL) == ()
