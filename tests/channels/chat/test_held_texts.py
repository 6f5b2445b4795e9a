"""What the model writes in a task with approval waits for a person, and is sent once. Engine and chat are
real, and talk over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from adapters.models.scripted import CallsTools, Says, Step
from channels.engine_client import approvals
from flow_engine.errors import RetryLater
from flow_engine.ports.chat import LEASE_S, MOST_WAITING
from flow_engine.ports.models import ToolCall
from memory.chat_in_process import InProcessChat
from tests.channels.chat.harness import Chat, Client, running_chat
from tests.channels.chat.test_replicas import Clock, Forgetful
from tests.channels.engine_client.gate import Moment, gate_to
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

QUESTION, DRAFT, BETTER = "Will you refund me?", "We refund 20 €.", "We refund 25 €."
CHECKED = "One moment, please: a colleague is checking my answer."


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "POLL_S", 0.02)


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine_url, timeout=30) as http:
        yield http


async def agent_of(engine: httpx.AsyncClient, **task: Any) -> Mapping[str, Any]:
    """A row of the table, whose flow has the task `answers` (AIS) and then `after`."""
    approving = {"type": "AIS", "approval": True, "approvalTimeout": 120, **task}
    tasks = [hum_task("answers", connectedTasks=["after"], **approving), aio_task("after")]
    document = minimal_version(tasks=tasks, firstTask="answers", systemPromptsLanguage="en-US")
    flow = {"name": "Desk", "campaignId": "c", "updatedBy": "ada"}
    flow_id = (await engine.post("/v1/flows", json=flow)).json()["id"]
    version = {name: value for name, value in document.items() if name != "conversationalFlowId"}
    saved = await engine.post(f"/v1/flows/{flow_id}/versions?tag=prod", json=version)
    assert saved.status_code == 201, saved.text
    return {
        "name": "desk_agent",
        "description": "Refunds orders.",
        "examples": [QUESTION, "Refund my order"],
        "flow": {"flow_id": flow_id, "tag": "prod"},
    }


Desk = Callable[..., AbstractAsyncContextManager[tuple[Chat, Client]]]


@pytest.fixture
def desk(tmp_path: Path, engine: httpx.AsyncClient, engine_url: str) -> Desk:
    """A chat with one agent and a client in it, by what its model answers; `task` is of `agent_of`."""

    @asynccontextmanager
    async def opened(
        script: Sequence[Step], *, shared: Any = None, **task: Any
    ) -> AsyncIterator[tuple[Chat, Client]]:
        async with running_chat(tmp_path, script, shared=shared, engine_url=engine_url) as chat:
            await chat.add(await agent_of(engine, **task))
            async with chat.client() as client:
                yield chat, client

    return opened


def is_held(frame: Mapping[str, Any]) -> bool:
    return frame["type"] == "state" and frame["content"].get("event") == "approval"


def statuses(client: Client) -> list[str | None]:
    notes = [f["content"] for f in client.frames if f["type"] == "state"]
    return [note["task_status"] for note in notes if note.get("event") == "task"]


async def held(client: Client, message_id: str = "m-1") -> dict[str, Any]:
    await client.send(type="message", id=message_id, content=QUESTION)
    return await client.until(is_held)


async def decide(chat: Chat, client: Client, outcome: str, **body: Any) -> dict[str, Any]:
    path = f"/v1/chat/sessions/{client.session}/human"
    answer = await chat.http.post(path, json={"outcome": outcome, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def conversation(client: Client) -> str:
    return next(f["content"] for f in client.frames if "conversation" in (f["content"] or {}))["conversation"]


async def rows(engine: httpx.AsyncClient, client: Client, op: str) -> list[Any]:
    journal = (await engine.get(f"/v1/conversations/{conversation(client)}/journal")).json()["entries"]
    return [each["input"] for each in journal if each["input"]["op"] == op]


async def bot_said(engine: httpx.AsyncClient, client: Client) -> list[str]:
    return [each["body"] for each in await rows(engine, client, "handle-utterance") if each["src"] == "bot"]


class TestOneText:
    async def test_nothing_of_it_shows_until_a_person_approves_it(
        self, tmp_path: Path, engine: httpx.AsyncClient, engine_url: str
    ) -> None:
        async with running_chat(tmp_path, [Says(DRAFT), Says("Bye.")], engine_url=engine_url) as chat:
            await chat.add(await agent_of(engine))
            async with chat.client() as client:
                note = await held(client)
                assert note["content"]["message"] == CHECKED
                assert (note["content"]["status"], note["final"]) == ("waiting", False)
                assert client.of("m-1", "dialogue") == []
                assert statuses(client) == ["ai", "waiting"]
                asked = (await rows(engine, client, "handle-human-task"))[-1]
                assert (asked["outcome"], asked["text"]) == ("waiting", DRAFT)

                decided = await decide(chat, client, "approved")
                assert (decided["result"], decided["task_status"]) == (True, "approved")
                final = await client.final("m-1")
                assert (final["type"], final["state"], final["content"]) == ("dialogue", "done", DRAFT)
                assert (client.text("m-1"), statuses(client)[-1]) == (DRAFT, "approved")
                assert await bot_said(engine, client) == [DRAFT]
                again = await decide(chat, client, "rejected")
                assert (again["result"], again["code"]) == (False, "already_decided")

                await held(client, "m-2")  # the next answer is held again, and knows the one before
                await decide(chat, client, "approved", text="Bye.")
                assert (await client.final("m-2"))["content"] == "Bye."
                assert DRAFT in [message.content for message in chat.model.requests[-1].messages]
            [run, _] = await chat.runs(client.session)
            assert (run["status"], run["final_message"]) == ("completed", DRAFT)

    async def test_a_decision_at_the_engine_itself_counts_and_may_change_the_text(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT)]) as (_chat, client):
            await held(client)
            contact = next(f["content"] for f in client.frames if "contact" in f["content"])
            body = {"conversationId": contact["conversation"], "contactId": contact["contact"]}
            edited = {**body, "outcome": "edited", "text": BETTER}
            assert (await engine.post("/v1/handle-human-task", json=edited)).status_code == 200
            await client.final("m-1")
            assert client.text("m-1") == BETTER

    async def test_a_rejection_is_the_models_to_read_and_its_next_text_waits_too(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT), Says(BETTER)]) as (chat, client):
            await held(client)
            await decide(chat, client, "rejected", reason="too little")
            await client.until(is_held)
            said = [message.content for message in chat.model.requests[-1].messages]
            assert said[-2:] == [DRAFT, "/human_task_rejected too little"]
            await decide(chat, client, "approved")
            await client.final("m-1")
            assert client.text("m-1") == BETTER
            assert await bot_said(engine, client) == [BETTER]

    async def test_after_a_rejection_the_model_still_hears_where_the_conversation_goes(
        self, desk: Desk
    ) -> None:  # C15
        leads_on = {"when": "refusals('after') >= 1", "advance": "auto"}
        leaves = CallsTools([ToolCall("call-1", "change_task", {"task": "after"})])
        script: list[Step] = [Says(DRAFT), leaves, Says("Here now.")]
        async with desk(script, connectionConditions={"after": leads_on}) as (chat, client):
            await held(client)
            await decide(chat, client, "rejected")
            await client.final("m-1")
            assert "/start_task after AIO" in [each.content for each in chat.model.requests[-1].messages]
            assert client.text("m-1") == "Here now."

    async def test_a_text_that_nobody_decides_is_not_sent(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT)], approvalTimeout=0.3) as (_chat, client):
            await client.send(type="message", id="m-1", content=QUESTION)
            final = await client.final("m-1")
            assert final["state"] == "refused"
            assert client.text("m-1").startswith("Nobody could check my answer in time.")
            assert await bot_said(engine, client) == []

    async def test_a_question_waits_as_well_and_ends_in_its_own_state(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        asks = CallsTools([ToolCall("call-1", "ask_user", {"question": "Which order?"})])
        leaves = CallsTools([ToolCall("call-2", "end_call", {})], text="Goodbye.")
        async with desk([asks, leaves]) as (chat, client):
            await held(client)
            await decide(chat, client, "edited", text="Which order, please?")
            final = await client.final("m-1")
            assert (final["state"], client.text("m-1")) == ("clarifying", "Which order, please?")
            await held(client, "m-2")  # a farewell beside the end
            assert client.of("m-2", "dialogue") == []
            await decide(chat, client, "approved")
            await client.final("m-2")
            assert client.text("m-2") == "Goodbye."
            page = await engine.get(f"/v1/conversations/{conversation(client)}")
            assert page.json()["status"] in ("closed", "between_contacts")

    async def test_words_beside_a_change_of_task_are_not_sent_unread(self, desk: Desk) -> None:
        leaves = CallsTools([ToolCall("call-1", "change_task", {"task": "after"})], text="Unread.")
        async with desk([leaves, Says("Here now.")]) as (_chat, client):
            assert (await client.say("m-1", QUESTION))["state"] == "done"
            assert client.text("m-1") == "Here now."  # the task it is in now has no approval


class TestPeople:
    @pytest.mark.parametrize("approval", [True, False])
    async def test_no_model_answers_in_a_task_that_a_person_has_taken_over(
        self, desk: Desk, *, approval: bool
    ) -> None:
        script: list[Step] = [Says(DRAFT), Says("Me again.")]
        async with desk(script, approval=approval) as (chat, client):
            if approval:
                await held(client)
            else:
                await client.say("m-1", QUESTION)
            await decide(chat, client, "taken_over")
            if approval:  # the text is withdrawn
                assert (await client.final("m-1"))["state"] == "done"
                assert client.text("m-1") == ""
            assert (await client.say("m-2", "Hello?"))["state"] == "done"
            assert (client.text("m-2"), len(chat.model.requests)) == ("", 1)
            await decide(chat, client, "released")
            await client.send(type="message", id="m-3", content=QUESTION)
            if approval:
                await client.until(is_held)
                await decide(chat, client, "approved")
            await client.final("m-3")
            assert client.text("m-3") == "Me again."

    async def test_what_a_person_writes_reaches_the_model_from_behind_a_full_line(
        self, desk: Desk
    ) -> None:  # F25, C15
        async with desk([Says(DRAFT), Says("Me again.")]) as (chat, client):
            await held(client)
            for number in range(MOST_WAITING + 1):
                await client.send(type="message", id=f"w-{number}", content=QUESTION)
            assert (await client.until(lambda f: f["seq"] is None))["content"]["code"] == "busy"
            path = f"/v1/chat/sessions/{client.session}/human"
            async with asyncio.timeout(10):
                said = await chat.http.post(path, json={"text": "I am Ann.", "name": "Ann"})
                assert said.status_code == 200, said.text
                await decide(chat, client, "taken_over", text="Let me see.", name="Ann")
            for number in range(MOST_WAITING):
                await client.final(f"w-{number}")
            await decide(chat, client, "released")
            await client.send(type="message", id="m-2", content="Thanks")
            await client.until(is_held)
            told = [message.content for message in chat.model.requests[-1].messages]
            assert told[-2:] == ["I am Ann.\nLet me see.", "Thanks"]
            words = [
                f["content"] for f in client.frames if f.get("agent") == "Ann" and f["type"] == "dialogue"
            ]
            assert words == ["I am Ann.", "Let me see."]
            await decide(chat, client, "approved")
            await client.final("m-2")

    async def test_a_cancelled_answer_takes_its_text_back(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT), Says(BETTER)]) as (chat, client):
            await held(client)
            await client.send(type="cancel", id="m-1")
            assert (await client.final("m-1"))["state"] == "refused"
            await held(client, "m-2")
            last = (await rows(engine, client, "handle-human-task"))[-2:]
            assert [each["outcome"] for each in last] == ["rejected", "waiting"]
            await decide(chat, client, "approved")
            await client.final("m-2")
            assert (client.text("m-1"), client.text("m-2")) == ("", BETTER)

    async def test_what_is_no_decision_is_refused_with_its_reason(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT)]) as (chat, client):
            await held(client)
            path = f"/v1/chat/sessions/{client.session}/human"
            for body, status in (
                ({"outcome": "edited"}, 422),
                ({"outcome": "waiting", "text": "mine"}, 422),
                ({"outcome": "approved", "approval_id": 0}, 422),
                ({"outcome": "approved", "approval_id": 999}, 200),
                ({"outcome": "completed"}, 409),
            ):
                answer = await chat.http.post(path, json=body)
                assert answer.status_code == status, answer.text
            problem = answer.json()
            assert problem["code"] == "outcome_not_possible"
            assert {"approved", "edited", "rejected"} <= set(problem["accepted"])
            contact = next(f["content"] for f in client.frames if "contact" in f["content"])
            body = {"conversationId": contact["conversation"], "contactId": contact["contact"]}
            engines = await engine.post("/v1/handle-human-task", json={**body, "outcome": "completed"})
            told = ("code", "detail", "state", "accepted")
            assert [problem[name] for name in told] == [engines.json()[name] for name in told]
            no_text = (await chat.http.post(path, json={"outcome": "edited"})).json()
            assert [each["pointer"] for each in no_text["errors"]] == ["/text"]
            await decide(chat, client, "approved")
            await client.final("m-1")


class Reached:
    """What a replica has of the store that it shares, until it is killed."""

    def __init__(self, store: InProcessChat) -> None:
        self._store = store
        self.is_killed = False

    def __getattr__(self, name: str) -> Any:
        if self.is_killed:
            raise RetryLater("memory_unavailable", "away")
        return getattr(self._store, name)


class TestOnce:
    @pytest.mark.parametrize(
        ("moment", "outcome"),
        [
            ("before", "approved"),
            pytest.param("before", "rejected", marks=pytest.mark.long),
            pytest.param("after", "approved", marks=pytest.mark.long),
            ("after", "rejected"),
        ],
    )
    async def test_a_replica_killed_between_keeping_a_text_and_the_engines_answer_loses_and_doubles_nothing(
        self, tmp_path: Path, engine: httpx.AsyncClient, engine_url: str, moment: Moment, outcome: str
    ) -> None:
        clock = Clock()
        store = InProcessChat(monotonic=clock)
        mortal: Any = Reached(store)
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(
                running_chat(tmp_path, [Says(BETTER)], shared=(store, store), engine_url=engine_url)
            )
            await other.add(await agent_of(engine))
            gate = await stack.enter_async_context(gate_to(engine_url, b"/v1/handle-human-task", moment))
            dying = AsyncExitStack()
            one = await dying.enter_async_context(
                running_chat(tmp_path, [Says(DRAFT)], shared=(mortal, mortal), engine_url=gate.url)
            )
            async with one.client() as client:
                await client.send(type="message", id="m-1", content=QUESTION)
                await asyncio.wait_for(gate.reached.wait(), 30)
                mortal.is_killed = True
            await dying.aclose()
            clock.ahead += LEASE_S
            async with other.client(session=client.session, after=0) as back:
                await back.until(is_held)
                assert back.of("m-1", "dialogue") == []
                await decide(other, back, outcome)
                if outcome == "rejected":
                    await back.until(is_held)
                    await decide(other, back, "approved")
                await back.final("m-1")
                sent = BETTER if outcome == "rejected" else DRAFT
                assert back.text("m-1") == sent
                assert await bot_said(engine, back) == [sent]
                asked = await rows(engine, back, "handle-human-task")
                texts = [each["text"] for each in asked if each["outcome"] == "waiting"]
                assert texts == [DRAFT, BETTER][: 1 + (outcome == "rejected")]
            assert len(one.model.requests) == 1
            assert len(other.model.requests) == (outcome == "rejected")

    @pytest.mark.parametrize("decided", ["approved", "rejected", None])
    async def test_another_replica_goes_on_waiting_and_sends_it_once(
        self, tmp_path: Path, engine: httpx.AsyncClient, engine_url: str, decided: str | None
    ) -> None:
        """The decision falls while nobody waits for it; None: when the other one does."""
        clock = Clock()
        store = InProcessChat(monotonic=clock)
        shared = (store, store)
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(
                running_chat(tmp_path, [Says(BETTER)], shared=shared, engine_url=engine_url)
            )
            await other.add(await agent_of(engine))
            dying = AsyncExitStack()
            one = await dying.enter_async_context(
                running_chat(tmp_path, [Says(DRAFT)], shared=shared, engine_url=engine_url)
            )
            async with one.client() as client:
                await held(client)
            await dying.aclose()
            if decided is not None:
                await decide(other, client, decided)
            clock.ahead += LEASE_S
            async with other.client(session=client.session, after=0) as back:
                await back.until(is_held)
                if decided is None:
                    await back.until(is_held)  # the other replica's
                    await decide(other, back, "approved")
                if decided == "rejected":
                    await back.until(is_held)
                    await decide(other, back, "approved")
                await back.final("m-1")
                sent = BETTER if decided == "rejected" else DRAFT
                assert back.text("m-1") == sent
                assert [f["id"] for f in back.frames if f["final"]] == ["m-1"]
                assert await bot_said(engine, back) == [sent]
                assert back.numbers == list(range(1, len(back.numbers) + 1))
            assert len(other.model.requests) == (decided == "rejected")

    async def test_a_text_that_was_sent_when_its_replica_died_is_not_sent_again(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        clock = Clock()
        store = Forgetful(monotonic=clock)
        script = [Says(DRAFT), Says(BETTER)]
        async with desk(script, shared=(store, store)) as (chat, client):
            await held(client)
            await decide(chat, client, "approved")
            await client.final("m-1")
            while not store.was_away:
                await asyncio.sleep(0.01)
            clock.ahead += LEASE_S
            await held(client, "m-2")
            await decide(chat, client, "approved")
            await client.final("m-2")
            assert [client.text(each) for each in ("m-1", "m-2")] == [DRAFT, BETTER]
            assert await bot_said(engine, client) == [DRAFT, BETTER]
            assert [f["id"] for f in client.frames if f["final"]] == ["m-1", "m-2"]
            assert DRAFT in [each.content for each in chat.model.requests[-1].messages]

    @pytest.mark.long
    async def test_a_text_of_an_answer_that_came_to_nothing_makes_room(
        self, desk: Desk, engine: httpx.AsyncClient
    ) -> None:
        async with desk([Says(DRAFT), Says(BETTER)]) as (chat, client):
            await held(client)
            await decide(chat, client, "approved")
            await client.final("m-1")
            contact = next(f["content"] for f in client.frames if "contact" in f["content"])
            body = {"conversationId": contact["conversation"], "contactId": contact["contact"]}
            orphan = {**body, "outcome": "waiting", "text": "Whose is this?"}
            assert (await engine.post("/v1/handle-human-task", json=orphan)).status_code == 200
            await held(client, "m-2")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.final("m-2")
            assert client.text("m-2") == ""
            last = (await rows(engine, client, "handle-human-task"))[-1]
            assert orjson.dumps(last).decode().count(BETTER) == 1
            await decide(chat, client, "approved")
            await client.final("m-2")
            assert client.text("m-2") == BETTER
