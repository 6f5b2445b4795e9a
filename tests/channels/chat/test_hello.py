"""How a connection begins: with a hello that may be, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from api.auth import Keyring
from channels.chat import app
from tests.channels.chat.harness import WEATHER, Chat, running_chat
from tests.channels.chat.test_agents_table import KEYS, key

pytestmark = pytest.mark.anyio

HELLO: dict[str, Any] = {"type": "hello", "user": "u1", "session": None, "after": None}


async def refused(chat: Chat, first: str | bytes | None) -> tuple[dict[str, Any], int]:
    """The content of the only frame that comes, and the close code."""
    async with connect(chat.url, proxy=None) as socket:
        if first is not None:
            await socket.send(first)
        frame = orjson.loads(await socket.recv())
        assert (frame["type"], frame["seq"], frame["final"]) == ("error", None, False)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code is not None
        return frame["content"], socket.close_code


async def test_what_is_no_hello_ends_the_connection_and_says_why(tmp_path: Path) -> None:  # C12
    bad: list[tuple[Any, str, str | None]] = [
        ({"type": "message", "id": "m", "content": "hi"}, "hello_missing", None),
        ({"type": "cancel", "id": "m"}, "hello_missing", None),
        ({**HELLO, "user": ""}, "frame_invalid", "/user"),
        ({**HELLO, "after": -1}, "frame_invalid", "/after"),
        ({**HELLO, "after": "3"}, "frame_invalid", "/after"),
        ({**HELLO, "session": 7}, "frame_invalid", "/session"),
        ({**HELLO, "language": "Italian!"}, "frame_invalid", "/language"),
        ({**HELLO, "colour": "red"}, "frame_invalid", "/colour"),
        ({"user": "u1"}, "frame_invalid", "/type"),
        ({"type": ["hello"]}, "frame_invalid", "/type"),
        ([], "json_invalid", ""),
        ("hello", "json_invalid", ""),
    ]
    async with running_chat(tmp_path) as chat:
        for frame, code, pointer in bad:
            content, closed = await refused(chat, orjson.dumps(frame).decode())
            assert (content["code"], content.get("pointer"), closed) == (code, pointer, 4400), frame
        assert (await refused(chat, "{"))[0]["code"] == "json_invalid"
        async with chat.client() as client:
            assert client.frames[0]["content"]["event"] == "welcome"


async def test_who_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    monkeypatch.setattr(app, "HELLO_WITHIN_S", 0.05)
    async with running_chat(tmp_path) as chat:
        content, closed = await refused(chat, None)
        assert (content["code"], closed) == ("hello_missing", 4400)


async def test_a_credential_opens_its_own_tenants_sessions_only(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, authenticator=Keyring.parse(KEYS)) as chat:
        async with chat.client(headers=key("chat")) as client:
            assert client.frames[0]["content"]["event"] == "welcome"
        async with chat.client(headers=key("other"), session=client.session) as stranger:
            assert stranger.frames[0]["content"]["code"] == "session_unknown"
            with pytest.raises(ConnectionClosed):
                await stranger.socket.recv()
            assert stranger.socket.close_code == 4004
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(chat.url, additional_headers=key("designer"), proxy=None):
                pass


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_without_keys_nothing_that_came_through_a_proxy_is_served(
    tmp_path: Path, name: str
) -> None:  # F43
    proxied = {name: "192.0.2.1"}
    async with running_chat(tmp_path) as chat:
        token = (await chat.http.post("/v1/chat/tokens", json={"user": "u1"})).json()["token"]
        for method, path in (("POST", "/v1/chat/tokens"), ("GET", "/v1/ai-agents")):
            answer = await chat.http.request(method, path, json={"user": "u1"}, headers=proxied)
            assert (answer.status_code, answer.json()["code"]) == (403, "proxied_without_keys")
        for query in ("", f"?token={token}"):
            with pytest.raises(InvalidStatus, match="403"):
                async with chat.client(query=query, headers=proxied):
                    pass
        assert (await chat.http.get("/health/ready", headers=proxied)).status_code == 200
        async with chat.client(query=f"?token={token}") as client:
            assert client.frames[0]["content"]["event"] == "welcome"
    async with (
        running_chat(tmp_path, authenticator=Keyring.parse(KEYS)) as chat,
        chat.client(headers={**key("chat"), **proxied}) as client,
    ):
        assert client.frames[0]["content"]["event"] == "welcome"


async def test_a_number_that_was_never_reached_misses_nothing(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client(language="it-IT") as client:
            last = (await client.say("m-1", "What is the weather in Rome?"))["seq"]
        async with chat.client(session=client.session, after=last + 1000) as back:
            assert back.frames[0]["content"] == {"event": "welcome", "last_seq": last}
            assert back.session == client.session
            await back.say("m-2", "What is the weather in Rome?")
            assert back.numbers[0] == last + 1
        page = (await chat.http.get(f"/v1/chat/sessions/{client.session}")).json()
        assert (page["language"], page["last_seq"]) == ("it-IT", back.numbers[-1])
