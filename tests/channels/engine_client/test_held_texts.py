"""Texts that wait for a person, as an agent puts them before the engine and asks for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from channels.engine_client import approvals
from channels.engine_client.approvals import SUPERSEDED, HeldTexts, is_decided
from channels.engine_client.client import Contact
from channels.engine_client.replies import (
    AgentData,
    ApprovalState,
    EngineMisbehaved,
    StateConflict,
    TextRefused,
)
from tests.api.harness import CALL, open_scene
from tests.api.test_approvals import BETTER, DRAFT, desk
from tests.channels.engine_client.engine_doubles import client_of, client_with

pytestmark = pytest.mark.anyio

CONTACT = Contact(CALL["conversationId"], CALL["contactId"])
UNTIL = datetime(2026, 1, 15, 9, 32, tzinfo=UTC)


def text(status: str, approval_id: int = 7) -> dict[str, Any]:
    said = {"text": DRAFT, "draft": DRAFT, "reason": None, "until": "2026-01-15T09:32:00Z"}
    return {"approvalId": approval_id, "taskId": "answers", "status": status, **said}


def prompt(approval: dict[str, Any] | None) -> httpx2.Response:
    parts = {"prefix": "", "volatile": ""}
    counts = {"revision": 1, "memoryRevision": 1, "prefixHash": "x", "memoryFresh": True}
    told = {} if approval is None else {"approval": approval}
    return httpx2.Response(200, json={"prompt": "", "parts": parts, **counts, **told})


async def looked(
    *answers: httpx2.Response | Exception, status: str = "waiting", after_s: float = -1
) -> ApprovalState:
    """What is known of a text, seconds after its time, when the engine gives these answers."""
    engine, _, _ = client_with(*answers)
    texts = HeldTexts(engine, CONTACT, lambda: UNTIL + timedelta(seconds=after_s))
    return await texts.look(ApprovalState.model_validate(text(status)))


class TestTheEnginesReplies:
    async def test_a_text_waits_and_its_decision_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(approvals, "POLL_S", 0.0)
        async with open_scene(desk()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            texts = HeldTexts(client_of(scene), CONTACT, scene.clock.now)
            known = await texts.submit(DRAFT)
            assert (known.status, known.text, is_decided(known)) == ("waiting", DRAFT, False)
            assert (await texts.submit(DRAFT)).approval_id == known.approval_id, "a repetition is none"
            await scene.human("edited", text=BETTER, reason="rounded")
            fate, found = await texts.decided(known)
            assert (fate, found.text, found.draft, found.reason) == ("edited", BETTER, DRAFT, "rounded")

    async def test_another_text_takes_the_place_of_one_that_waits_for_nobody(self) -> None:
        async with open_scene(desk()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            texts = HeldTexts(client_of(scene), CONTACT, scene.clock.now)
            first, second = await texts.submit(DRAFT), await texts.submit(BETTER)
            assert (second.text, second.status, second.approval_id > first.approval_id) == (
                BETTER,
                "waiting",
                True,
            )
            entries = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
            reasons = [each["input"].get("reason") for each in entries]
            assert SUPERSEDED in reasons
            await texts.give_up("enough")
            await texts.give_up("enough")  # nothing waits any more
            assert (await texts.look(second)).status == "rejected"

    async def test_where_a_person_writes_no_text_is_taken(self) -> None:
        async with open_scene(desk()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            texts = HeldTexts(client_of(scene), CONTACT, scene.clock.now)
            known = await texts.submit(DRAFT)
            await scene.human("taken_over")
            with pytest.raises(StateConflict, match="outcome_not_possible"):
                await texts.submit(BETTER)
            assert (await texts.look(known)).status == "withdrawn"

    async def test_a_decision_that_is_not_taken_is_no_error(self) -> None:
        async with open_scene(desk()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            client = client_of(scene)
            await HeldTexts(client, CONTACT, scene.clock.now).submit(DRAFT)
            refused = await client.human_task(CONTACT, "approved", None, approval_id=999)
            assert isinstance(refused, TextRefused)
            assert (refused.code, refused.task_status) == ("another_text", "waiting")
            taken = await client.human_task(CONTACT, "approved", None, text=DRAFT)
            assert isinstance(taken, AgentData)
            assert (taken.approval_required, taken.task_status) == (True, "approved")


class TestWhatIsNotKnown:
    async def test_a_status_that_nobody_knows_is_no_decision(self) -> None:
        found = await looked(prompt(text("passed_on")))
        assert (found.status, is_decided(found)) == ("passed_on", False)

    async def test_nor_does_it_hold_a_text_for_ever(self) -> None:
        assert (await looked(prompt(text("passed_on")), after_s=29)).status == "passed_on"
        assert (await looked(prompt(text("passed_on")), after_s=31)).status == "timeout"

    async def test_an_engine_that_is_away_changes_nothing_before_the_texts_time(self) -> None:
        away = httpx2.ConnectError("away")
        assert (await looked(away)).status == "waiting"
        assert (await looked(away, after_s=31)).status == "timeout"

    @pytest.mark.parametrize("answer", [prompt(None), prompt(text("approved", 8))])
    async def test_a_text_that_the_engine_does_not_name_any_more_is_withdrawn(
        self, answer: httpx2.Response
    ) -> None:
        assert (await looked(answer)).status == "withdrawn"

    async def test_a_closed_conversation_has_withdrawn_it(self) -> None:
        gone = {"status": 409, "code": "conversation_closed", "detail": "over"}
        assert (await looked(httpx2.Response(409, json=gone))).status == "withdrawn"

    async def test_an_engine_that_says_nothing_of_texts_is_none(self) -> None:
        async with open_scene(desk()) as scene:
            started = await scene.started(channel="chat")
        engine, _, _ = client_with(httpx2.Response(200, json=started))
        with pytest.raises(EngineMisbehaved):
            await HeldTexts(engine, CONTACT, lambda: UNTIL).submit(DRAFT)
