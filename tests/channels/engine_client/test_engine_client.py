"""The channel agents' client of the engine: what it repeats, what it reads, what it raises (V2, F15, F36)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx2
import orjson
import pytest
from structlog.testing import capture_logs

from channels.engine_client.client import (
    LONGEST_PAUSE_S,
    PAUSES_S,
    Contact,
    EngineClient,
    FlowChoice,
    NewContact,
    Utterance,
    engine_http,
)
from channels.engine_client.replies import (
    EngineMisbehaved,
    EngineUnavailable,
    KeyRefused,
    RequestRefused,
    StateConflict,
    TaskChanged,
    TaskRefused,
)
from tests.api.harness import BASE_URL, clinic, entry, open_scene
from tests.api.test_mcp_server import base_of, listening_socket, served
from tests.channels.engine_client.engine_doubles import client_of, client_with

pytestmark = pytest.mark.anyio

CONTACT = Contact("conv-1", "call-1")
NEW = NewContact(CONTACT, FlowChoice(version_id="version-1"), "phone", facts={"callerId": "+390612345678"})
AT = datetime(2026, 1, 15, 9, 31, tzinfo=UTC)


def problem(status: int, code: str = "some_code", **more: Any) -> httpx2.Response:
    document = {"type": "t", "title": "t", "status": status, "code": code, "detail": "because", **more}
    return httpx2.Response(status, content=orjson.dumps(document))


ENDED = httpx2.Response(200, json={"status": "closed", "revision": 3, "summary": None, "contactId": "call-1"})


class TestRepeating:
    @pytest.mark.parametrize(
        "trouble",
        [
            problem(503, "store_unavailable"),
            httpx2.Response(502, text="bad gateway"),
            httpx2.Response(504),
            httpx2.ConnectError("refused"),
            httpx2.ReadTimeout("late"),
            httpx2.DecodingError("not gzip"),
            httpx2.RemoteProtocolError("closed"),
            problem(409, "revision_conflict"),
        ],
        ids=lambda trouble: getattr(trouble, "status_code", type(trouble).__name__),
    )
    async def test_what_another_try_can_mend_is_tried_again_under_the_same_key(
        self, trouble: httpx2.Response | Exception
    ) -> None:  # F15
        client, script, pauses = client_with(trouble, trouble, ENDED)
        reply = await client.end_contact(CONTACT, "bye")
        assert reply.status == "closed"
        keys = {request.headers["idempotency-key"] for request in script.requests}
        assert (len(script.requests), len(keys)) == (3, 1)
        assert pauses.seconds == list(PAUSES_S)

    async def test_every_try_leaves_its_line_in_the_log(self) -> None:  # 21, V14
        client, _, _ = client_with(httpx2.ReadTimeout("late"), problem(503, "store_unavailable"), ENDED)
        with capture_logs() as logged:
            await client.end_contact(CONTACT, "bye")
        lines = [entry for entry in logged if entry["event"] == "http_call"]
        assert [(line["status"], line["reason"]) for line in lines] == [
            (None, "ReadTimeout"),
            (503, None),
            (200, None),
        ]
        assert {(line["method"], line["url"]) for line in lines} == {
            ("POST", f"{BASE_URL}/v1/handle-end-contact")
        }

    async def test_a_request_that_is_given_up_leaves_its_line_without_credentials(self) -> None:  # 21, V14
        async def never(request: httpx2.Request) -> httpx2.Response:
            await asyncio.sleep(60)
            return ENDED

        http = httpx2.AsyncClient(
            transport=httpx2.MockTransport(never), base_url="http://user:s3cret@engine.example/base/"
        )
        with capture_logs() as logged, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await EngineClient(http).prompt("conv-1")
        [line] = [entry for entry in logged if entry["event"] == "http_call"]
        assert (line["status"], line["url"]) == (None, "http://engine.example/base/v1/prompt")
        assert line["reason"] == "nobody waited for the reply any longer"

    async def test_two_requests_never_share_a_key(self) -> None:  # F15
        client, script, _ = client_with(ENDED)
        await client.end_contact(CONTACT, "bye")
        await client.end_contact(CONTACT, "bye")
        assert len({request.headers["idempotency-key"] for request in script.requests}) == 2

    async def test_the_tries_are_bounded_and_the_last_trouble_is_told(self) -> None:
        client, script, _ = client_with(httpx2.ConnectError("refused"))
        with pytest.raises(EngineUnavailable, match="'handle-end-contact': ConnectError"):
            await client.end_contact(CONTACT, "bye")
        assert len(script.requests) == 1 + len(PAUSES_S)

    async def test_the_engine_may_ask_for_a_longer_pause_within_reason(self) -> None:  # F44
        busy = problem(503)
        client, _, pauses = client_with(
            httpx2.Response(503, content=busy.content, headers={"Retry-After": "1"}),
            httpx2.Response(503, content=busy.content, headers={"Retry-After": "3600"}),
            ENDED,
        )
        await client.end_contact(CONTACT, "bye")
        assert pauses.seconds == [1.0, LONGEST_PAUSE_S]

    @pytest.mark.parametrize("lost_tries", [1, 2])
    async def test_a_change_whose_answer_is_lost_happens_once_and_is_told(self, lost_tries: int) -> None:
        tries = 0

        def lost(request: httpx2.Request) -> bool:
            nonlocal tries
            if request.url.path != "/v1/change-task":
                return False
            tries += 1
            return tries <= lost_tries

        async with open_scene(clinic()) as scene:
            client = client_of(scene, lost)
            await client.new_contact(NEW)
            changed = await client.change_task(CONTACT, "operator")
            events = [event["body"] for event in await scene.events() if event["type"] == "system"]
        assert isinstance(changed, TaskChanged)  # F15: not "already_in_task"
        assert [body["subtype"] for body in events].count("task_changed") == 1


class TestErrors:
    async def test_a_conflict_tells_the_state_and_what_would_go(self) -> None:  # F36
        client, script, _ = client_with(
            problem(409, "outcome_not_possible", state={"taskName": "reception"}, accepted=["failed"])
        )
        with pytest.raises(StateConflict, match="outcome_not_possible: because") as raised:
            await client.human_task(CONTACT, "completed", None)
        assert raised.value.problem is not None
        assert raised.value.code == "outcome_not_possible"
        assert raised.value.problem.state == {"taskName": "reception"}
        assert raised.value.problem.accepted == ("failed",)
        assert len(script.requests) == 1

    async def test_a_conflict_that_every_try_meets_stays_a_conflict(self) -> None:
        client, script, _ = client_with(problem(409, "revision_conflict"))
        with pytest.raises(StateConflict):
            await client.change_task(CONTACT, "visit")
        assert len(script.requests) == 3

    @pytest.mark.parametrize("status", [401, 403])
    async def test_a_key_that_is_refused_is_told_at_once(self, status: int) -> None:
        client, script, _ = client_with(problem(status, "key_unknown"))
        with pytest.raises(KeyRefused, match="key_unknown: because"):
            await client.change_task(CONTACT, "visit")
        assert len(script.requests) == 1

    @pytest.mark.parametrize("status", [400, 404, 413, 422])
    async def test_a_mistake_of_ours_is_told_at_once(self, status: int) -> None:
        finding = {"pointer": "/task", "code": "missing", "message": "needed"}
        client, script, _ = client_with(problem(status, errors=[finding]))
        with pytest.raises(RequestRefused) as raised:
            await client.change_task(CONTACT, "visit")
        assert raised.value.problem is not None
        assert raised.value.problem.errors[0].pointer == "/task"
        assert len(script.requests) == 1

    @pytest.mark.parametrize(
        "answer",
        [
            problem(500, "internal_error"),
            httpx2.Response(404, text="<html>nothing here</html>"),
            httpx2.Response(302, headers={"Location": "http://elsewhere/"}),
            httpx2.Response(200, text="<html>welcome</html>"),
            httpx2.Response(200, json={"result": "perhaps"}),
        ],
        ids=["bug", "not the engine", "redirect", "page", "other JSON"],
    )
    async def test_what_the_engine_never_answers_is_no_reply(self, answer: httpx2.Response) -> None:
        client, script, _ = client_with(answer)
        with pytest.raises(EngineMisbehaved):
            await client.change_task(CONTACT, "visit")
        assert len(script.requests) == 1

    async def test_the_engine_s_own_problems_are_read(self) -> None:
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            with pytest.raises(RequestRefused, match="conversation_unknown"):
                await client.change_task(CONTACT, "visit")
            await client.new_contact(NEW)
            await client.end_contact(CONTACT, "bye")
            with pytest.raises(StateConflict) as raised:
                await client.new_contact(NEW)
        assert raised.value.code == "contact_ended"  # F28


class TestReplies:
    async def test_a_contact_is_told_task_tools_and_where_it_may_go(self) -> None:  # F28
        async with open_scene(clinic()) as scene:
            data = await client_of(scene).new_contact(NEW)
        assert (data.command, data.task_name, data.task_type) == ("/start", "reception", "AIO")
        assert (data.tenant_id, data.channel, data.language) == ("default", "phone", "en-US")
        visit = data.reachable_tasks[0]
        assert (visit.name, visit.missing_variables) == ("Visita Perché", ("a string", "a boolean"))
        assert data.vad is not None
        assert data.vad.min_silence_duration == 0.8
        assert [tool.tool_name for tool in data.mcp_tools[0].tools] == [
            *("change_task", "get_memory", "set_memory"),
        ]

    async def test_a_refusal_is_data(self) -> None:  # F12
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            await client.new_contact(NEW)
            refusal = await client.change_task(CONTACT, "visit")
        assert isinstance(refusal, TaskRefused)
        assert (refusal.code, refusal.from_task) == ("missing_variables", "reception")
        assert [variable.var_id for variable in refusal.missing] == ["var_string", "var_boolean"]

    async def test_a_prompt_comes_only_when_more_than_the_clock_has_moved(self) -> None:  # F31
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            await client.new_contact(NEW)
            first = await client.prompt("conv-1")
            assert first is not None
            scene.clock.advance(minutes=5)
            assert await client.prompt("conv-1", unless=first.etag) is None
            await scene.written(entry("var_string", "ECG"))
            second = await client.prompt("conv-1", unless=first.etag)
        assert second is not None
        assert second.reply.memory_revision == first.reply.memory_revision + 1
        assert second.reply.prefix_hash == first.reply.prefix_hash

    async def test_the_memory_is_found_by_id_and_by_name(self) -> None:  # F32
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            await client.new_contact(NEW)
            await scene.written(entry("var_boolean", False))
            memory = await client.memory("conv-1")
        assert memory.value_of("var_boolean") is False
        assert memory.value_of("a boolean") is False
        assert memory.value_of("var_string") is None
        assert memory.value_of("nobody's") is None

    async def test_an_id_with_any_character_is_one_segment_of_the_path(self) -> None:
        odd = Contact("a/b?c=d#é", "call-1")
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            await client.new_contact(NewContact(odd, FlowChoice(version_id="version-1"), "phone"))
            assert await client.prompt(odd.conversation_id) is not None
            assert (await client.memory(odd.conversation_id)).revision == 1

    async def test_a_message_is_taken_once(self) -> None:  # F33
        async with open_scene(clinic()) as scene:
            client = client_of(scene)
            await client.new_contact(NEW)
            said = Utterance("m-1", AT, "user", "An ECG, please")
            first = await client.utterance(CONTACT, said)
            again = await client.utterance(CONTACT, said)
        assert (first.duplicate, again.duplicate) == (False, True)


class TestConnections:
    async def test_proxies_of_the_environment_are_not_used_and_the_key_is_sent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listening = listening_socket()
        closed = listening_socket()
        monkeypatch.setenv("HTTP_PROXY", base_of(closed))
        monkeypatch.setenv("ALL_PROXY", base_of(closed))
        async with (
            open_scene(clinic()) as scene,
            served(scene.app, listening),
            engine_http(base_of(listening), "secret") as http,
        ):
            assert http.headers["Authorization"] == "Bearer secret"
            client = EngineClient(http)
            assert client.mcp_url == f"{base_of(listening)}/mcp"
            assert (await client.new_contact(NEW)).command == "/start"
        closed.close()

    async def test_an_engine_that_is_not_there_is_unavailable(self) -> None:
        closed = listening_socket()
        async with engine_http(base_of(closed)) as http:
            closed.close()
            with pytest.raises(EngineUnavailable):
                await EngineClient(http).new_contact(NEW)


class TestCommands:
    async def test_a_command_beside_a_reply_reaches_whoever_follows_the_conversation(self) -> None:
        """contract 2"""
        command = "/human_task_failed timeout"
        taken = {"duplicate": False, "revision": 2, "language": "it-IT"}
        told = httpx2.Response(200, json={**taken, "command": command})
        client, _, _ = client_with(told, httpx2.Response(200, json={**taken, "command": None}), ENDED, told)
        heard: list[str] = []
        client.follow("conv-1", heard.append)
        client.follow("conv-2", lambda command: pytest.fail("another's"))
        for _ in range(2):
            await client.utterance(CONTACT, Utterance("m-1", AT, "user", "Pronto?"))
        await client.end_contact(CONTACT, "bye")
        assert heard == [command]
        client.follow("conv-1", None)
        await client.utterance(CONTACT, Utterance("m-2", AT, "user", "Pronto?"))
        assert heard == [command]
