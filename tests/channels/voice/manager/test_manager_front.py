"""Many agents behind one host: the address, the secret and the number of each."""

from __future__ import annotations

import asyncio
import socket
import struct
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx
import orjson
import pytest
from pydantic import SecretStr

from channels.voice.carriers.twilio.carrier import HEADER, signature
from channels.voice.carriers.twilio.twiml import TwiMl
from channels.voice.config.loader import EXAMPLES, load_config
from channels.voice.manager import front as front_module
from channels.voice.manager.agents_list import Listed, read_agents
from channels.voice.manager.configs import SHIPPED, ConfigFiles
from channels.voice.manager.fleet import AgentSpec
from channels.voice.manager.front import MAX_HEAD_BYTES, Front, Route, Routes
from channels.voice.manager.processes import agent_environment
from channels.voice.manager.roster import public_url_of
from tests.channels.voice.manager.manager_bench import Bench, entry, until
from tests.channels.voice.server.front_desk import TOKEN, dial, open_desk, secret

pytestmark = pytest.mark.anyio

WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class TestAnEntry:
    def test_may_have_an_address_a_secret_and_a_number(self) -> None:  # 23
        own = {
            "publicUrl": "https://a.example/x/",
            "webhookSecret": WEBHOOK_SECRET,
            "phoneNumber": "+33 1 23",
        }
        [listed] = read_agents(orjson.dumps([entry("a", **own)])).agents
        assert (listed.public_url, listed.phone_number) == ("https://a.example/x", "+33123")
        assert listed.webhook_secret == SecretStr(WEBHOOK_SECRET)
        assert WEBHOOK_SECRET not in repr(listed)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("publicUrl", "a.example"),
            ("publicUrl", "https://u:p@a.example"),
            ("publicUrl", "https://a.example?x=1"),
            ("publicUrl", "ftp://a.example"),
            ("publicUrl", "https://a.example:99999"),
            ("webhookSecret", "whsec_no base64"),
            ("webhookSecret", "whsec_"),
            ("phoneNumber", "anonymous"),
            ("phoneNumber", 33),
        ],
    )
    def test_with_a_bad_one_is_refused_with_its_place(self, name: str, value: object) -> None:  # 23
        [refused] = read_agents(orjson.dumps([entry("a", **{name: value})])).refused
        assert [problem.pointer for problem in refused.problems] == [f"/0/{name}"]
        assert "base64" not in str(refused) or name == "webhookSecret"

    def test_has_a_number_that_no_other_has(self) -> None:  # 23
        """The calls of one restaurant would be answered by another."""
        entries = [entry("a", phoneNumber="+33 1 23"), entry("b", phoneNumber="+33123"), entry("c")]
        told = read_agents(orjson.dumps([*entries, entry("d", phoneNumber="+33124")]))
        assert [agent.id for agent in told.agents] == ["a", "c", "d"]
        [refused] = told.refused
        assert (refused.id, refused.problems[0].pointer) == ("b", "/1/phoneNumber")
        assert "'a'" in refused.problems[0].message


@pytest.mark.parametrize(
    ("setting", "several", "url"),
    [
        (None, True, None),
        ("https://voice.example", False, "https://voice.example"),
        ("https://voice.example/", True, "https://voice.example/r-1"),
        ("https://voice.example/a/${id}", True, "https://voice.example/a/r-1"),
        ("https://${id}.voice.example", True, "https://r-1.voice.example"),
        ("https://voice.example:${port}", True, "https://voice.example:5051"),
    ],
)
def test_each_agent_has_an_address_of_its_own(
    setting: str | None, several: bool, url: str | None
) -> None:  # 23
    assert public_url_of(setting, "r-1", 5051, several=several) == url


def test_an_agent_finds_its_own_in_its_environment() -> None:  # 23
    inherited = {
        "FLOW_ENGINE_PUBLIC_URL": "https://voice.example",
        "OPENAI_WEBHOOK_SECRET": "whsec_of_all",
        "FLOW_ENGINE_VOICE_SPOOL": "/spool",
    }
    own = agent_environment(
        inherited, "r-1", AgentSpec(5051, "0", None, "https://voice.example/r-1", SecretStr(WEBHOOK_SECRET))
    )
    assert own["FLOW_ENGINE_PUBLIC_URL"] == "https://voice.example/r-1"
    assert own["OPENAI_WEBHOOK_SECRET"] == WEBHOOK_SECRET
    plain = agent_environment(inherited, "r-2", AgentSpec(5051, "0"))
    assert {name: plain[name] for name in inherited} == {**inherited, "FLOW_ENGINE_VOICE_SPOOL": "/spool/r-2"}
    assert own["FLOW_ENGINE_VOICE_SPOOL"] == "/spool/r-1"


async def test_a_changed_address_restarts_its_agent_alone(tmp_path: Path) -> None:  # 23, V13
    bench = Bench(tmp_path)
    bench.listed.answer = [entry("a"), entry("b")]
    async with bench.running() as manager:
        await until(lambda: [bench.state_of(each) for each in "ab"] == ["running"] * 2, "both run")
        bench.listed.answer = [entry("a", publicUrl="https://a.example"), entry("b")]
        manager.refresh_now()
        await until(lambda: len(bench.starts("a")) == 2 and bench.state_of("a") == "running", "a restarts")
        assert len(bench.starts("b")) == 1


@asynccontextmanager
async def fronted(routes: Routes) -> AsyncGenerator[str]:
    front, serving = Front(routes, TwiMl()), set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.ensure_future(front.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*serving), 30)


async def test_the_prefix_leads_to_its_agent_with_its_signature() -> None:  # 23, voice-7
    call = {"CallSid": "CA1", "From": "+33612345678", "To": "+33123456789"}
    desk = {"twilio_auth_token": secret(TOKEN)}
    async with (
        open_desk(**desk, public_url="https://voice.example/a") as a,
        open_desk(**desk, public_url="https://voice.example/b") as b,
        fronted(Routes({"a": Route(a.port, None), "b": Route(b.port, None)}.get, lambda _: None)) as front,
        httpx.AsyncClient(base_url=f"http://{front}") as http,
    ):
        form = {name: [value] for name, value in call.items()}
        signed = {HEADER: signature(TOKEN, "https://voice.example/b/incoming-call", form)}
        reply = await http.post("/b/incoming-call", data=call, headers=signed)
        stream = ET.fromstring(reply.text).find("Connect/Stream")
        assert stream is not None
        assert stream.get("url") == "wss://voice.example/b/media-stream"
        assert (await http.post("/a/incoming-call", data=call, headers=signed)).status_code == 403
        caller = await dial(
            f"ws://{front}/b/media-stream",
            {HEADER: signature(TOKEN, "wss://voice.example/b/media-stream", {})},
        )
        assert await caller.say("hello" * 40_000) == "hello" * 40_000
        assert (a.answering.answered, b.answering.answered) == (0, 1)
        caller.transport.disconnect()
        assert (await http.get("/c/healthz")).status_code == 404


async def test_a_connection_that_is_reset_is_over_for_its_agent_at_once() -> None:  # 23, V12
    heads, over = asyncio.Queue[bytes](), asyncio.Event()

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        await reader.read()  # a caller who says nothing, to an agent that says nothing
        over.set()
        writer.close()

    server = await asyncio.start_server(agent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, fronted(Routes({"a": Route(port, None)}.get, lambda _: None)) as front:
        _, writer = await asyncio.open_connection(*front.split(":"))
        writer.write(b"GET /a/media-stream HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
        await asyncio.wait_for(heads.get(), 5)
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()
        await asyncio.wait_for(over.wait(), 5)


async def test_nothing_from_outside_is_of_this_machine() -> None:  # 23
    async with (
        open_desk() as desk,
        fronted(Routes({"a": Route(desk.port, None)}.get, lambda _: None)) as front,
        httpx.AsyncClient(base_url=f"http://{front}", headers={"Host": "localhost"}) as http,
    ):
        for method, path in (("POST", "/a/drain"), ("GET", "/a/metrics"), ("POST", "/a/incoming-call")):
            assert (await http.request(method, path)).status_code == 403
        assert not desk.app.admission.draining


@pytest.mark.parametrize("upgrade", ["h2c", "websocket\r\nUpgrade: h2c"])
async def test_nothing_follows_a_request_that_only_looks_like_a_websocket(upgrade: str) -> None:  # 23, F43
    async with (
        open_desk() as desk,
        fronted(Routes({"a": Route(desk.port, None)}.get, lambda _: None)) as front,
    ):
        reader, writer = await asyncio.open_connection(*front.split(":"))
        writer.write(f"GET /a/healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: {upgrade}\r\n\r\n".encode())
        assert b"200 OK" in await reader.read(4096)
        writer.write(b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert not desk.app.admission.draining


async def test_every_refusal_of_the_door_is_a_problem_document_and_is_read() -> None:  # 23, F36
    with socket.create_server(("127.0.0.1", 0)) as taken:
        away = taken.getsockname()[1]
    unread: list[str | None] = [None]
    routes = Routes({"a": Route(away, None)}.get, lambda _: None, lambda: unread[-1])
    async with fronted(routes) as front, httpx.AsyncClient(base_url=f"http://{front}") as http:
        seen: list[tuple[int, str]] = []
        for path, told in (("/b/x", None), ("/b/x", "away"), ("/a/x", None)):
            unread.append(told)
            reply = await http.post(path, content=b"x" * 5_000_000)
            assert reply.headers["content-type"] == "application/problem+json"
            seen.append((reply.status_code, reply.json()["code"]))
        assert seen == [(404, "agent_unknown"), (503, "agents_unknown"), (503, "agent_away")]
        host, _, port = front.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b'"code":"request_invalid"' in await reader.read()
        writer.close()


async def test_until_a_list_of_agents_was_read_the_door_says_that_nobody_is_known() -> None:  # 23, V13
    unread: list[str | None] = ["the list of agents cannot be read: away"]
    routes = Routes(lambda _: None, lambda _: None, lambda: unread[-1])
    async with fronted(routes) as front, httpx.AsyncClient(base_url=f"http://{front}") as http:
        for status, agent, reason in ((503, 503, "busy"), (200, 404, "rejected")):
            ready = await http.get("/health/ready")
            assert (ready.status_code, (await http.get("/a/healthz")).status_code) == (status, agent)
            assert ready.json()["checks"] == {"agentsList": unread[-1] or "ok"}
            told = ET.fromstring((await http.post("/incoming-call", content="To=%2B33123456789")).text)[0]
            assert (told.tag, told.get("reason")) == ("Reject", reason)
            unread.append(None)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_call_finds_the_agent_whose_number_it_is_for(method: str) -> None:  # 23, voice-7
    agents = {"+33123456789": Route(1, "https://voice.example/a&b")}
    async with fronted(Routes(lambda _: None, agents.get)) as front, httpx.AsyncClient() as http:

        async def verb(to: str) -> ET.Element:
            form = urlencode({"To": to})
            url = f"http://{front}/incoming-call" + (f"?{form}" if method == "GET" else "")
            reply = await http.request(method, url, content=form if method == "POST" else None)
            return ET.fromstring(reply.text)[0]

        found = await verb("+33123456789")
        assert (found.tag, found.text) == ("Redirect", "https://voice.example/a&b/incoming-call")
        assert (await verb("+33000")).tag == "Reject"
        assert (await verb("")).tag == "Reject"


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
    ],
)
async def test_what_is_no_request_ends_its_connection(sent: bytes) -> None:  # 23
    async with fronted(Routes(lambda _: None, lambda _: None)) as front:
        host, _, port = front.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(30):
            assert not (received := await reader.read()) or received.split(b" ")[1] == b"400"
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"x" * 70_000), b"431"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40_000, b"431"),
        (b"GET / HT", b"408"),
        (b"POST /incoming-call HTTP/1.1\r\nContent-Length: 9\r\n\r\nTo=", b"408"),
    ],
)
async def test_a_head_that_is_too_long_or_too_slow_is_refused(  # 12, voice-7
    sent: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "HEAD_WITHIN_S", 0.2)
    monkeypatch.setattr(front_module, "LINGER_S", 0.2)
    async with fronted(Routes(lambda _: None, lambda _: None)) as front:
        host, _, port = front.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(30):
            received = await reader.read()
        assert received.startswith(b"HTTP/1.1 %b " % status)
        assert b"application/problem+json" in received
        writer.close()


@pytest.mark.parametrize("length", [b"9" * 5000, b"x", b"-1", b"", "²".encode("latin-1")])
async def test_a_length_that_is_no_number_is_refused_and_no_fault(length: bytes) -> None:  # 12
    async with fronted(Routes(lambda _: None, lambda _: None)) as front:
        host, _, port = front.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /incoming-call HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % length)
        writer.write_eof()
        async with asyncio.timeout(20):
            received = await reader.read()
        assert received.startswith(b"HTTP/1.1 400 ")
        assert b"Content-Length" in received.partition(b"\r\n\r\n")[2]
        writer.close()


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_templates_that_come_along_make_configs(kind: str, tmp_path: Path) -> None:  # V13
    builders = ("confirm_order", "confirm_reservation")
    files = ConfigFiles(None, tmp_path, "https://app.example", builders, ("g711_ulaw",))
    content = files.make(Listed("r-1", 'Chez "Nous"', kind))
    config = load_config(content, builders=builders).config
    assert (config.agent.id, config.agent.name, config.agent.type) == ("r-1", 'Chez "Nous"', kind)
    assert config.base_url == "https://app.example"
    example = load_config(EXAMPLES / SHIPPED[kind], builders=builders).config.agent
    assert not [each for each in (example.id, example.name) if each.encode() in content], "another business"
