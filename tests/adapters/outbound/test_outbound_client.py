"""The guarded client against servers on this machine: hostile addresses, answers and redirects."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

from adapters.outbound.client import (
    MAX_BODY_BYTES,
    MAX_CHUNKS,
    MAX_CONNECTIONS,
    MAX_REDIRECTS,
    GuardedClient,
)
from adapters.outbound.network import MAX_ATTEMPTS, READ_BYTES, GuardedNetwork
from adapters.outbound.policy import AllowList
from flow_engine.ports.outbound import (
    OutboundFailed,
    OutboundRefused,
    OutboundReply,
    UnusableAnswer,
    post_json,
)
from tests.adapters.outbound.local_server import (
    OTHER_PUBLIC,
    PARTNER_PEM,
    PUBLIC,
    Handler,
    LocalServer,
    RecordingDialler,
    ScriptedResolver,
    ok,
    redirect,
    serving,
)
from tests.certificates import trusting

pytestmark = pytest.mark.anyio

NOTHING = AllowList()
LONG = 30.0
SHORT = 0.1


@asynccontextmanager
async def guarded(
    allow: str = "",
    *,
    resolver: ScriptedResolver | None = None,
    dialler: RecordingDialler | None = None,
    max_bytes: int = 1024,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[GuardedClient, None]:
    """A client whose names all lead to PUBLIC, unless the test says otherwise."""
    client = GuardedClient(
        AllowList.parse(allow),
        resolver=resolver or ScriptedResolver([PUBLIC]),
        dialler=dialler,
        max_bytes=max_bytes,
        tls=tls,
    )
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def partner(
    *answers: bytes | Handler, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[LocalServer, GuardedClient], None]:
    """A server at PUBLIC, where every name leads, and a client with default rules."""
    async with (
        serving(*answers, tls=tls) as server,
        guarded(dialler=RecordingDialler({PUBLIC: server.port})) as client,
    ):
        yield server, client


class TestForbiddenAddresses:
    async def test_a_plain_client_reaches_the_server_that_the_guarded_one_is_refused(self) -> None:  # F45
        """Negative control: the server is there, so that only the guard keeps calls from it."""
        async with serving() as server:
            url = f"http://127.0.0.1:{server.port}/"
            async with httpx2.AsyncClient(trust_env=False) as plain:
                assert (await plain.get(url)).status_code == 200
            client = GuardedClient(NOTHING)
            with pytest.raises(OutboundRefused):
                await client.request("GET", url, timeout_s=LONG)
            await client.aclose()
            assert server.connections == 1

    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "127。0。0。1",
            "①②⑦.⓪.⓪.①",
            "%31%32%37.0.0.1",
            "0.0.0.0",
            "0",
            "[::]",
            "[::1]",
            "[::1%25lo]",
            "[::127.0.0.1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[64:ff9b::127.0.0.1]",
            "[2002:7f00:1::]",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "loopback.example",
            "user@127.0.0.1",
            "example.com@127.0.0.1",
            "example.com:80@127.0.0.1",
            "169.254.169.254",
            "[fd00:ec2::254]",
            "10.0.0.1",
            "192.168.0.1",
            "100.64.0.1",
        ],
    )
    async def test_no_spelling_of_a_forbidden_host_opens_a_connection(self, host: str) -> None:  # F45
        dialler = RecordingDialler()
        async with guarded(resolver=ScriptedResolver(["127.0.0.1"]), dialler=dialler) as client:
            for port in ("", ":8080"):
                with pytest.raises(OutboundRefused):
                    await post_json(client, f"http://{host}{port}/", {}, timeout_s=LONG)
        assert dialler.dialled == []

    async def test_the_system_resolver_is_checked_too(self) -> None:  # F45
        client = GuardedClient(NOTHING)
        with pytest.raises(OutboundRefused, match="loopback"):
            await client.request("GET", "http://localhost/", timeout_s=LONG)
        await client.aclose()

    @pytest.mark.parametrize(
        "form", ["127.0.0.1:{}", "127.0.0.1", "127.0.0.0/8", "localhost:{}", "localhost"]
    )
    async def test_an_allow_listed_server_on_loopback_is_reached(self, form: str) -> None:  # F45
        async with serving(ok(b'{"close":true}')) as server:
            host = "localhost" if "localhost" in form else "127.0.0.1"
            allow = form.format(server.port)
            async with guarded(allow, resolver=ScriptedResolver(["127.0.0.1"])) as client:
                reply = await post_json(client, f"http://{host}:{server.port}/x?y", {"a": 1}, timeout_s=LONG)
            assert reply == OutboundReply(200, b'{"close":true}')
            assert server.requests[0].startswith(b"POST /x?y HTTP/1.1\r\n")
            assert f"host: {host}:{server.port}\r\n".encode() in server.requests[0]
            assert server.requests[0].endswith(b'\r\n\r\n{"a":1}')

    async def test_one_internal_address_among_public_ones_refuses_the_name(self) -> None:  # F45
        dialler = RecordingDialler()
        async with guarded(resolver=ScriptedResolver([PUBLIC, "10.0.0.1"]), dialler=dialler) as client:
            with pytest.raises(OutboundRefused):
                await client.request("GET", "http://mixed.example/", timeout_s=LONG)
        assert dialler.dialled == []


class TestRebinding:
    async def test_a_name_is_resolved_once_and_its_checked_address_is_dialled(self) -> None:  # F45
        async with serving() as server:
            resolver = ScriptedResolver([PUBLIC], ["127.0.0.1"])
            dialler = RecordingDialler({PUBLIC: server.port})
            async with guarded(resolver=resolver, dialler=dialler) as client:
                await client.request("GET", "http://rebind.example:8080/", timeout_s=LONG)
            assert resolver.asked == ["rebind.example"]
            assert dialler.dialled == [(PUBLIC, 8080)]
            assert b"host: rebind.example:8080\r\n" in server.requests[0]

    @pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 needs no set-up on Linux only")
    async def test_the_connection_really_goes_to_the_checked_address(self) -> None:  # F45
        """Without a dialler of the test's own: only 127.0.0.2 is allow-listed, and only it listens."""
        async with serving(ok(b"checked"), host="127.0.0.2") as checked:
            resolver = ScriptedResolver(["127.0.0.2"], ["127.0.0.1"])
            async with guarded("127.0.0.2", resolver=resolver) as client:
                reply = await client.request("GET", f"http://rebind.example:{checked.port}/", timeout_s=LONG)
            assert reply.body == b"checked"

    async def test_every_new_connection_is_checked_anew(self) -> None:  # F45
        async with serving(ok(b"", b"Connection: close")) as server:
            resolver = ScriptedResolver([PUBLIC], ["127.0.0.1"])
            dialler = RecordingDialler({PUBLIC: server.port})
            async with guarded(resolver=resolver, dialler=dialler) as client:
                await client.request("GET", "http://rebind.example/", timeout_s=LONG)
                with pytest.raises(OutboundRefused):
                    await client.request("GET", "http://rebind.example/", timeout_s=LONG)
            assert dialler.dialled == [(PUBLIC, 80)]

    async def test_a_kept_connection_needs_no_second_answer_of_the_name_server(self) -> None:  # F45
        async with serving() as server:
            resolver = ScriptedResolver([PUBLIC], ["127.0.0.1"])
            dialler = RecordingDialler({PUBLIC: server.port})
            async with guarded(resolver=resolver, dialler=dialler) as client:
                for _ in range(3):
                    await post_json(client, "http://partner.example/", {}, timeout_s=LONG)
            assert (resolver.asked, server.connections) == (["partner.example"], 1)


class TestRedirects:
    @pytest.mark.parametrize(
        "location",
        [
            "http://127.0.0.1:{port}/",
            "http://[::ffff:127.0.0.1]:{port}/",
            "http://2130706433:{port}/",
            "//localhost:{port}/",
            "http://169.254.169.254/latest/meta-data/",
            "file:///etc/passwd",
            "http://user:pw@partner.example/",
        ],
    )
    async def test_to_a_forbidden_place_is_refused(self, location: str) -> None:  # F45
        async with serving(ok(b"secret")) as inner:
            async with serving(redirect(location.format(port=inner.port))) as outer:
                dialler = RecordingDialler({PUBLIC: outer.port})
                resolver = ScriptedResolver([PUBLIC], ["127.0.0.1"])
                async with guarded(resolver=resolver, dialler=dialler) as client:
                    with pytest.raises(OutboundRefused):
                        await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert inner.connections == 0
            assert dialler.dialled == [(PUBLIC, 80)]

    @pytest.mark.parametrize("status", [b"301 M", b"302 F", b"303 S", b"307 T", b"308 P"])
    async def test_of_a_post_fails_and_repeats_nothing(self, status: bytes) -> None:  # F45
        async with partner(redirect("/again", status)) as (server, client):
            with pytest.raises(UnusableAnswer, match="redirects a POST") as raised:
                await post_json(client, "http://partner.example/", {}, timeout_s=LONG)
            assert raised.value.status == int(status[:3])
            assert len(server.requests) == 1

    async def test_of_a_get_are_followed_three_times(self) -> None:  # F45
        hops = [redirect(f"/{n}") for n in range(MAX_REDIRECTS)]
        async with partner(*hops, ok(b"there")) as (_, client):
            reply = await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert reply.body == b"there"

    async def test_without_end_fail(self) -> None:  # F45
        async with partner(redirect("/round")) as (server, client):
            with pytest.raises(UnusableAnswer, match="more than 3 redirects") as raised:
                await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert raised.value.status == 302
            assert len(server.requests) == 1 + MAX_REDIRECTS

    @pytest.mark.parametrize("elsewhere", ["http://other.example/", "http://partner.example:8080/"])
    async def test_carry_no_header_or_body_to_another_origin(self, elsewhere: str) -> None:  # F45
        async with partner(redirect("/same"), redirect(elsewhere), ok()) as (server, client):
            await client.request(
                "GET",
                "http://partner.example/",
                headers={"Authorization": "Bearer s3cret", "X-Api-Key": "k3y"},
                content=b"b0dy",
                timeout_s=LONG,
            )
            first, same_origin, other_origin = server.requests
            for secret in (b"s3cret", b"k3y", b"b0dy"):
                assert secret in first
                assert secret in same_origin
                assert secret not in other_origin

    @pytest.mark.parametrize("status", [b"304 Not Modified", b"300 Multiple Choices"])
    async def test_that_lead_nowhere_are_replies(self, status: bytes) -> None:  # F45
        async with partner(ok(b"", status=status)) as (_, client):
            reply = await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert reply.status == int(status[:3])


class TestBounds:
    async def test_a_server_that_never_answers_costs_the_time_limit_only(self) -> None:  # F45
        async def silent(request: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with partner(silent) as (_, client):
            with pytest.raises(OutboundFailed, match=r"within 0\.1 s"):
                await client.request("GET", "http://partner.example/", timeout_s=SHORT)

    async def test_a_server_that_drips_is_held_to_the_whole_time(self) -> None:  # F45
        async def drip(request: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.005)

        async with partner(drip) as (server, client):
            with pytest.raises(OutboundFailed, match="within"):
                await client.request("GET", "http://partner.example/", timeout_s=SHORT)
            await asyncio.wait_for(server.client_gone.wait(), LONG)

    async def test_a_name_server_that_never_answers_counts(self) -> None:  # F45
        async def stuck(host: str, port: int) -> Sequence[str]:
            return await asyncio.get_running_loop().create_future()

        client = GuardedClient(NOTHING, resolver=stuck)
        with pytest.raises(OutboundFailed, match="within"):
            await client.request("GET", "http://partner.example/", timeout_s=SHORT)
        await client.aclose()

    @pytest.mark.parametrize("size", [0, 1, 1023, 1024])
    async def test_a_body_up_to_the_limit_is_read_whole(self, size: int) -> None:  # F45
        async with partner(ok(b"x" * size)) as (_, client):
            reply = await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert len(reply.body) == size

    async def test_chunks_of_a_byte_are_cut_off(self) -> None:  # F45
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with (
            serving(head + b"1\r\nx\r\n" * (MAX_CHUNKS + 1)) as server,
            guarded(dialler=RecordingDialler({PUBLIC: server.port}), max_bytes=MAX_BODY_BYTES) as client,
        ):
            with pytest.raises(UnusableAnswer, match=f"more than {MAX_CHUNKS} chunks"):
                await client.request("GET", "http://partner.example/", timeout_s=LONG)

    async def test_is_read_in_small_pieces_between_which_others_are_served(self) -> None:  # F45
        async with serving(ok(b"x" * 10 * READ_BYTES)) as server:
            network = GuardedNetwork(AllowList.parse("127.0.0.1"))
            stream = await network.connect_tcp("127.0.0.1", server.port, LONG)
            await stream.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            pieces = [len(await stream.read(65_536, LONG)) for _ in range(3)]
            assert max(pieces) <= READ_BYTES
            await stream.aclose()

    async def test_an_endless_body_is_cut_off_at_the_limit(self) -> None:  # F45
        async def endless(request: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()

        async with partner(endless) as (server, client):
            with pytest.raises(UnusableAnswer, match="more than 1024 bytes") as raised:
                await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert raised.value.status == 200
            await asyncio.wait_for(server.client_gone.wait(), LONG)

    async def test_a_huge_header_fails(self) -> None:  # F45
        async with partner(ok(b"", b"X-Huge: " + b"x" * 1_000_000)) as (_, client):
            with pytest.raises(OutboundFailed):
                await client.request("GET", "http://partner.example/", timeout_s=LONG)

    @pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"deflate", b"br", b"identity, gzip"])
    async def test_an_encoded_body_is_refused_unread(self, encoding: bytes) -> None:  # F45
        bomb = gzip.compress(b"\0" * 10_000_000)
        async with partner(ok(bomb, b"Content-Encoding: " + encoding)) as (server, client):
            with pytest.raises(UnusableAnswer, match="encoding") as raised:
                await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert raised.value.status == 200
            assert b"\r\naccept-encoding: identity\r\n" in server.requests[0]

    async def test_connections_are_bounded(self) -> None:  # F45
        gate = asyncio.Event()

        async def gated(request: bytes, writer: asyncio.StreamWriter) -> None:
            await gate.wait()
            writer.write(ok())

        async with partner(gated) as (server, client):
            calls = [
                asyncio.create_task(client.request("GET", "http://partner.example/", timeout_s=LONG))
                for _ in range(MAX_CONNECTIONS + 10)
            ]
            while server.open_now < MAX_CONNECTIONS:
                await asyncio.sleep(0)
            gate.set()
            replies = await asyncio.gather(*calls)
            assert {reply.status for reply in replies} == {200}
            assert server.most_open == MAX_CONNECTIONS

    async def test_a_cancelled_call_stays_cancelled(self) -> None:  # F45
        reached = asyncio.Event()

        async def silent(request: bytes, writer: asyncio.StreamWriter) -> None:
            reached.set()
            await asyncio.Event().wait()

        async with partner(silent) as (_, client):
            call = asyncio.create_task(client.request("GET", "http://partner.example/", timeout_s=LONG))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


class TestFailures:
    @pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
    async def test_an_answer_that_is_no_http_fails(self, answer: bytes) -> None:  # F45
        async with partner(answer) as (_, client):
            with pytest.raises(OutboundFailed):
                await client.request("GET", "http://partner.example/", timeout_s=LONG)

    @pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"])
    async def test_a_connection_that_breaks_off_fails(self, part: bytes) -> None:  # F45
        async def hang_up(request: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(part)
            writer.close()

        async with partner(hang_up) as (_, client):
            with pytest.raises(OutboundFailed):
                await client.request("GET", "http://partner.example/", timeout_s=LONG)

    async def test_a_port_where_nobody_listens_fails(self) -> None:  # F45
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            async with guarded("127.0.0.1") as client:
                with pytest.raises(OutboundFailed, match="cannot be reached"):
                    await client.request(
                        "GET", f"http://127.0.0.1:{unused.getsockname()[1]}/", timeout_s=LONG
                    )

    async def test_the_next_checked_address_is_tried(self) -> None:  # F45
        async with serving() as server:
            dialler = RecordingDialler({PUBLIC: server.port})
            resolver = ScriptedResolver([OTHER_PUBLIC, PUBLIC])
            async with guarded(resolver=resolver, dialler=dialler) as client:
                assert (await client.request("GET", "http://two.example/", timeout_s=LONG)).status == 200
            assert dialler.dialled == [(OTHER_PUBLIC, 80), (PUBLIC, 80)]

    async def test_a_name_with_many_addresses_is_not_many_attempts(self) -> None:  # F45
        dialler = RecordingDialler()
        resolver = ScriptedResolver([f"93.184.216.{n}" for n in range(100)])
        async with guarded(resolver=resolver, dialler=dialler) as client:
            with pytest.raises(OutboundFailed, match="cannot be reached"):
                await client.request("GET", "http://many.example/", timeout_s=LONG)
        assert len(dialler.dialled) == MAX_ATTEMPTS

    @pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError(), None])
    async def test_a_name_that_does_not_resolve_fails(self, error: Exception | None) -> None:  # F45
        async def unknown(host: str, port: int) -> Sequence[str]:
            if error is not None:
                raise error
            return []

        client = GuardedClient(NOTHING, resolver=unknown)
        with pytest.raises(OutboundFailed, match="does not resolve"):
            await client.request("GET", "http://nowhere.example/", timeout_s=LONG)
        await client.aclose()

    @pytest.mark.parametrize("payload", [object(), {"a": {1, 2}}, "\ud800", 2**70])
    async def test_a_payload_that_is_no_json_fails_before_a_connection(self, payload: object) -> None:  # F45
        dialler = RecordingDialler()
        async with guarded(dialler=dialler) as client:
            with pytest.raises(OutboundFailed, match="JSON"):
                await post_json(client, "http://partner.example/", payload, timeout_s=LONG)
        assert dialler.dialled == []

    async def test_no_message_tells_path_query_or_headers(self) -> None:  # F45
        async with guarded(dialler=RecordingDialler()) as client:
            for url in (
                "http://partner.example/s3cret?key=s3cret",
                "http://s3cret:s3cret@partner.example/",
                "http://127.0.0.1/s3cret",
                "http://partner.example:x/s3cret",
                "ftp://partner.example/s3cret",
            ):
                with pytest.raises((OutboundRefused, OutboundFailed)) as raised:
                    await client.request("GET", url, headers={"X-Key": "s3cret"}, timeout_s=LONG)
                assert "s3cret" not in str(raised.value)


class TestRequests:
    @pytest.mark.parametrize(
        "method", ["CONNECT", "TRACE", "OPTIONS", "get", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"]
    )
    async def test_other_methods_are_refused(self, method: str) -> None:  # F45
        async with guarded(dialler=RecordingDialler()) as client:
            with pytest.raises(OutboundRefused, match="accepted are"):
                await client.request(method, "http://partner.example/", timeout_s=LONG)

    @pytest.mark.parametrize(
        "name", ["Host", "HOST", "Content-Length", "Transfer-Encoding", "Upgrade", "Host "]
    )
    async def test_headers_that_move_or_reframe_a_request_are_refused(self, name: str) -> None:  # F45
        async with guarded(dialler=RecordingDialler()) as client:
            with pytest.raises(OutboundRefused, match="only the client sets"):
                await client.request("GET", "http://partner.example/", headers={name: "x"}, timeout_s=LONG)

    @pytest.mark.parametrize(
        "header", [("X-A", "a\r\nX-B: b"), ("X-A", "a\nb"), ("X-A\r\nX-B", "b"), ("X-A", "é"), ("X A", "a")]
    )
    async def test_a_header_that_is_not_one_header_fails_unsent(self, header: tuple[str, str]) -> None:  # F45
        async with partner() as (server, client):
            with pytest.raises(OutboundFailed):
                await client.request("GET", "http://partner.example/", headers=dict([header]), timeout_s=LONG)
            assert server.requests == []

    async def test_cookies_are_not_kept(self) -> None:  # F45
        async with partner(ok(b"", b"Set-Cookie: session=1; Path=/")) as (server, client):
            for _ in range(2):
                await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert b"cookie" not in server.requests[1].lower()

    async def test_proxies_of_the_environment_are_not_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # F45
        async with serving(ok(b"proxied")) as proxy, serving(ok(b"direct")) as server:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            async with guarded(dialler=RecordingDialler({PUBLIC: server.port})) as client:
                reply = await client.request("GET", "http://partner.example/", timeout_s=LONG)
            assert reply.body == b"direct"
            assert proxy.connections == 0

    @pytest.mark.parametrize("status", [b"201 C", b"204 N", b"404 N", b"500 E"])
    async def test_any_status_of_the_server_is_a_reply(self, status: bytes) -> None:  # F45
        async with partner(ok(b"", status=status)) as (_, client):
            reply = await post_json(client, "http://partner.example/", None, timeout_s=LONG)
            assert reply == OutboundReply(int(status[:3]), b"")

    async def test_a_post_without_a_body_says_so_and_a_get_says_nothing(self) -> None:  # F45
        async with partner() as (server, client):
            for method in ("POST", "GET"):
                await client.request(method, "http://partner.example/", timeout_s=LONG)
            assert b"content-length: 0\r\n" in server.requests[0]
            assert b"content-length" not in server.requests[1].lower()


def trusting_the_partner() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(PARTNER_PEM))


class TestTls:
    """Every name leads to one address, and the certificate there is that of partner.example."""

    def server_tls(self, asked: list[str | None]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PARTNER_PEM)
        context.sni_callback = lambda _socket, name, _context: asked.append(name)
        return context

    async def test_server_name_and_certificate_stay_with_the_name(self) -> None:  # F45
        asked: list[str | None] = []
        async with serving(tls=self.server_tls(asked)) as server:
            dialler = RecordingDialler({PUBLIC: server.port})
            async with guarded(dialler=dialler, tls=trusting_the_partner()) as client:
                reply = await client.request("GET", "https://partner.example/", timeout_s=LONG)
            assert reply.status == 200
            assert asked == ["partner.example"]
            assert dialler.dialled == [(PUBLIC, 443)]

    async def test_a_connection_verified_for_one_name_serves_no_other(self) -> None:  # F45
        asked: list[str | None] = []
        async with serving(tls=self.server_tls(asked)) as server:
            dialler = RecordingDialler({PUBLIC: server.port})
            async with guarded(dialler=dialler, tls=trusting_the_partner()) as client:
                await client.request("GET", "https://partner.example/", timeout_s=LONG)
                with pytest.raises(OutboundFailed):
                    await client.request("GET", "https://other.example/", timeout_s=LONG)
            assert asked == ["partner.example", "other.example"]
            assert len(server.requests) == 1

    async def test_the_certificates_are_read_once_for_all_connections(self, tmp_path: Path) -> None:  # F45
        """Reading them holds the process for 20 ms: each connection did."""
        authorities = tmp_path / "authorities.pem"
        authorities.write_bytes(PARTNER_PEM.read_bytes())
        with trusting(authorities):
            for _ in range(2):
                async with partner(tls=self.server_tls([])) as (_server, client):
                    reply = await client.request("GET", "https://partner.example/", timeout_s=LONG)
                    assert reply.status == 200
                authorities.unlink(missing_ok=True)

    async def test_without_certificates_plain_http_is_sent_all_the_same(self, tmp_path: Path) -> None:  # F45
        with trusting(tmp_path / "nothing.pem"), capture_logs() as logs:
            async with partner() as (_server, client):
                reply = await client.request("GET", "http://partner.example/", timeout_s=LONG)
                assert reply.status == 200
            async with partner(tls=self.server_tls([])) as (server, client):
                with pytest.raises(OutboundFailed):
                    await client.request("GET", "https://partner.example/", timeout_s=LONG)
                assert server.requests == []
        assert [(line["event"], line["setting"]) for line in logs] == [
            ("certificates_unreadable", "SSL_CERT_FILE")
        ]

    async def test_a_certificate_of_an_unknown_authority_fails(self) -> None:  # F45
        async with partner(tls=self.server_tls([])) as (server, client):
            with pytest.raises(OutboundFailed):
                await client.request("GET", "https://partner.example/", timeout_s=LONG)
            assert server.requests == []
