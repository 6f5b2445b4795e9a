"""Messages and their answers over a real WebSocket."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.models.scripted import Says
from tests.channels.chat.harness import ORDERS, WEATHER, running_chat

pytestmark = pytest.mark.anyio


async def test_an_answer_comes_in_pieces_with_one_final_frame(tmp_path: Path) -> None:  # C13
    async with running_chat(tmp_path, [Says("It is sunny in Rome, and warm.")]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            welcome = client.frames[0]
            assert welcome["content"] == {"event": "welcome", "last_seq": 0}
            assert (welcome["type"], welcome["seq"], welcome["final"]) == ("state", None, False)
            final = await client.say("m-1", "What is the weather in Rome?")
            assert (final["state"], final["agent"]) == ("done", "weather_agent")
            assert client.text("m-1") == "It is sunny in Rome, and warm."
            assert len(client.of("m-1", "dialogue")) > 1
            assert client.numbers == list(range(1, len(client.numbers) + 1))
            assert [frame["final"] for frame in client.frames].count(True) == 1
