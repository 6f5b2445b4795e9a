"""A needle in every input: what is left of it after an erasure, and where a sensitive value is ever shown.

A real `serve` with its worker on a real Redis: every key of it, the database (the bytes of SQLite's files, or
every record of MongoDB), logs, traces and what the webhook was sent are searched (journal: must be shown 5).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from pymongo import MongoClient
from redis import Redis

from tests.adapters.outbound.local_server import LocalServer, ok, serving
from tests.api.harness import entry, multi_contact, needs, over_many_contacts
from tests.flow_engine.documents.samples import JsonObject, minimal_version
from tests.mongo_fixture import WireServer, start_wire_server
from tests.ports import free_port
from tests.redis_fixture import StartRedis, end, spawn
from tests.service_process import READY_WITHIN_S, ROOT

pytestmark = pytest.mark.anyio

NEEDLE = "ne3dle"
SECRET = "s3cret"
CARD = "4111 1111 1111 1111"
FORBIDDEN = "http://127.0.0.1:9/close"
CALL = {"contactId": "call-1", "conversationId": "conv-1"}


def flow() -> JsonObject:
    """Over several contacts, with every kind of task; the closure handler is forbidden, so nothing closes."""
    document = over_many_contacts()
    closure = multi_contact(customHandler=FORBIDDEN)
    for part in (document, *document["tasks"]):
        part["closureConfig"] = closure
    return document


def sensitive_flow() -> JsonObject:
    document = flow()
    variables = minimal_version()["variables"]
    kinds = {"var_string": "identity", "var_custom": "health", "var_phone": "card"}
    document["variables"] = [{**each, "sensitive": kinds.get(each["_id"], False)} for each in variables]
    parameter = {
        "parameterName": "code",
        "assignmentStrategy": "variable",
        "assignmentValue": "var_string",
    }
    tools = [{"toolName": "find", "toolParameters": [parameter]}]
    document["mcpServers"] = [
        {"name": "desk", "url": "https://desk.example.com", "includedTools": [{"toolName": "find"}]}
    ]
    document["tasks"][1]["mcpToolSelection"] = [{"mcpServerName": "desk", "selectedTools": tools}]
    document["tasks"][1]["transitionParameters"] = needs("var_string")
    return {**document, "_id": "version-2"}


class Service:
    """A served process with what it has written and sent."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        redis: Redis,
        folder: Path,
        hook: LocalServer,
        mongo: MongoClient[Mapping[str, Any]] | None,
    ) -> None:
        self.http = http
        self.mongo = mongo
        self.redis = redis
        self.folder = folder
        self.hook = hook

    async def publish(self, document: JsonObject) -> None:
        flow = {"name": f"Clinic {document['_id']}", "campaignId": "campaign-1", "updatedBy": "ada"}
        flow_id = (await self.sent("POST", "/flows", flow)).json()["id"]
        own = {key: value for key, value in document.items() if key != "conversationalFlowId"}
        await self.sent("POST", f"/flows/{flow_id}/versions", own)

    async def sent(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        reply = await self.http.request(
            method,
            f"/v1{path}",
            content=content,
            headers={n.replace("_", "-"): v for n, v in headers.items()},
        )
        assert reply.status_code in (200, 201), reply.text
        return reply

    async def contact(self, version: str, **changes: Any) -> httpx.Response:
        body = {**CALL, "conversationalFlowVersionId": version, "channel": "phone", **changes}
        return await self.sent(
            "POST", "/handle-new-contact", body, idempotency_key=f"{NEEDLE} {body['contactId']}"
        )

    async def say(self, number: int, body: object, **changes: Any) -> httpx.Response:
        said = {"messageId": f"m-{number}", "ts": "2026-01-15T09:31:00Z", "type": "message", "src": "user"}
        return await self.sent("POST", "/handle-utterance", {**CALL, **said, "body": body, **changes})

    def keys_with(self, text: str) -> set[str]:
        """The names of keys whose name or content has that text."""
        return {name for name in self._names() if text in f"{name} {self._content(name)}"}

    def _names(self) -> list[str]:
        return [name.decode() for name in self.redis.scan_iter("*", count=1_000)]

    def _content(self, name: str) -> str:
        match self.redis.type(name):
            case b"string":
                return repr(self.redis.get(name))
            case b"hash":
                return repr(self.redis.hgetall(name))
            case b"list":
                return repr(self.redis.lrange(name, 0, -1))
            case b"set":
                return repr(self.redis.smembers(name))
            case b"zset":
                return repr(self.redis.zrange(name, 0, -1))
            case b"stream":
                return repr(self.redis.xrange(name))
            case b"none":
                return ""
            case kind:
                raise AssertionError(f"{name} is a {kind!r}")

    def records_with(self, text: str) -> list[str]:
        """The collections of MongoDB with a record that has it; none where records are in files."""
        if self.mongo is None:
            return []
        names = self.mongo.list_database_names()
        found = [
            (self.mongo[name], each) for name in names for each in self.mongo[name].list_collection_names()
        ]
        return [each for database, each in found if text in repr(list(database[each].find()))]

    def files_with(self, text: str) -> list[str]:
        """Files whose bytes have it: the database with its log, what the process printed."""
        return [
            str(path.relative_to(self.folder))
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and text.encode() in path.read_bytes()
        ]


@asynccontextmanager
async def served(
    start_redis: StartRedis, folder: Path, mongo: WireServer | None = None
) -> AsyncIterator[Service]:
    server, port = start_redis(), free_port()
    async with serving(ok()) as hook:
        (folder / "data").mkdir()
        environment = {
            "FLOW_ENGINE_DATA_DIR": str(folder / "data"),
            "FLOW_ENGINE_REDIS_URL": server.url,
            "FLOW_ENGINE_WORKER_IN_SERVE": "true",
            "FLOW_ENGINE_TRACES": "console",
            "FLOW_ENGINE_SAMPLES": "false",
            "FLOW_ENGINE_LOG_LEVEL": "debug",
            "FLOW_ENGINE_OUTBOUND_ALLOW": f"127.0.0.1:{hook.port}",
            "FLOW_ENGINE_WEBHOOK_URL": f"http://127.0.0.1:{hook.port}/",
            "FLOW_ENGINE_WEBHOOK_SECRET": "sixteen characters",
        }
        records: MongoClient[Mapping[str, Any]] | None = None
        if mongo is not None:
            records = MongoClient(mongo.url)
            environment["FLOW_ENGINE_MONGO_URL"] = f"{mongo.url}/engine"
        command = (sys.executable, "-m", "service.cli", "serve", "--port", str(port))
        process = spawn(command, folder / "printed", cwd=ROOT, env={**os.environ, **environment})
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                await until_ready(http, process)
                with server.client() as redis:
                    yield Service(http, redis, folder, hook, records)
        finally:
            end(process, signal.SIGINT)
            if records is not None:
                records.close()


async def until_ready(http: httpx.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if (await http.get("/health/ready")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError("the service did not become ready")


async def within(seconds: float, holds: Any) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.1)


async def lived(service: Service) -> None:
    """A needle in everything that can be sent of a conversation, over two contacts and a fork."""
    caller = {"callerId": f"caller {NEEDLE}", "deep": {NEEDLE: [NEEDLE]}}
    await service.contact("version-1", contact=caller, tenant={"timezone": "UTC", "note": NEEDLE})
    described = [{"name": NEEDLE, "value": NEEDLE}]
    written = [
        entry("var_string", NEEDLE, updatedBy=f"tool {NEEDLE}"),
        entry("var_boolean", True),
        entry("var_custom", {NEEDLE: NEEDLE}, descriptionForLLM=described),
    ]
    await service.sent("PUT", "/memory/conv-1", written, idempotency_key=f"{NEEDLE} write")
    await service.say(1, f"My name is {NEEDLE}", srcId=NEEDLE, srcName=NEEDLE)
    await service.say(2, f"tool found {NEEDLE}", type="tool", src="bot")
    await service.say(3, {"subtype": "conversation_erased", "text": NEEDLE}, type="system", src="bot")
    ask = {**CALL, "task": f"no such {NEEDLE}", "reason": f"because {NEEDLE}"}
    await service.sent("POST", "/change-task", ask, user_agent=NEEDLE, x_request_id=NEEDLE)
    await service.sent("POST", "/change-task", {**CALL, "task": "visit", "reason": f"because {NEEDLE}"})
    await service.sent("POST", "/change-task", {**CALL, "task": "reception"})
    await service.sent("POST", "/change-task", {**CALL, "task": "operator"})
    human = {**CALL, "outcome": "failed", "reason": f"human {NEEDLE}"}
    await service.sent("POST", "/handle-human-task", human)
    await service.sent("POST", "/conversations/conv-1/fork", {"atRevision": 5, "conversationId": "fork-1"})
    await service.sent("POST", "/handle-end-contact", {**CALL, "reason": f"bye {NEEDLE}"})
    await service.sent(
        "POST",
        "/handle-new-contact",
        {**CALL, "contactId": "call-2", "conversationalFlowVersionId": "version-1", "channel": "phone"},
    )


@pytest.fixture(params=["sqlite", "mongodb wire"])
def mongo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WireServer | None]:
    """The database of a service, None for SQLite in its data directory."""
    if request.param == "sqlite":
        yield None
        return
    server = start_wire_server(tmp_path_factory.mktemp("mongo"))
    yield server
    server.stop()


async def test_after_an_erasure_no_needle_is_left(
    start_redis: StartRedis, tmp_path: Path, mongo: WireServer | None
) -> None:
    async with served(start_redis, tmp_path, mongo) as service:  # journal: must be shown 5
        await service.publish(flow())
        assert mongo is None or service.records_with("Clinic version-1"), "MongoDB is what is searched"
        await lived(service)
        stream = "{flow-engine}:events"
        await within(60, lambda: stream in service.keys_with(NEEDLE))
        before = service.keys_with(NEEDLE)
        own = {name.rpartition("}::")[2].partition("::")[0] for name in before if ":conv-1}" in name}
        assert own >= {"snapshot", "tenant", "vars", "utterances", "journal", "previousContacts", "reply"}
        assert any(":fork-1}" in name for name in before)

        receipt = await service.sent("DELETE", "/conversations/conv-1", idempotency_key="erase")
        assert receipt.json().keys() == {"conversationId", "erasedAt"}
        await within(10, lambda: not service.keys_with(NEEDLE))
        await within(60, lambda: len(service.redis.xrange(stream)) == 2)
        word = b'"body":{"subtype":"conversation_erased"},"type":"system","src":"bot"}'
        await within(60, lambda: sum(sent.endswith(word) for sent in service.hook.requests) >= 2)
        await asyncio.sleep(0.5)  # whoever was at work on it has gone on
        assert service.keys_with(NEEDLE) == set()
        assert service.records_with(NEEDLE) == []
        left = service.redis.xrange(stream)
        assert {fields[b"conversation"] for _, fields in left} <= {b"conv-1", b"fork-1"}
        bodies = [orjson.loads(fields[b"event"])["body"] for _, fields in left]
        assert bodies == [{"subtype": "conversation_erased"}] * 2
        for gone in ("conv-1", "fork-1"):
            for path in ("", "/journal", "/at/1", "/recording"):
                reply = await service.http.get(f"/v1/conversations/{gone}{path}")
                assert reply.status_code == 404, path
    assert (tmp_path / "printed").read_bytes().count(b"conv-1") > 10, "logs and traces were looked at"
    assert service.files_with(NEEDLE) == []


async def test_a_sensitive_value_is_shown_to_tools_and_to_nobody_else(
    start_redis: StartRedis, tmp_path: Path
) -> None:  # journal: sensitive
    async with served(start_redis, tmp_path) as service:
        await service.publish(sensitive_flow())
        await service.contact("version-2", contact={"callerId": "+390612345678"})
        described = [{"name": "note", "value": f"note {SECRET}"}]
        written = [
            entry("var_string", f"code {SECRET}"),
            entry("var_custom", {"note": f"note {SECRET}"}, descriptionForLLM=described),
            entry("var_phone", "+393471234567"),
        ]
        await service.sent("PUT", "/memory/conv-1", written)
        await service.say(1, f"The code {SECRET}, the card {CARD}, call 347 123 4567")
        shown = await service.sent(
            "POST", "/change-task", {**CALL, "task": "visit", "reason": f"code {SECRET}"}
        )
        await service.say(2, f"Code {SECRET}?", src="bot")
        prompt = await service.sent("GET", "/prompt/conv-1")
        ended = await service.sent("POST", "/handle-end-contact", {**CALL, "reason": f"the code {SECRET}"})
        again = await service.contact("version-2", contactId="call-2", contact={"id": f"code {SECRET}"})
        memory = (await service.sent("GET", "/memory/conv-1")).text
        assert f"code {SECRET}" in memory
        assert f"code {SECRET}" in shown.text
        told = shown.json()
        assert told.pop("mcpTools")[-1]["tools"][0]["parameters"][0]["value"] == f"code {SECRET}"
        texts = [orjson.dumps(told).decode(), prompt.text, ended.text]
        texts.append(orjson.dumps({**again.json(), "mcpTools": None}).decode())
        for path in ("", "/journal", *(f"/at/{seq}" for seq in range(1, 8)), "/recording"):
            texts.append((await service.sent("GET", f"/conversations/conv-1{path}")).text)
        count = len([text for text in texts if "hidden" in text])
        assert count > 8, "masks are there"
        await within(60, lambda: any(b'"contact_ended"' in request for request in service.hook.requests))
        texts += [request.decode() for request in service.hook.requests]
        texts.append(repr(service.redis.xrange("{flow-engine}:events")))
        for text in texts:
            for needle in (f"code {SECRET}", f"note {SECRET}", "4111 1111", "3471234567", "347 123 4567"):
                assert needle not in text, (needle, text)
        assert service.keys_with("4111 1111") == set(), "card numbers are masked before anything is kept"
    # Longer than what stands by chance in the random ids of a log.
    for needle in (SECRET, "4111 1111", "41111111", "347 123", "3471234567"):
        assert service.files_with(needle) == []
