"""Several tenants on one chat, whose key for the engine is of one of them. Engine and chat are real, and talk
over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from adapters.models.scripted import Says
from api.auth import Keyring
from memory.chat_in_process import InProcessChat
from tests.channels.chat.desk import ACCIDENT
from tests.channels.chat.harness import WEATHER, Client, running_chat
from tests.channels.chat.test_flow_agent import CLAIMS, tasks
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

ENGINES = "default"
"""The tenant of an engine without keys."""


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


def key(tenant: str) -> str:
    return f"{tenant}-key-0123456789"


def headers(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key(tenant)}"}


def ring(*tenants: str, engines: str | None = None) -> Keyring:
    """A key for each, and where the chat's own for the engine is another one, whose that is."""
    entries: list[dict[str, Any]] = [
        {"key": key(tenant), "tenant": tenant, "scopes": ["admin"]} for tenant in tenants
    ]
    if engines is not None:
        entries.append({"key": key("engine"), "tenant": engines, "scopes": []})
    return Keyring.parse(orjson.dumps({"keys": entries}))


async def talked_about(engine_url: str) -> bytes:
    """Everything that the engine lists."""
    async with httpx.AsyncClient(base_url=engine_url) as engine:
        listed = await engine.get("/v1/conversations?limit=100")
        assert listed.status_code == 200, listed.text
        return listed.content


def refusal(client: Client, message_id: str) -> str:
    assert tasks(client) == []
    return client.of(message_id, "error")[0]["content"]["code"]


@pytest.mark.parametrize("api_key", [key(ENGINES), key("engine"), "a key of the engine alone", None])
async def test_a_tenants_words_never_reach_the_flows_of_another(
    tmp_path: Path, engine_url: str, api_key: str | None
) -> None:  # F43
    keys = ring(ENGINES, "beta", engines=ENGINES)
    script = [Says("¿Cuál es su póliza?")]
    with capture_logs() as logs:
        async with running_chat(
            tmp_path, script, authenticator=keys, engine_url=engine_url, api_key=api_key
        ) as chat:
            before = await talked_about(engine_url)
            for tenant in ("beta", ENGINES):
                made = await chat.http.post("/v1/ai-agents", json=CLAIMS, headers=headers(tenant))
                assert made.status_code == 201, made.text
            async with chat.client(headers=headers("beta"), language="es") as client:
                assert (await client.say("m-1", ACCIDENT))["state"] == "refused"
                assert refusal(client, "m-1") == "flow_unavailable"
                assert await talked_about(engine_url) == before
                assert chat.model.requests == []
            async with chat.client(headers=headers(ENGINES), language="es") as client:
                final = await client.say("m-1", ACCIDENT)
                is_known = api_key in (key(ENGINES), key("engine"))
                assert final["state"] == ("done" if is_known else "refused")
                assert is_known or refusal(client, "m-1") == "flow_unavailable"
    told = [each for each in logs if each["event"] == "flows_of_one_tenant"]
    expected = [{"tenant": ENGINES if is_known else None, "others": 1 if is_known else 2}]
    kept = [{name: each[name] for name in ("tenant", "others")} for each in told]
    assert kept == (expected if api_key else [])


async def test_a_key_that_the_engine_refuses_is_the_operators_to_mend(tmp_path: Path) -> None:  # C15
    (tmp_path / "keys.json").write_bytes(
        orjson.dumps({"keys": [{"key": key("engine"), "tenant": ENGINES, "scopes": ["admin"]}]})
    )
    store, script = InProcessChat(), [Says("¿Cuál es su póliza?")]
    with running_service(tmp_path / "engine", FLOW_ENGINE_API_KEYS_FILE=str(tmp_path / "keys.json")) as url:
        shared: dict[str, Any] = {"shared": (store, store), "engine_url": url}
        async with running_chat(tmp_path, script, api_key=key("engine"), **shared) as chat:
            await chat.add(CLAIMS)
            async with chat.client(language="es") as client:
                assert (await client.say("m-1", ACCIDENT))["state"] == "done"
        async with running_chat(tmp_path, script, api_key="a key that was withdrawn", **shared) as chat:
            path = f"/v1/chat/sessions/{client.session}/human"
            answer = await chat.http.post(path, json={"text": "Hola"})
            assert (answer.status_code, answer.json()["code"]) == (500, "engine_refused")
            assert "www-authenticate" not in answer.headers


async def test_a_session_that_is_in_another_tenants_flow_already_asks_nothing_more_of_it(
    tmp_path: Path, engine_url: str
) -> None:  # F43
    store, script = InProcessChat(), [Says("¿Cuál es su póliza?"), Says("Sunny.")]
    shared: dict[str, Any] = {"shared": (store, store), "engine_url": engine_url}
    async with running_chat(tmp_path, script, authenticator=ring("beta"), **shared) as chat:
        chat.http.headers.update(headers("beta"))
        await chat.add(CLAIMS, WEATHER)
        sessions: list[str] = []
        for user in ("u1", "u2", "u3"):
            async with chat.client(user, headers=headers("beta"), language="es") as client:
                assert (await client.say("m-1", ACCIDENT))["state"] == "done"
                sessions.append(client.session)
    before = await talked_about(engine_url)
    both: dict[str, Any] = {"authenticator": ring(ENGINES, "beta"), "api_key": key(ENGINES), **shared}
    async with running_chat(tmp_path, script[1:], **both) as chat:
        chat.http.headers.update(headers("beta"))
        paths = [f"/v1/chat/sessions/{session}" for session in sessions]
        for body in ({"text": "Hola"}, {"outcome": "connected"}, {"outcome": "approved"}):
            answer = await chat.http.post(f"{paths[0]}/human", json=body)
            assert (answer.status_code, answer.json()["code"]) == (500, "engine_refused")
        assert (await chat.http.post(f"{paths[0]}/end")).status_code == 200
        async with chat.client("u2", headers=headers("beta"), session=sessions[1]) as client:
            assert (await client.say("m-2", "Mi póliza es 123"))["state"] == "refused"
            assert refusal(client, "m-2") == "flow_unavailable"
        async with chat.client("u3", headers=headers("beta"), session=sessions[2]) as client:
            final = await client.say("m-2", "What is the weather in Rome?")
            assert (final["agent"], client.text("m-2")) == ("weather_agent", "Sunny.")
        assert await talked_about(engine_url) == before


async def test_a_user_is_not_taken_over_by_one_whose_name_reads_alike(tmp_path: Path) -> None:  # C12, F43
    names = ring("acme", "acme:eu")
    async with (
        running_chat(tmp_path, authenticator=names) as chat,
        chat.client(user="eu:bob", headers=headers("acme")) as mine,
        chat.client(user="bob", headers=headers("acme:eu")),
        chat.client(user="bob", headers=headers("acme:eu")),  # of a higher number than mine
    ):
        assert (await mine.say("m-1", "hello"))["final"]
        assert [f["content"] for f in mine.frames if f["seq"] is None] == [mine.frames[0]["content"]]
