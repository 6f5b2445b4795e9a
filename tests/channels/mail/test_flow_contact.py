"""A thread of mails as a contact of the real engine: escalating, changing tasks, leaving (M11, F34)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from channels.mail.config import FlowChoice
from channels.mail.flow import EngineContact, FlowRun, conversation_of
from flow_engine.errors import CallTheOperator, RetryLater
from tests.api.harness import Scene, clinic, entry, needs, open_scene
from tests.channels.engine_client.engine_doubles import client_of, client_with
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio

DECLARED = FlowChoice.model_validate({"engine_url": "http://127.0.0.1:8080", "version": "version-1"})
RUN = FlowRun("run-1", conversation_of("INBOX of ada", "<thread@example.com>"), {"name": "Ada"})


def test_a_key_that_no_header_can_hold_is_a_mistake_of_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOW_ENGINE_API_KEY", "cl\u00e9")
    with pytest.raises(ValidationError, match="accepted is a key of one line of ASCII"):
        FlowChoice.model_validate({"engine_url": "http://127.0.0.1:8080", "version": "version-1"})


def mailable(**operator: Any) -> JsonObject:
    """The clinic, open for mail; `operator` are changes to its human task."""
    document = clinic(channels=["phone", "chat", "mail"])
    by_id = {task["_id"]: task for task in document["tasks"]}
    by_id["operator"].update(operator)
    return document


@asynccontextmanager
async def mailing(document: JsonObject) -> AsyncIterator[tuple[Scene, EngineContact]]:
    async with open_scene(document) as scene:
        yield scene, EngineContact(client_of(scene), DECLARED, RUN, scene.clock)


async def entered(scene: Scene, contact: EngineContact) -> None:
    """The mail has come: its contact is there."""
    ids = {"conversationId": contact.conversation_id, "contactId": RUN.run_id}
    await scene.started(**ids, channel="mail")


async def told(scene: Scene, contact: EngineContact) -> list[tuple[str, Any]]:
    """What the engine has told of the conversation: kinds and bodies of the agent's messages."""
    events = await scene.events(contact.conversation_id)
    return [(event["type"], event["body"]) for event in events if event["type"] != "system"]


class TestEscalating:
    async def test_it_changes_to_the_human_task_and_is_told_in_the_dialogue(self) -> None:
        async with mailing(mailable()) as (scene, contact):
            assert await contact.escalate("a complaint") == {"status": "escalated", "task": "operator"}  # M11
            assert await told(scene, contact) == [("tool", "escalate: a complaint")]
            prompt = await scene.prompt(contact.conversation_id)
            assert prompt["revision"] == 2

    async def test_in_a_human_task_it_is_escalated_already(self) -> None:
        async with mailing(mailable()) as (_, contact):
            first = await contact.escalate("a complaint")
            assert await contact.escalate("once more") == first  # M11

    @pytest.mark.parametrize(
        "operator",
        [
            {"transitionParameters": needs("var_string")},
            {"channels": ["phone"]},
            {"entryCondition": {"when": "vars.var_boolean == true"}},
        ],
        ids=["missing-variables", "another-channel", "unmet-condition"],
    )
    async def test_where_no_human_task_can_be_entered_the_model_is_told_so(
        self, operator: JsonObject
    ) -> None:
        async with mailing(mailable(**operator)) as (scene, contact):
            assert await contact.escalate("a complaint") == {  # M11
                "error": "no human task of the flow can be reached from here"
            }
            assert await told(scene, contact) == []

    async def test_nor_where_the_flow_has_none(self) -> None:
        document = mailable()
        document["tasks"][0]["connectedTasks"] = ["visit", "supervised"]
        async with mailing(document) as (_, contact):
            answer = await contact.escalate("a complaint")
            assert answer == {"error": "no human task of the flow can be reached from here"}  # M11

    async def test_once_what_was_missing_is_there_it_goes(self) -> None:
        async with mailing(mailable(transitionParameters=needs("var_string"))) as (scene, contact):
            assert "error" in await contact.escalate("a complaint")
            written = entry("var_string", "Ada", contactId="run-1")
            await scene.written(written, conversation=contact.conversation_id)
            assert await contact.escalate("a complaint") == {"status": "escalated", "task": "operator"}

    async def test_long_reasons_are_cut_for_the_dialogue(self) -> None:
        async with mailing(mailable()) as (scene, contact):
            await contact.escalate("x" * 5_000)
            ((_, body),) = await told(scene, contact)
            assert body == "escalate: " + "x" * (2_000 - len("escalate: "))  # A16


class TestLeaving:
    async def test_an_answered_mail_is_told_and_ends_its_contact(self) -> None:
        async with mailing(mailable()) as (scene, contact):
            await entered(scene, contact)
            await contact.leave("We are open on Monday.")
            assert await told(scene, contact) == [("message", "We are open on Monday.")]  # M2
            reply = await scene.http.get(f"/v1/prompt/{contact.conversation_id}")
            assert (reply.status_code, reply.json()["code"]) == (409, "conversation_closed")

    @pytest.mark.parametrize("answer", [None, "", "  \n"])
    async def test_without_an_answer_nothing_is_told(self, answer: str | None) -> None:
        async with mailing(mailable()) as (scene, contact):
            await contact.leave(answer)
            assert await told(scene, contact) == []

    async def test_one_that_a_person_has_now_stays_open(self) -> None:
        async with mailing(mailable()) as (scene, contact):
            await contact.escalate("a complaint")
            await contact.leave("A colleague will write to you.")
            assert (await scene.prompt(contact.conversation_id))["revision"] >= 2  # F34: not closed

    async def test_leaving_again_changes_nothing(self) -> None:
        async with mailing(mailable()) as (scene, contact):
            await entered(scene, contact)
            await contact.leave("Monday.")
            await contact.leave("Monday.")
            assert await told(scene, contact) == [("message", "Monday.")]  # M1: exactly one run

    @pytest.mark.parametrize("answer", [None, "Monday."])
    async def test_leaving_what_another_mail_has_taken_over_is_no_failure(self, answer: str | None) -> None:
        async with mailing(mailable()) as (scene, contact):
            await entered(scene, contact)
            await scene.started(conversationId=contact.conversation_id, contactId="run-2", channel="mail")
            await contact.leave(answer)
            assert (await scene.prompt(contact.conversation_id))["revision"] >= 2  # M1: the other's goes on


class TestIds:
    def test_a_thread_is_one_conversation_whatever_its_names(self) -> None:
        same = {conversation_of("a", "t"), conversation_of("a", "t")}
        others = {conversation_of("a", "u"), conversation_of("b", "t"), conversation_of("a\0t", "")}
        assert len(same) == 1
        assert not same & others
        assert len(others) == 3
        assert all(len(id) == len("mail-") + 32 for id in same | others)


class TestTrouble:
    async def test_an_engine_that_is_away_is_tried_again_later(self) -> None:
        async with open_scene() as scene:
            engine, _, _ = client_with(httpx2.ConnectError("refused"))
            contact = EngineContact(engine, DECLARED, RUN, scene.clock)
            with pytest.raises(RetryLater) as raised:
                await contact.escalate("a complaint")
            assert raised.value.code == "engine_unavailable"  # M9

    async def test_one_that_takes_nothing_is_an_operators_business(self) -> None:
        async with mailing(mailable()) as (scene, _):
            declared = FlowChoice.model_validate({"engine_url": "http://127.0.0.1:8080", "version": "none"})
            contact = EngineContact(client_of(scene), declared, RUN, scene.clock)
            with pytest.raises(CallTheOperator) as raised:
                await contact.leave(None)
            assert raised.value.code == "engine_refused"
