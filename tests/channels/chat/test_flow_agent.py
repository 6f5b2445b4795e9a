"""A flow of the engine as an agent, alone and among others: routed, clarified, refused, broken out of,
confirmed, denied. Engine and chat are real, and talk over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from adapters.models.fake_openai import FakeOpenAI
from adapters.models.scripted import CallsTools, Says, Stalls, Step
from channels import retries
from channels.chat import sessions
from flow_engine.ports.chat import LEASE_S
from flow_engine.ports.models import ToolCall
from memory.chat_in_process import InProcessChat
from tests.api.harness import clinic
from tests.channels.chat import toolbelt
from tests.channels.chat.desk import ACCIDENT, BELT, PERSON, SUNNY, desk_model, rows
from tests.channels.chat.harness import WEATHER, Chat, Client, running_chat
from tests.channels.chat.test_held_texts import Reached
from tests.channels.chat.test_replicas import Clock
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

CLAIMS: dict[str, Any] = {
    "name": "claims_agent",
    "description": "Registra siniestros del seguro tras un accidente o un robo.",
    "languages": ["es"],
    "examples": [ACCIDENT, "Quiero declarar un siniestro"],
    "flow": {"flow_id": "claim", "tag": "prod"},
}


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


def calls(name: str, **arguments: Any) -> CallsTools:
    return CallsTools([ToolCall("call-1", name, arguments)])


def tasks(client: Any) -> list[tuple[str, str, str | None]]:
    found = [
        f["content"] for f in client.frames if f["type"] == "state" and f["content"].get("event") == "task"
    ]
    return [(each["task"], each["task_type"], each["task_status"]) for each in found]


async def has_ended(engine: httpx.AsyncClient, content: dict[str, Any]) -> bool:
    """Whether the flow's contact is over: then no task can be asked for."""
    body = {
        "conversationId": content["conversation"],
        "contactId": content["contact"],
        "task": "no such task",
    }
    answer = await engine.post("/v1/change-task", json=body)
    assert answer.status_code in (200, 409), answer.text
    return answer.status_code == 409


async def test_a_flow_talks_through_the_engine_and_hands_over_to_a_person(
    tmp_path: Path, engine_url: str
) -> None:  # C15
    script: list[Step] = [
        Says("¿Cuál es su póliza?"),
        calls("change_task", task="perito", reason="Pide hablar con una persona."),
        Says("Le paso con un perito."),
        Says("¿En qué más puedo ayudarle?"),
    ]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS, WEATHER)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            final = await client.say("m-1", ACCIDENT)
            assert (final["state"], client.text("m-1")) == ("done", "¿Cuál es su póliza?")
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            assert (content["flow_id"], content["task"], content["task_type"]) == (
                "claim",
                "identificación",
                "AIO",
            )
            first = chat.model.requests[0]
            assert "buscar_poliza" in first.messages[0].content or "póliza" in first.messages[0].content
            assert first.messages[1].content == "/start"
            assert {"change_task", "ask_user", "refuse"} <= {spec.name for spec in first.tools}

            await client.say("m-2", "Quiero hablar con una persona")
            assert client.text("m-2") == "Le paso con un perito."
            assert tasks(client)[-1][:2] == ("perito", "HUM")
            journal = (await engine.get(f"/v1/conversations/{content['conversation']}/journal")).json()[
                "entries"
            ]
            changes = [each for each in journal if each["input"]["op"] == "change-task"]
            assert [each["rationale"] for each in changes] == ["Pide hablar con una persona."]

            path = f"/v1/chat/sessions/{client.session}/human"
            connected = await chat.http.post(path, json={"outcome": "connected", "name": "Pilar"})
            assert connected.status_code == 200, connected.text
            for text in ("Hola, soy Pilar.", " "):
                said = await chat.http.post(path, json={"text": text, "name": "Pilar"})
                assert said.status_code == 200
            words = await client.until(lambda f: f["type"] == "dialogue" and f.get("agent") == "Pilar")
            assert (words["content"], words["final"], words["state"]) == ("Hola, soy Pilar.", True, "done")

            asked = len(chat.model.requests)
            final = await client.say("m-3", "Gracias, Pilar")
            assert (final["state"], client.text("m-3")) == ("done", "")
            assert len(chat.model.requests) == asked

            await chat.http.post(path, json={"outcome": "completed"})
            await client.say("m-4", "Sigo aquí")
            assert client.text("m-4") == "¿En qué más puedo ayudarle?"
            told = [(each.role, each.content) for each in chat.model.requests[-1].messages]
            assert told[-4:] == [  # F25, F28: not `/resume`, which would tell the dialogue that stands there
                ("assistant", "Le paso con un perito.\nHola, soy Pilar."),
                ("user", "Gracias, Pilar"),
                ("user", "/human_task_completed"),
                ("user", "Sigo aquí"),
            ]

            assert not await has_ended(engine, content)
            ended = await chat.http.post(f"/v1/chat/sessions/{client.session}/end")
            assert ended.status_code == 200
            assert await has_ended(engine, content)
            decisions = await chat.decisions(client.session)
            assert [d["action"] for d in decisions] == ["accept", "continue", "continue", "continue"]


async def agent_on(engine_url: str, document: dict[str, Any]) -> dict[str, Any]:
    """A row of the table whose flow is that document."""
    async with httpx.AsyncClient(base_url=engine_url) as engine:
        flow = {"name": "f", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await engine.post("/v1/flows", json=flow)).json()["id"]
        version = {k: v for k, v in document.items() if k != "conversationalFlowId"}
        saved = await engine.post(f"/v1/flows/{flow_id}/versions?tag=prod", json=version)
        assert saved.status_code == 201, saved.text
    return {**CLAIMS, "flow": {"flow_id": flow_id, "tag": "prod"}}


@pytest.mark.parametrize(
    ("row", "variables", "asked"),
    [
        ({}, {"GROQ_API_KEY": "key"}, ("groq:flows-own", 0.9)),
        ({"temperature": 0.1}, {"GROQ_API_KEY": "key"}, ("groq:flows-own", 0.1)),
        ({"model": "openai:the-rows"}, {"GROQ_API_KEY": "key"}, ("openai:the-rows", 0.3)),
        ({}, {}, (None, 0.3)),
    ],
)
async def test_a_flow_has_its_own_model_where_the_row_names_none_and_its_provider_is_configured(
    tmp_path: Path,
    engine_url: str,
    monkeypatch: pytest.MonkeyPatch,
    row: dict[str, Any],
    variables: dict[str, str],
    asked: tuple[str | None, float],
) -> None:  # C15
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    llm = {"provider": "groq", "model": "flows-own", "temperature": 0.9}
    media = {"audio": {"presetId": "default"}, "text": {"llm": llm}}
    agent = await agent_on(engine_url, clinic(mediaConfig=media))
    async with running_chat(tmp_path, [Says("Hola.")], engine_url=engine_url) as chat:
        await chat.add({**agent, **row})
        async with chat.client(language="es") as client:
            await client.say("m-1", ACCIDENT)
            (request,) = chat.model.requests
            assert (request.model, request.temperature) == asked


async def test_a_conversation_that_goes_on_by_itself_gives_the_model_another_task(
    tmp_path: Path, engine_url: str
) -> None:  # C15
    leads_on = {"when": "refusals('visit') >= 1", "advance": "auto"}
    document = clinic()
    document["tasks"][0]["connectionConditions"] = {"supervised": leads_on}
    document["tasks"][0]["prompt"] = "Find out what is needed."
    agent = await agent_on(engine_url, document)
    script: list[Step] = [calls("change_task", task="Visita Perché"), Says("Un momento.")]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(agent, WEATHER)
        async with chat.client(language="es") as client:
            await client.say("m-1", ACCIDENT)
            assert [name for name, _, _ in tasks(client)][-1] == "supervised"
            before, after = chat.model.requests[0], chat.model.requests[1]
            assert "Find out what is needed." in before.messages[0].content
            assert "Find out what is needed." not in after.messages[0].content
            assert "/start_task supervised AIS" in [message.content for message in after.messages]


async def test_every_word_that_is_shown_is_told_to_the_engine_once(
    tmp_path: Path, engine_url: str
) -> None:  # V2, C15
    def beside(text: str, name: str, **arguments: Any) -> CallsTools:
        return CallsTools([ToolCall("call-1", name, arguments)], text)

    script: list[Step] = [
        beside("Un momento.", "change_task", task="no such task"),
        beside("Veamos.", "ask_user", question="¿Cuál es su póliza?"),
        calls("refuse", reason="No puedo."),
        beside("Adiós.", "end_call"),
    ]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            for message_id, text in (("m-1", ACCIDENT), ("m-2", "123"), ("m-3", "Gracias")):
                await client.say(message_id, text)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            journal = (await engine.get(f"/v1/conversations/{content['conversation']}/journal")).json()
            said = [each["input"] for each in journal["entries"] if each["input"]["op"] == "handle-utterance"]
            assert [(each["src"], each["body"]) for each in said] == [
                ("user", ACCIDENT),
                ("bot", "Un momento."),
                ("bot", "Veamos."),
                ("bot", "¿Cuál es su póliza?"),
                ("user", "123"),
                ("bot", "No puedo."),
                ("user", "Gracias"),
                ("bot", "Adiós."),
            ]
            assert client.text("m-1") == "Un momento.\n\nVeamos.\n\n¿Cuál es su póliza?"


@pytest.mark.parametrize("words", [{}, {"question": "  "}, {"question": None}])
async def test_a_question_without_words_is_tried_again_by_the_flows_model(
    tmp_path: Path, engine_url: str, words: dict[str, Any]
) -> None:  # C9, C15
    script = [calls("ask_user", **words), calls("ask_user", question="¿Cuál es su póliza?")]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS)
        async with chat.client(language="es") as client:
            final = await client.say("m-1", ACCIDENT)
            assert (final["state"], client.text("m-1")) == ("clarifying", "¿Cuál es su póliza?")
            told = chat.model.requests[1].messages[-1]
            assert (told.role, told.tool_call_id) == ("tool", "call-1")
            assert "question" in told.content
            assert "pydantic" not in told.content


async def test_breaking_out_of_a_flow_ends_its_contact(tmp_path: Path, engine_url: str) -> None:  # C9, C15
    script = [Says("¿Cuál es su póliza?"), Says("Sunny.")]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS, WEATHER)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            await client.say("m-1", ACCIDENT)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            final = await client.say("m-2", "What is the weather in Rome?")
            assert final["agent"] == "weather_agent"
            assert await has_ended(engine, content)


async def test_an_agent_whose_flow_is_taken_away_leaves_its_contact(
    tmp_path: Path, engine_url: str
) -> None:  # C5, C15
    script = [Says("¿Cuál es su póliza?"), Says("Hola."), Says("Dígame.")]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            await client.say("m-1", ACCIDENT)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            changed = await chat.http.patch("/v1/ai-agents/claims_agent", json={"flow": None})
            assert changed.status_code == 200, changed.text
            for text in ("olvídalo", ACCIDENT):
                asked = {"text": text, "session": client.session}
                dry_run = await chat.http.post("/v1/chat/route", json=asked)
                assert dry_run.status_code == 200, dry_run.text
                assert dry_run.json()["action"] in ("accept", "refuse")
            final = await client.say("m-2", ACCIDENT)
            assert (final["state"], client.text("m-2")) == ("done", "Hola.")
            assert await has_ended(engine, content)
            assert (await client.say("m-3", "olvídalo"))["state"] == "refused"
            assert client.of("m-3", "error") == []
            assert [d["action"] for d in await chat.decisions(client.session)] == [
                "accept",
                "accept",
                "refuse",
            ]


async def handed_over(client: Client) -> None:
    """A contact whose flow asks for a person."""
    await client.say("m-1", ACCIDENT)
    await client.say("m-2", PERSON)
    assert tasks(client)[-1][1:] == ("HUM", "routing")


TO_A_PERSON: Sequence[Step] = (
    Says("¿Cuál es su póliza?"),
    calls("change_task", task="perito"),
    Says("Le paso con un perito."),
)


@pytest.mark.parametrize("text", ["Hello, how are you?", "What is the weather in Rome?", "never mind, hello"])
async def test_a_user_who_is_with_a_person_or_waits_for_one_stays_in_the_flow(
    tmp_path: Path, engine_url: str, text: str
) -> None:  # C9, C15
    script = [*TO_A_PERSON, Says("Un momento."), Says("Sunny.")]
    async with running_chat(tmp_path, script, engine_url=engine_url) as chat:
        await chat.add(CLAIMS, WEATHER)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            await handed_over(client)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            final = await client.say("m-3", text)
            assert (final["agent"], client.text("m-3")) == ("claims_agent", "Un momento.")

            path = f"/v1/chat/sessions/{client.session}"
            joined = await chat.http.post(f"{path}/human", json={"outcome": "connected", "name": "Bob"})
            assert joined.status_code == 200, joined.text
            asked = len(chat.model.requests)
            dry_run = await chat.http.post("/v1/chat/route", json={"text": text, "session": client.session})
            assert dry_run.json()["action"] == "continue"
            final = await client.say("m-4", text)
            assert (final["agent"], final["state"], client.text("m-4")) == ("claims_agent", "done", "")
            assert len(chat.model.requests) == asked
            said = await chat.http.post(f"{path}/human", json={"text": "Hola.", "name": "Bob"})
            assert said.status_code == 200, said.text
            assert not await has_ended(engine, content)
            assert tasks(client).count(("perito", "HUM", "connected")) == 1, "told once"

            await chat.http.post(f"{path}/human", json={"outcome": "completed"})
            final = await client.say("m-5", "What is the weather in Rome?")
            assert (final["agent"], client.text("m-5")) == ("weather_agent", "Sunny.")


async def test_a_user_who_was_with_a_person_stays_there_while_the_engine_is_away(
    tmp_path: Path,
) -> None:  # C15
    with ExitStack() as own:
        url = own.enter_context(running_service(tmp_path / "engine"))
        async with running_chat(tmp_path / "chat", TO_A_PERSON, engine_url=url) as chat:
            await chat.add(CLAIMS, WEATHER)
            async with chat.client(language="es") as client:
                await handed_over(client)
                path = f"/v1/chat/sessions/{client.session}/human"
                await chat.http.post(path, json={"outcome": "connected", "name": "Bob"})
                own.close()
                final = await client.say("m-3", "Hello, how are you?")
                assert (final["agent"], final["state"]) == ("claims_agent", "refused")
                assert client.of("m-3", "error")[0]["content"]["code"] == "flow_unavailable"


async def test_whoever_takes_over_a_flow_s_first_answer_goes_on_with_its_contact(
    tmp_path: Path, engine_url: str
) -> None:  # C12, C15
    """Else the user's data stay in a contact that nobody ends, and the flow asks for them again."""
    clock = Clock()
    store = InProcessChat(monotonic=clock)
    mortal: Any = Reached(store)
    async with AsyncExitStack() as stack, httpx.AsyncClient(base_url=engine_url) as engine:
        other = await stack.enter_async_context(
            running_chat(tmp_path, [Says("¿Y su póliza?")], shared=(store, store), engine_url=engine_url)
        )
        await other.add(CLAIMS)
        dying = AsyncExitStack()
        one = await dying.enter_async_context(
            running_chat(tmp_path, [Stalls(60)], shared=(mortal, mortal), engine_url=engine_url)
        )
        async with one.client(language="es") as client:
            await client.send(type="message", id="m-1", content=ACCIDENT)
            shown = await client.until(lambda frame: frame["content"].get("event") == "task")
            mortal.is_killed = True
        await dying.aclose()
        clock.ahead += LEASE_S
        async with other.client(session=client.session, after=0) as back:
            await back.final("m-1")
            assert back.of("m-1", "error")[0]["content"]["code"] == "interrupted"
            assert (await back.say("m-2", ACCIDENT))["state"] == "done"
            told = [frame["content"] for frame in back.frames if frame["type"] == "state"]
            contacts = {each["contact"] for each in told if each.get("event") == "task"}
            assert contacts == {shown["content"]["contact"]}
            assert not await has_ended(engine, shown["content"])
        await other.http.post(f"/v1/chat/sessions/{client.session}/end", json={"reason": "over"})
        assert await has_ended(engine, shown["content"])


async def test_a_session_that_falls_silent_ends_the_flows_contact(
    tmp_path: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C15
    monkeypatch.setattr(sessions, "SWEEP_S", 0.02)
    script = [Says("¿Cuál es su póliza?")]
    async with running_chat(tmp_path, script, engine_url=engine_url, chat_idle_s=0.5) as chat:
        await chat.add(CLAIMS)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            await client.say("m-1", ACCIDENT)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            assert not await has_ended(engine, content)
            async with asyncio.timeout(30):
                while not await has_ended(engine, content):
                    await asyncio.sleep(0.05)
            page = (await chat.http.get(f"/v1/chat/sessions/{client.session}")).json()
            assert page["ended"]


@asynccontextmanager
async def way_to(engine_url: str, key: bytes | None = None) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """An address of the engine, and whether anybody gets through there; with a `key`, whether that does."""
    target, is_open, serving = urlsplit(engine_url), asyncio.Event(), set[asyncio.Task[None]]()
    is_open.set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (key or is_open.is_set()) and (data := await reader.read(65_536)):
            if not is_open.is_set():
                if key is None:
                    break
                data = data.replace(key, key[::-1])
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(cast("asyncio.Task[None]", asyncio.current_task()))
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", is_open
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


@pytest.mark.parametrize("how", ["breaking out", "ending the session"])
async def test_a_contact_is_ended_once_the_engine_is_back(
    tmp_path: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:  # C15, F30
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.05)
    script = [Says("¿Cuál es su póliza?"), Says("Sunny.")]
    async with way_to(engine_url) as (url, is_open), running_chat(tmp_path, script, engine_url=url) as chat:
        await chat.add(CLAIMS, WEATHER)
        async with chat.client(language="es") as client, httpx.AsyncClient(base_url=engine_url) as engine:
            await client.say("m-1", ACCIDENT)
            content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
            is_open.clear()
            if how == "breaking out":
                assert (await client.say("m-2", "What is the weather in Rome?"))["agent"] == "weather_agent"
            else:
                ended = await chat.http.post(f"/v1/chat/sessions/{client.session}/end")
                assert (ended.status_code, ended.json()["ended"]) == (200, True)
            assert not await has_ended(engine, content)
            is_open.set()
            async with asyncio.timeout(30):
                while not await has_ended(engine, content):
                    await asyncio.sleep(0.05)


KEY = "key-of-the-chat-0123456789"


@pytest.fixture
def keyed_engine(tmp_path: Path) -> Iterator[str]:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"key": KEY, "tenant": "default", "scopes": ["admin"]}]}))
    with running_service(tmp_path / "engine", FLOW_ENGINE_API_KEYS_FILE=str(keys)) as url:
        yield url


async def test_a_key_that_is_refused_for_a_while_costs_nobody_the_conversation(
    tmp_path: Path, keyed_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C15
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.05)
    script = [Says("¿Cuál es su póliza?"), Says("Dígame."), Says("Hola.")]
    headers = {"Authorization": f"Bearer {KEY}"}
    async with AsyncExitStack() as stack:
        url, is_open = await stack.enter_async_context(way_to(keyed_engine, KEY.encode()))
        chat = await stack.enter_async_context(running_chat(tmp_path, script, engine_url=url, api_key=KEY))
        engine = await stack.enter_async_context(httpx.AsyncClient(base_url=keyed_engine, headers=headers))
        await chat.add(CLAIMS)
        client = await stack.enter_async_context(chat.client(language="es"))
        await client.say("m-1", ACCIDENT)
        content = next(f["content"] for f in client.frames if f["content"].get("event") == "task")
        is_open.clear()
        final = await client.say("m-2", ACCIDENT)
        assert final["state"] == "refused"
        assert client.of("m-2", "error")[0]["content"]["code"] == "flow_unavailable"
        is_open.set()
        final = await client.say("m-3", ACCIDENT)
        assert (final["state"], client.text("m-3")) == ("done", "Dígame.")
        assert len(tasks(client)) == 1, "it is the same contact"
        is_open.clear()
        await chat.http.post(f"/v1/chat/sessions/{client.session}/end")
        assert not await has_ended(engine, content)
        is_open.set()
        async with asyncio.timeout(30):
            while not await has_ended(engine, content):
                await asyncio.sleep(0.05)


async def test_an_engine_that_is_away_is_an_apology(tmp_path: Path) -> None:  # C15
    async with running_chat(tmp_path, engine_url="http://127.0.0.1:9") as chat:
        await chat.add(CLAIMS)
        async with chat.client(language="es") as client:
            async with asyncio.timeout(30):
                final = await client.say("m-1", ACCIDENT)
            assert final["state"] == "refused"
            assert client.of("m-1", "error")[0]["content"]["code"] == "flow_unavailable"
            refused = await chat.http.post(f"/v1/chat/sessions/{client.session}/human", json={"text": "x"})
            assert refused.status_code in (409, 503)


async def confirmed(client: Client, message_id: str, content: str, decision: str) -> dict[str, Any]:
    """The final frame of an answer in which one tool asks."""
    await client.send(type="message", id=message_id, content=content)
    waiting = await client.until(lambda f: f["type"] == "action" and f["content"]["status"] == "waiting")
    await client.send(type="confirm", call=waiting["content"]["call"], decision=decision)
    return await client.final(message_id)


def acted(client: Client, message_id: str) -> list[tuple[str, str]]:
    return [(f["content"]["tool"], f["content"]["status"]) for f in client.of(message_id, "action")]


async def test_a_desk_of_agents_answers_everything_that_is_asked_of_it(
    tmp_path: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1, C2, C6, C8, C9, C10, C11, C13, C15
    prompts: list[str] = []
    toolbelt.CALLS.clear()
    async with FakeOpenAI(desk_model(prompts.append)).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        settings = {"outbound_allow": "127.0.0.1"}
        async with running_chat(
            tmp_path,
            routing=True,
            on_wire=True,
            settings=settings,
            engine_url=engine_url,
            tool_modules=BELT,
        ) as chat:
            await chat.add(*rows(engine_url))
            async with chat.client() as client:
                await _talk(chat, client)
                finals = [f for f in client.frames if f["final"]]
                assert client.numbers == list(range(1, len(client.numbers) + 1))
                assert len(finals) == len({f["id"] for f in finals})
                assert "thinking" not in {f.get("state") for f in client.frames}
    shop = next(prompt for prompt in prompts if "Take an order." in prompt)
    assert shop.index("Never promise a discount.") < shop.index("Take an order.")


async def _talk(chat: Chat, client: Client) -> None:
    final = await client.say("routed", "What is the weather in Rome?")
    assert (final["agent"], final["state"], client.text("routed")) == ("weather_agent", "done", SUNNY)
    assert len(client.of("routed", "dialogue")) > 1

    final = await client.say("asks", "I would like to order a pizza")
    assert (final["agent"], final["state"], client.text("asks")) == (
        "order_agent",
        "clarifying",
        "Which size?",
    )
    final = await confirmed(client, "answers", "a large one", "yes")
    assert (final["agent"], final["state"]) == ("order_agent", "done")
    assert acted(client, "answers") == [
        ("kitchen", "started"),
        ("kitchen", "finished"),
        ("pay", "waiting"),
        ("pay", "started"),
        ("pay", "finished"),
    ]
    assert client.text("answers") == "Paid: your pizza is on its way."

    final = await confirmed(client, "denies", "the same pizza again", "no")
    assert (final["state"], client.text("denies")) == ("done", "Then it stays unpaid.")
    assert acted(client, "denies") == [("pay", "waiting"), ("pay", "rejected")]
    assert toolbelt.CALLS == [("pay", (9.5, "EUR"))]

    assert (await client.say("asks-again", "I would like to order a pizza"))["state"] == "clarifying"
    final = await client.say("leaves", "never mind, what is the weather in Milan?")
    assert (final["agent"], final["state"]) == ("weather_agent", "done")

    final = await client.say("refused", "Explain quantum chromodynamics")
    assert (final["state"], "Tells the weather" in client.text("refused")) == ("refused", True)

    final = await client.say("small", "hello there")
    assert (final["agent"], final["state"]) == ("smalltalk_agent", "done")

    final = await client.say("flow", ACCIDENT)
    assert (final["agent"], client.text("flow")) == ("claims_agent", "¿Cuál es su póliza?")
    await client.say("person", PERSON)
    task = client.of("person", "state")[0]["content"]
    assert (task["event"], task["task"], task["task_type"]) == ("task", "perito", "HUM")
    path = f"/v1/chat/sessions/{client.session}/human"
    joined = await chat.http.post(path, json={"outcome": "connected", "text": "Hola.", "name": "Pilar"})
    assert joined.status_code == 200, joined.text
    words = await client.until(lambda f: f["type"] == "dialogue" and f.get("agent") == "Pilar")
    assert (words["content"], words["final"]) == ("Hola.", True)
    assert ((await client.say("to-her", "Gracias"))["state"], client.text("to-her")) == ("done", "")

    decisions = await chat.decisions(client.session)
    assert [d["action"] for d in decisions] == [
        *("accept", "accept", "continue", "accept", "accept", "accept"),
        *("refuse", "accept", "accept", "continue", "continue"),
    ]
    assert "break-out" in decisions[5]["reason"]
    assert (await chat.http.post(f"/v1/chat/sessions/{client.session}/end")).status_code == 200
