"""What the table of hot paths finds is answered as the router would: every byte (A4, F36)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import LOCAL
from api.endpoints import Call
from tests.api.harness import CALL, clinic, entry, keyring_of, open_scene

pytestmark = pytest.mark.anyio

KEYS = orjson.dumps(
    {
        "keys": [
            {"key": "designer-key", "tenant": "default", "scopes": ["designer"]},
            {"key": "agent-key", "tenant": "default", "scopes": ["agent"]},
            {"key": "tools-key", "tenant": "default", "scopes": ["tools"]},
            {"key": "other-key", "tenant": "another", "scopes": ["agent", "tools"]},
        ]
    }
)
NEW = {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone"}
SAID = {
    **CALL,
    "messageId": "m-1",
    "ts": "2026-01-15T09:31:00Z",
    "type": "message",
    "src": "user",
    "body": "hi",
}
DEEP = b'{"contactId":' + b"[" * 5_000 + b"]" * 5_000 + b"}"


@dataclass(frozen=True)
class Sent:
    """A request as it arrives: the path is decoded where the scope is made, as a server does it."""

    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("authorization", "Bearer agent-key"),)
    pieces: int = 1


def as_json(body: object) -> bytes:
    return orjson.dumps(body)


def usual() -> Iterator[Sent]:
    """A conversation's life, each call with and without the version prefix, and again under its key."""
    for prefix in ("/v1", ""):
        for key in ((), (("idempotency-key", f"k{prefix}"),)):
            headers = (("authorization", "Bearer agent-key"), *key)
            for method, path, body in (
                ("POST", "/handle-new-contact", NEW),
                ("GET", "/prompt/conv-1", None),
                ("POST", "/prompt/conv-1?format=toon&wait_ms=0", None),
                ("PUT", "/memory/conv-1", [entry("size", "S"), entry("var_string", "Ada|\n\u2028")]),
                ("GET", "/memory/conv-1", None),
                ("POST", "/handle-utterance", SAID),
                ("POST", "/change-task", {**CALL, "task": "visit"}),
                ("POST", "/change-task", {**CALL, "task": "nowhere"}),
                ("POST", "/handle-human-task", {**CALL, "outcome": "connected"}),
                ("GET", "/prompt/conv-1", None),
            ):
                sent = b"" if body is None else as_json(body)
                yield Sent(method, prefix + path, sent, headers)
                if key:
                    yield Sent(method, prefix + path, sent, headers)
                    yield Sent(method, prefix + path, sent[:-1] + b" ]", headers)
    yield Sent("POST", "/v1/handle-end-contact", as_json(CALL))
    yield Sent("GET", "/v1/prompt/conv-1")


def malformed() -> Iterator[Sent]:
    bodies = (
        *(b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b'{"a":NaN}', b'"\\ud800"', DEEP, b"[" * 2_000),
        *(as_json({**NEW, "channel": "fax", "languge": "it"}), as_json({**NEW, "contactId": ""})),
        *(
            as_json([entry("nowhere", 1)]),
            as_json([entry("size", "XXL")]),
            as_json([entry("size", "S")] * 1_001),
        ),
        *(b" " * 70_000, b"[" + b" " * 1_200_001 + b"]"),
    )
    for body in bodies:
        for pieces in (1, 3):
            yield Sent("POST", "/v1/handle-new-contact", body, pieces=pieces)
            yield Sent("PUT", "/v1/memory/conv-1", body, pieces=pieces)
        yield Sent("POST", "/v1/change-task", body)
        yield Sent("POST", "/v1/handle-utterance", body)
    for query in ("waitms=1", "wait_ms=1e3", "format=", "format=xml&wait_ms=-1", "%ff=%fe", "a&b=&=c", "+"):
        yield Sent("GET", f"/v1/prompt/conv-1?{query}")
        yield Sent("PUT", f"/v1/memory/conv-1?{query}", as_json([entry("size", "S")]))
    for key in ("", "k" * 256, "\xe9", " "):
        headers = (("authorization", "Bearer agent-key"), ("idempotency-key", key))
        yield Sent("POST", "/v1/change-task", as_json({**CALL, "task": "visit"}), headers)
    for tag in ("*", '"x"', 'W/"x", *', ""):
        headers = (("authorization", "Bearer agent-key"), ("if-none-match", tag))
        yield Sent("GET", "/v1/prompt/conv-1", headers=headers)


def hostile() -> Iterator[Sent]:
    for credentials in (
        "",
        "Bearer",
        "Bearer  ",
        "Basic x",
        "bearer agent-key",
        "Bearer \xff",
        "Bearer tools-key",
    ):
        yield Sent("GET", "/v1/prompt/conv-1", headers=(("authorization", credentials),))
        yield Sent("GET", "/v1/memory/conv-1", headers=(("authorization", credentials),))
    yield Sent("GET", "/v1/prompt/conv-1", headers=())
    yield Sent("GET", "/v1/memory/conv-1", headers=(("authorization", "Bearer other-key"),))
    twice = (("authorization", "Bearer agent-key"), ("authorization", "Bearer other-key"))
    yield Sent("GET", "/v1/memory/conv-1", headers=twice)
    for odd in (
        "%2F",
        "a%2Fb",
        "%00",
        "%0A",
        "%3F",
        "%23x",
        "..%2F..",
        "%F0%9F%8F%A5",
        "%FF",
        "a/b",
        "//",
        "x" * 600,
    ):
        for method, path in (("GET", "/v1/prompt/"), ("GET", "/memory/"), ("PUT", "/v1/memory/")):
            body = as_json([entry("size", "S")]) if method == "PUT" else b""
            keyed = (("authorization", "Bearer agent-key"), ("idempotency-key", "odd"))
            yield Sent(method, path + odd, body, keyed)
    for method in ("DELETE", "PATCH", "OPTIONS", "HEAD", "get", "BREW"):
        yield Sent(method, "/v1/prompt/conv-1")
    for path in (
        "/v1/prompt/",
        "/v1//prompt/c",
        "/V1/prompt/conv-1",
        "/v1/handle-new-contact/",
        "/v1/memory",
    ):
        yield Sent("GET", path)


async def reply_of(app: ASGIApp, sent: Sent) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    path, _, query = sent.target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8080),
        "client": ("127.0.0.1", 50_000),
        "root_path": "",
        "method": sent.method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), *((n.encode(), v.encode("latin-1")) for n, v in sent.headers)],
    }
    size = -(-len(sent.body) // sent.pieces) or 1
    parts = [sent.body[at : at + size] for at in range(0, len(sent.body), size)] or [b""]
    got: list[Message] = []

    async def receive() -> Message:
        body = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        got.append(message)

    await app(scope, receive, send)
    return got[0]["status"], got[0]["headers"], b"".join(part.get("body", b"") for part in got[1:])


def routed(app: FastAPI) -> ASGIApp:
    """The same application without its table."""

    async def by_the_router(scope: Scope, receive: Receive, send: Send) -> None:
        await FastAPI.__call__(app, scope, receive, send)

    return by_the_router


async def differences(one: ASGIApp, other: ASGIApp, corpus: Sequence[Sent]) -> list[tuple[Sent, Any, Any]]:
    """Two services in the same state get the same calls: where they answer differently."""
    found: list[tuple[Sent, Any, Any]] = []
    for sent in corpus:
        first, second = await reply_of(one, sent), await reply_of(other, sent)
        if first != second:
            found.append((sent, first, second))
    return found


@asynccontextmanager
async def two_services() -> AsyncIterator[tuple[FastAPI, FastAPI]]:
    keys = keyring_of(KEYS)
    async with open_scene(authenticator=keys) as one, open_scene(authenticator=keys) as other:
        for scene in (one, other):
            scene.http.headers["Authorization"] = "Bearer designer-key"
            await scene.publish(clinic())
        yield one.app, other.app


async def test_the_table_answers_every_request_as_the_router_does() -> None:  # A4, F36
    async with two_services() as (one, other):
        assert await differences(one, routed(other), [*usual(), *malformed(), *hostile()]) == []


async def test_the_usual_calls_need_no_router() -> None:
    async with two_services() as (one, other):
        one.router.routes.clear()
        assert await differences(one, routed(other), list(usual())) == []
        assert len(await differences(one, routed(other), [Sent("GET", "/health/live")])) == 1


async def test_one_reply_that_differs_is_found_out() -> None:  # negative control
    call = Sent("GET", "/v1/memory/conv-1")
    async with two_services() as (one, other):
        assert await differences(one, routed(other), [call]) == []
        for what in ("status", "headers", "body"):

            async def altered(scope: Scope, receive: Receive, send: Send, what: str = what) -> None:
                async def sends(message: Message) -> None:
                    changed = {"status": 201, "headers": message.get("headers", [])[::-1], "body": b"{}"}
                    await send({**message, what: changed[what]} if what in message else message)

                await one(scope, receive, sends)

            assert len(await differences(altered, routed(other), [call])) == 1, what


def test_a_request_is_known_again_by_the_route_the_query_and_the_body() -> None:  # F15
    async def receive() -> Message:
        raise NotImplementedError

    scope = {"method": "PUT", "path": "/v1/memory/conv #1?", "query_string": b"a=%20", "headers": []}
    expected = sha256(b"PUT /memory/conv #1??a=%20\n[]").hexdigest()
    assert Call(scope, receive, LOCAL, b"[]").fingerprint == expected
    assert Call({**scope, "path": "/memory/conv #1?"}, receive, LOCAL, b"[]").fingerprint == expected
    assert Call({**scope, "path": "/memory/conv #2?"}, receive, LOCAL, b"[]").fingerprint != expected
