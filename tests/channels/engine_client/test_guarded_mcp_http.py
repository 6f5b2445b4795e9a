"""Where the HTTP client for a flow's MCP servers connects to (F45)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx2
import pytest
from mcp_types import CallToolResult, TextContent

from adapters.models.tools import MOST_RESULT_CHARS, shortened
from adapters.outbound.policy import AllowList
from channels.engine_client.mcp_tools import GuardedTransport, model_answer
from tests.api.harness import clinic, open_scene
from tests.api.test_mcp_server import listening_socket, served
from tests.timing import takes_less_than

pytestmark = pytest.mark.anyio


@dataclass
class Names:
    """Answers lookups in order, the last answer again and again."""

    answers: Sequence[Sequence[str]]
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        addresses = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if not addresses:
            raise OSError("no such name")
        return addresses


async def fetched(names: Names, url: str, allow: str = "") -> httpx2.Response:
    transport = GuardedTransport(AllowList.parse(allow), names)
    async with httpx2.AsyncClient(transport=transport, trust_env=False) as http:
        return await http.get(url)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::1"], ["169.254.169.254"], []]
)
async def test_a_name_that_leads_inside_or_nowhere_is_not_connected_to(addresses: list[str]) -> None:
    names = Names([addresses])
    with pytest.raises(httpx2.ConnectError):
        await fetched(names, "http://mcp.example.com:1/mcp")
    assert names.asked == [("mcp.example.com", 1)]


def test_a_way_to_a_server_is_opened_without_reading_all_certificates_again() -> None:  # V2, C15
    """Each call and chat has its own: reading them held the process for 40 ms each time."""
    assert takes_less_than(2, lambda: [GuardedTransport(AllowList()) for _ in range(100)])


async def test_an_allowed_name_is_looked_up_once_and_its_next_address_tried() -> None:
    listening = listening_socket()
    port = listening.getsockname()[1]
    names = Names([["::1", "127.0.0.1"], ["203.0.113.1"]])
    async with open_scene(clinic()) as scene, served(scene.app, listening):
        reply = await fetched(names, f"http://MCP.example.com:{port}/health/live", "mcp.example.com")
    assert reply.status_code == 200
    assert names.asked == [("mcp.example.com", port)]


async def answering(body: bytes, *headers: bytes) -> httpx2.Response:
    """What comes of a server's answer with this body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"\r\n".join((b"HTTP/1.1 200 OK", b"Connection: close", *headers, b"", b""))
        with contextlib.suppress(ConnectionError):
            writer.write(head + body)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await fetched(Names([["127.0.0.1"]]), f"http://mcp.example.com:{port}/", "mcp.example.com")


async def test_an_answer_of_too_many_values_is_broken_off() -> None:
    few, many = (b"[" + b"{}," * number + b"1]" for number in (40_000, 60_000))
    assert (await answering(few)).content == few
    with pytest.raises(httpx2.ReadError, match="more than 100000 values"):
        await answering(many)


async def test_a_packed_answer_is_not_unpacked() -> None:
    with pytest.raises(httpx2.ReadError, match="packed"):
        await answering(gzip.compress(b" " * 10_000_000), b"Content-Encoding: gzip")


class TestAnswers:
    def test_the_text_is_for_the_model_and_cut_where_it_is_endless(self) -> None:
        parts = [TextContent(text="one"), TextContent(text="x" * MOST_RESULT_CHARS)]
        answer = shortened(model_answer(CallToolResult(content=parts, structured_content={"a": 1})))
        assert isinstance(answer, str)
        assert answer.startswith("one\nx")
        shown, _, told = answer.rpartition("…")
        assert (len(shown), told) == (MOST_RESULT_CHARS, " (cut: the first 50,000 of 50,004 characters)")

    @pytest.mark.parametrize("length", [1, MOST_RESULT_CHARS - 11, MOST_RESULT_CHARS - 10, 1_000_000])
    def test_data_are_cut_as_their_text(self, length: int) -> None:
        data = model_answer(CallToolResult(content=[], structured_content={"long": "x" * length}))
        whole = f'{{"long":"{"x" * length}"}}'
        cut = f"{whole[:MOST_RESULT_CHARS]}… (cut: the first 50,000 of {len(whole):,} characters)"
        assert shortened(data) == (data if len(whole) <= MOST_RESULT_CHARS else cut)

    def test_without_text_the_data_is(self) -> None:
        assert model_answer(CallToolResult(content=[], structured_content={"a": 1})) == {"a": 1}
        assert model_answer(CallToolResult(content=[])) == ""

    def test_a_failure_without_words_is_still_a_failure(self) -> None:
        assert model_answer(CallToolResult(content=[], is_error=True)) == {
            "error": "the tool failed without saying why"
        }
