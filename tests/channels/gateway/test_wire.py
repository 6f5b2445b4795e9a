"""Server-sent events by the book, JSON as it came, errors of several vendors, and whole answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from channels.gateway import wire
from channels.gateway.answering import Completeness
from channels.gateway.ollama_answers import are_vectors, embeddings_of
from channels.gateway.wire import (
    EventReader,
    Stretches,
    UpstreamFailed,
    cache_key,
    frame,
    parsed_part,
    read_json,
    read_request,
    written,
)
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.gateway_world import chunk, completion, gateway


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data\n\n", [("", b"")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data: a\ndata:\n\n", [("", b"a\n")]),
        (b"event: error\ndata: a\n\n", [("error", b"a")]),
        (b"id: 7\nretry: 9\ndata: a\n\n", [("", b"a")]),
        (b": comment\ndata: a\n\n", [("", b"a")]),
        (b": comment\n\n", []),
        (b"event: ping\n\n", []),
        (b"unknown: x\ndata: a\n\n", [("", b"a")]),
        (b"data: a\r\ndata: b\r\n\r\n", [("", b"a\nb")]),
        (b"data: a\rdata: b\r\r", [("", b"a\nb")]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data: \xef\xbb\xbf\n\n", [("", b"\xef\xbb\xbf")]),
        (b"data: a: b\n\n", [("", b"a: b")]),
        (b"data: a\n", []),  # the stream leaves it unfinished
        (b"data: a", []),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_events_are_read_by_the_book(
    sent: bytes, events: Sequence[tuple[str, bytes]], size: int
) -> None:  # W9
    reader, got = EventReader(), list[tuple[str, bytes]]()
    for at in range(0, len(sent), size):
        got += [(event.name, event.data) for event in reader.feed(sent[at : at + size])]
    assert got == events


def test_an_event_in_tiny_pieces_takes_no_longer_than_whole() -> None:  # W9
    reader, began = EventReader(), time.process_time()
    for piece in (b"data: ", *[b"x" * 50] * 40_000):
        assert list(reader.feed(piece)) == []
    assert [len(event.data) for event in reader.feed(b"\n\n")] == [2_000_000]
    assert time.process_time() - began < 2


def test_stretches_are_the_same_however_they_are_cut() -> None:  # W9
    text = b"a--bc--d-e--f"
    for size in range(1, 14):
        pieces, lines = Stretches(b"--"), list[bytes]()
        for at in range(0, len(text), size):
            lines += pieces.feed(text[at : at + size])
        assert (lines, pieces.rest) == ([b"a", b"bc", b"d-e"], b"f")


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:  # W9
    monkeypatch.setattr(wire, "MOST_EVENT_BYTES", 100)
    reader = EventReader()
    assert list(reader.feed(b"data: " + b"x" * 94)) == []
    with pytest.raises(ValueError, match="too long"):
        list(reader.feed(b"x"))
    assert [event.data for event in EventReader().feed(frame(b"a\nb\n"))] == [b"a\nb\n"]


@pytest.mark.parametrize(("digits", "is_read"), [(399, True), (400, True), (401, False), (4_000, False)])
def test_an_integer_has_an_end_as_a_float_has(digits: int, is_read: bool) -> None:  # W9
    number = "7" * digits
    for text in (number, number.encode()):
        if is_read:
            assert read_json(text) == int(text)
        else:
            with pytest.raises(ValueError, match="out of range"):
                read_json(text)
    assert read_json(f'["{number}", 12]') == [number, 12]  # a text may be as long as it likes


def test_a_number_of_many_signs_is_not_kept() -> None:  # W7
    for number in (b"9" * 101, b"0." + b"1" * 101):
        request = read_request(b'{"model":"m","messages":[{}],"x":%s}' % number, needs="messages")
        with pytest.raises(ValueError, match="too long to be compared"):
            cache_key(request, "t", "m")


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"-Infinity", b"1e999", b"[1,]", b"{'a': 1}", b"\xff", b"[" * 100_000, b'"\t"', b""],
)
def test_what_is_no_json_is_none(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize(
    "text", [b'"\\ud800"', b"12345678901234567890123", b"-0.0", b'{"a":{"":[null,true]}}']
)
def test_json_is_written_as_it_was_read(text: bytes) -> None:  # W6
    assert written(read_json(text)) == text
    with pytest.raises(ValueError, match="no object"):
        parsed_part(b"[1]")


def test_many_embeddings_are_soon_translated() -> None:  # W6
    """Four thousand texts are four million numbers."""
    request = read_request(b'{"model": "m", "input": ["a"]}', needs="input")
    reply = {"embeddings": [[0.123456789 * at for at in range(1_024)]] * 4_000}
    began = time.process_time()
    assert are_vectors(reply["embeddings"])
    assert len(embeddings_of(request, reply).data) > 20_000_000
    assert time.process_time() - began < 1.5


def test_whether_a_client_wants_the_usage() -> None:  # W9
    for options, wants in ((b"null", False), (b"{}", False), (b"[]", False), (b'{"include_usage":1}', False)):
        raw = b'{"model":"m","messages":[{}],"stream_options":%b}' % options
        assert read_request(raw, needs="messages").wants_usage is wants
    asked = b'{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}'
    assert read_request(asked, needs="messages").wants_usage


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"error": {"message": "m", "code": "c"}}', 400, "m"),
        (b'{"error": "m"}', 404, "m"),
        (b'[{"error": {"message": "m", "status": "NOT_FOUND"}}]', 404, "m"),
        (b'{"object": "error", "message": "m", "code": 40001}', 400, "m"),
        (b"plain text", 429, "plain text"),
        (b"", 422, "status 422"),
        (b"[]", 422, "status 422"),
        (b"<html>" + b"x" * 5000, 400, "<html>" + "x" * 994),
    ],
)
def test_the_error_of_any_vendor_has_a_message(body: bytes, status: int, message: str) -> None:
    failed = UpstreamFailed.answered("b", status, body, "3")
    assert (failed.status, failed.error["message"], failed.headers) == (status, message, {"Retry-After": "3"})
    assert (failed.passing, failed.broken) == (status == 429, False)


CALL: Mapping[str, Any] = {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("parts", "whole", "calls"),
    [
        ([completion()], True, False),
        ([completion(finish="length")], False, False),
        ([completion(finish="content_filter")], False, False),
        ([completion(finish=None)], False, False),
        ([{}], False, False),
        ([{"choices": None}], False, False),
        ([chunk({"content": "a"}), chunk({}, "stop")], True, False),
        ([chunk({}, "stop"), chunk({"content": "late"})], True, False),
        ([chunk({"content": "a"}, "length"), chunk({})], False, False),
        ([chunk(CALL), chunk({}, "tool_calls")], True, True),
        ([chunk({"function_call": {"name": "f"}}, "function_call")], True, True),
    ],
)
def test_what_makes_an_answer_whole(parts: Sequence[Any], whole: bool, calls: bool) -> None:  # W7
    seen = Completeness()
    for part in parts:
        seen.see(part)
    assert (seen.whole, seen.calls_tools) == (whole, calls)


@pytest.mark.anyio
async def test_who_leaves_cancels_ollama_too(tmp_path: Path) -> None:  # W9
    line = orjson.dumps({"message": {"role": "assistant", "content": "x"}, "done": False}) + b"\n"
    async with (
        ExactServer(lambda _: Reply([line] * 400, pause_s=0.01)).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        asking = asyncio.ensure_future(world.streamed())
        while not server.requests:
            await asyncio.sleep(0.005)
        assert server.left == []
        asking.cancel()
        async with asyncio.timeout(30):
            while not server.left:
                await asyncio.sleep(0.005)
