"""What operators and publishers do in the console: look inside, rewind, fork, take over, split, roll back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Route, expect
from redis import Redis

from flow_engine.ports.dialogue import ConversationRef
from memory.keys import ConversationKeys, index_key
from tests.browser.console import (
    CALL,
    Console,
    a_conversation,
    call,
    needs_a_browser,
    needs_a_build,
    opened_console,
    published,
    within_its_width,
)
from tests.redis_fixture import RedisServer

pytestmark = [needs_a_build, pytest.mark.filterwarnings("default")]

MANY = 10_000
PICTURED = {"conversation-wide", "conversations-narrow", "split-wide", "operations-health-wide"}
"""What the docs show."""
TO_THE_END = "() => document.querySelector('.conversation-list').scrollTo(0, 1e9)"


def checked(console: Console, name: str) -> None:
    console.is_accessible()
    within_its_width(console.page)
    if name in PICTURED:
        console.picture(name)


@needs_a_browser
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_a_conversation_is_opened_rewound_taken_over_forked_and_erased(
    tmp_path: Path, width: str
) -> None:  # what must be shown: 1
    with opened_console(tmp_path, width=width) as console:
        page, base = console.page, console.base
        console.open("/conversations")
        expect(page.get_by_role("heading", name="There are no conversations yet")).to_be_visible()
        flow_id = published(base, "clinic-v1", "clinic-v2")
        a_conversation(base, flow_id)
        console.open("/conversations")
        expect(page.get_by_text("Live · 1 conversation")).to_be_visible()
        call(
            base,
            "POST",
            "/v1/handle-new-contact",
            {**CALL, "conversationId": "conv-2", "contactId": "call-2"}
            | {
                "flowId": flow_id,
                "tag": "prod",
                "channel": "chat",
            },
        )
        expect(page.get_by_role("link", name="conv-2")).to_be_visible()
        checked(console, f"conversations-{width}")

        page.get_by_role("link", name="conv-1").click()
        expect(page.get_by_text("Refused: Visita Perché")).to_be_visible()
        expect(page.get_by_text("needs variables that have no value yet")).to_be_visible()
        expect(page.get_by_text("Not sure what it is")).to_be_visible()
        checked(console, f"conversation-{width}")

        slider = page.get_by_role("slider", name="Entry")
        slider.focus()
        page.keyboard.press("Home")
        expect(page.get_by_role("heading", name=re.compile("Entry 1 of [45]"))).to_be_visible()
        expect(page).to_have_url(f"{base}/console/conversations/conv-1?at=1")
        expect(page.get_by_role("definition").filter(has_text="reception")).to_be_visible()
        page.get_by_role("tab", name="Prompt").click()
        expect(page.get_by_role("region", name="Prompt")).to_contain_text("You answer the phone of a clinic.")
        page.get_by_role("tab", name="Path").click()
        expect(page.locator('[aria-current="true"]', has_text="reception")).to_be_visible()
        console.is_accessible()

        page.get_by_role("button", name="Fork").click()
        console.is_accessible()
        page.get_by_role("textbox", name="Id of the new conversation").fill("conv-1/again")
        page.get_by_role("dialog").get_by_role("button", name="Fork").click()
        expect(page.get_by_role("heading", name="conv-1/again")).to_be_visible()
        expect(page.get_by_text("Began as a fork")).to_be_visible()
        expect(page.get_by_role("link", name="fork of conv-1")).to_be_visible()

        console.open("/conversations/conv-1")
        page.get_by_role("button", name="Take over").click()
        expect(page.get_by_text("A person: took over")).to_be_visible()
        page.get_by_role("button", name="Release to the AI").click()
        expect(page.get_by_text("A person: released")).to_be_visible()

        page.get_by_role("button", name="Replay").click()
        page.get_by_role("dialog").get_by_role("combobox", name="Version").select_option("clinic-v2")
        page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_text("The same path")).to_be_visible()
        expect(page.get_by_text("Prompts differ at entries")).to_be_visible()
        console.is_accessible()
        page.keyboard.press("Escape")

        page.get_by_role("button", name="Erase").click()
        for_good = page.get_by_role("button", name="Erase for good")
        expect(for_good).to_be_disabled()
        page.get_by_label("To confirm, type conv-1").fill("conv-1")
        for_good.click()
        expect(page.get_by_text("conv-1 was erased.")).to_be_visible()
        console.was_clean()


@needs_a_browser
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_a_tag_is_promoted_split_and_rolled_back(tmp_path: Path, width: str) -> None:  # what must be shown: 1
    with opened_console(tmp_path, width=width) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", "clinic-v2")
        where = f"/flows/{flow_id}/publishing"
        console.open(f"{where}?show=compare")
        expect(page.get_by_text("1 change", exact=True)).to_be_visible()
        expect(page.get_by_text("/globalPrompt")).to_be_visible()
        checked(console, f"compare-{width}")

        page.get_by_role("tab", name="Tags").click()
        prod = page.get_by_role("region", name="prod")
        prod.get_by_role("button", name="Promote").click()
        page.get_by_role("dialog").get_by_role("button", name="Promote").click()
        expect(prod.get_by_text("clinic-v2", exact=True)).to_be_visible()

        prod.get_by_role("button", name="Roll back").click()
        page.get_by_role("button", name="Roll back to clinic-v1").click()
        expect(prod.get_by_text("clinic-v1", exact=True)).to_be_visible()

        prod.get_by_role("button", name="Split").click()
        page.get_by_label("Roll back by itself when a side is worse").check()
        console.is_accessible()
        page.get_by_role("dialog").get_by_role("button", name="Split").click()
        expect(prod.get_by_text("90 %")).to_be_visible()
        expect(prod.get_by_role("region", name="Outcomes")).to_contain_text("clinic-v2")
        checked(console, f"split-{width}")
        prod.get_by_role("button", name="Roll back").click()
        page.get_by_role("button", name="Roll back to clinic-v1").click()
        expect(prod.get_by_text("90 %")).to_have_count(0)

        page.get_by_role("tab", name="History").click()
        expect(page.get_by_text("Tag split")).to_be_visible()
        expect(page.get_by_text("local").first).to_be_visible()
        checked(console, f"history-{width}")

        a_conversation(base, flow_id)
        page.get_by_role("tab", name="Migrate").click()
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text("1 conversation would move.")).to_be_visible()
        page.get_by_role("button", name="Move 1 conversation").click()
        expect(page.get_by_text("1 conversation has moved.")).to_be_visible()
        page.get_by_role("tab", name="Replay").click()
        page.get_by_role("combobox", name="Conversations of the tag").select_option("prod")
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_text("Same path").first).to_be_visible()
        page.locator("details.card summary", has_text="conv-1").click()
        expect(page.get_by_role("link", name="Open the conversation")).to_be_visible()
        console.is_accessible()

        for pane in ("health", "jobs", "dead", "events", "calls", "latency", "mail"):
            console.open(f"/operations?show={pane}")
            expect(page.get_by_role("tabpanel").locator("table, .state").first).to_be_visible()
            console.is_accessible()
            within_its_width(page)
            if (pane, width) == ("latency", "wide"):
                table = page.locator(".table-frame")
                assert table.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
            if f"operations-{pane}-{width}" in PICTURED:
                console.picture(f"operations-{pane}-{width}")
        console.was_clean()


@needs_a_browser
def test_a_text_that_waits_is_edited_and_approved_by_a_person(
    tmp_path: Path,
) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", approval=True)
        a_conversation(base, flow_id)
        waits = {**CALL, "outcome": "waiting", "text": "We refund it today."}
        call(base, "POST", "/v1/handle-human-task", waits)
        console.open("/conversations/conv-1")
        text = page.get_by_label("What the agent wants to say")
        expect(text).to_have_value("We refund it today.")
        console.is_accessible()
        text.fill("We refund it this week.")
        page.get_by_role("button", name="Approve the edited text").click()
        expect(page.get_by_text("A person: edited")).to_be_visible()
        expect(text).to_have_count(0)
        call(base, "POST", "/v1/handle-human-task", {**waits, "text": "Goodbye then."})
        expect(text).to_have_value("Goodbye then.")
        page.get_by_role("button", name="Reject").click()
        expect(page.get_by_text("A person: rejected")).to_be_visible()
        console.was_clean()


@needs_a_browser
def test_versions_are_chosen_by_what_people_know_them_by(tmp_path: Path) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", "clinic-v2")
        path = f"/v1/flows/{flow_id}/versions"
        draft = {**call(base, "GET", f"{path}/clinic-v2"), "_id": "", "draft": True}
        del draft["_id"]
        made = call(base, "POST", path, draft)["versionId"]
        console.open(f"/flows/{flow_id}/publishing?show=compare")
        before = page.get_by_role("combobox", name="Before")
        day = re.compile(r"^\d+ \w+ \d{4}, \d\d:\d\d · local · ")
        expect(before).to_have_value("clinic-v2")
        listed = before.get_by_role("option").all_text_contents()
        assert [day.sub("", each) for each in listed] == [
            f"draft · {made[:8]}",
            "latest · clinic-v2",
            "prod · clinic-v1",
        ]
        expect(page.get_by_role("combobox", name="After")).to_have_value(made)
        console.was_clean()


@needs_a_browser
def test_a_new_tag_moves_none_that_is_there_and_numbers_are_typed_anew(
    tmp_path: Path,
) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", "clinic-v2")
        console.open(f"/flows/{flow_id}/publishing")
        page.get_by_role("button", name="New tag").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Tag").fill("prod")
        expect(dialog.get_by_text("“prod” is there already")).to_be_visible()
        expect(dialog.get_by_role("button", name="Promote")).to_be_disabled()
        console.is_accessible()
        dialog.get_by_label("Tag").fill("staging")
        dialog.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("region", name="staging").get_by_text("clinic-v2")).to_be_visible()
        expect(page.get_by_role("region", name="prod").get_by_text("clinic-v1")).to_be_visible()

        page.get_by_role("region", name="prod").get_by_role("button", name="Split").click()
        weight = dialog.get_by_label("Weight").first
        weight.fill("")
        expect(dialog.get_by_text("0 %", exact=True)).to_be_visible()
        weight.press_sequentially("2.5")
        expect(weight).to_have_value("2.5")
        expect(dialog.get_by_text("20 %", exact=True)).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Replay").click()
        last = page.get_by_label("The last")
        last.fill("")
        last.press_sequentially("25")
        expect(last).to_have_value("25")
        console.was_clean()


@needs_a_browser
def test_a_draft_is_offered_only_where_one_can_be_taken(tmp_path: Path) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1")
        document = {**call(base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1"), "draft": True}
        del document["_id"], document["conversationalFlowId"]
        call(base, "POST", f"/v1/flows/{flow_id}/versions", document)
        a_conversation(base, flow_id)
        console.open(f"/flows/{flow_id}/publishing")
        prod = page.get_by_role("region", name="prod")
        expect(prod.get_by_role("button", name="Split")).to_be_disabled()
        prod.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("dialog").get_by_role("option")).to_have_text([re.compile("clinic-v1")])
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Migrate").click()
        expect(page.get_by_role("heading", name="there are not two yet")).to_be_visible()
        console.open("/conversations/conv-1")
        for action, offered in (("Fork", 1), ("Replay", 2)):
            page.get_by_role("button", name=action).click()
            choice = page.get_by_role("dialog").get_by_role("combobox", name="Version")
            expect(choice.get_by_role("option")).to_have_count(offered)
            page.keyboard.press("Escape")
        drafted = call(base, "POST", "/v1/flows", {"name": "New", "campaignId": "c", "updatedBy": "ada"})[
            "id"
        ]
        call(base, "POST", f"/v1/flows/{drafted}/versions", document)
        console.open(f"/flows/{drafted}/publishing")
        expect(page.get_by_text("Drafts never run")).to_be_visible()
        expect(page.get_by_role("button", name="New tag")).to_be_disabled()
        console.was_clean()


@needs_a_browser
def test_conversations_are_moved_by_the_mapping_that_was_tried_and_by_no_other(
    tmp_path: Path,
) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", "clinic-v2")
        start = {**CALL, "flowId": flow_id, "tag": "prod", "channel": "phone"}
        call(base, "POST", "/v1/handle-new-contact", start)
        console.open(f"/flows/{flow_id}/publishing?show=migrate")
        mapping = page.get_by_role("textbox")
        expect(page.get_by_role("button", name="Dry run")).to_be_enabled()
        expect(page.get_by_role("button", name="Move")).to_have_count(0)
        page.get_by_role("button", name="Dry run").click()
        move = page.get_by_role("button", name="Move 1 conversation")
        expect(move).to_be_enabled()
        mapping.fill("reception -> visit")
        expect(move).to_be_disabled()
        mapping.fill("")
        expect(move).to_be_enabled()
        mapping.fill("reception -> visit")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_role("cell", name="visit")).to_be_visible()
        move.click()
        expect(page.get_by_text("1 conversation has moved.")).to_be_visible()
        assert call(base, "GET", "/v1/conversations/conv-1")["task"] == "Visita Perché"
        console.was_clean()


@needs_a_browser
def test_what_was_typed_over_one_waiting_text_is_not_sent_in_place_of_the_next(
    tmp_path: Path,
) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", approval=True)
        a_conversation(base, flow_id)

        def human(outcome: str, **more: str) -> None:
            call(base, "POST", "/v1/handle-human-task", {**CALL, "outcome": outcome, **more})

        human("waiting", text="We refund it today.")
        console.open("/conversations/conv-1")
        text = page.get_by_label("What the agent wants to say")
        text.fill("We refund it this week.")
        human("approved")  # by a colleague, while this person is still typing
        human("waiting", text="You come on Monday.")
        expect(text).to_have_value("You come on Monday.")
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(page.get_by_text("A person: approved")).to_have_count(2)
        rows = call(base, "GET", "/v1/conversations/conv-1/journal")
        assert "this week" not in json.dumps(rows)
        console.was_clean()


@needs_a_browser
def test_an_edit_begun_on_the_next_waiting_text_outlives_a_late_reply_to_the_one_before(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        a_conversation(base, published(base, "clinic-v1", approval=True))
        waits = {**CALL, "outcome": "waiting"}
        call(base, "POST", "/v1/handle-human-task", {**waits, "text": "We refund it today."})
        late: list[tuple[Route, APIResponse]] = []
        page.route("**/v1/handle-human-task", lambda route: late.append((route, route.fetch())))
        console.open("/conversations/conv-1")
        text = page.get_by_label("What the agent wants to say")
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(page.get_by_text("A person: approved")).to_be_visible()
        call(base, "POST", "/v1/handle-human-task", {**waits, "text": "You come on Monday."})
        expect(text).to_have_value("You come on Monday.")
        text.fill("You come on Tuesday.")
        ((route, response),) = late
        route.fulfill(response=response)
        expect(page.get_by_role("button", name="Reject")).to_be_enabled()
        expect(text).to_have_value("You come on Tuesday.")
        console.was_clean()


def many_conversations(redis: RedisServer, base: str) -> None:
    """As many as a busy day has: each with the head of a real one, which is all that lists read."""
    a_conversation(base, published(base, "clinic-v1"))
    with Redis.from_url(redis.url) as client:
        one = ConversationKeys.of(ConversationRef("default", "conv-1")).named["snapshot"]
        fields: Any = client.hgetall(one)
        head = {name: fields[name] for name in (b"head", b"origin", b"seq", b"updatedAt")}
        (found,) = client.zrange(index_key("default"), 0, -1, withscores=True)
        pipeline = client.pipeline(transaction=False)
        for number in range(1, MANY):
            named = f"day-{number:05d}"
            keys = ConversationKeys.of(ConversationRef("default", named)).named
            pipeline.hset(keys["snapshot"], mapping=head)
            pipeline.zadd(index_key("default"), {named: float(found[1])})
        pipeline.execute()


@needs_a_browser
def test_ten_thousand_conversations_scroll(
    tmp_path: Path, start_redis: Callable[[], RedisServer]
) -> None:  # what must be shown: 2
    redis = start_redis()
    with opened_console(
        tmp_path, FLOW_ENGINE_REDIS_URL=redis.url, FLOW_ENGINE_REDIS_UNSAFE="true"
    ) as console:
        many_conversations(redis, console.base)
        page = console.page
        console.open("/conversations")
        expect(page.get_by_text("200 loaded, more below")).to_be_visible()
        drawn = page.locator(".conversation-list li")
        for _ in range(400):
            page.evaluate(TO_THE_END)
            if page.get_by_text("10,000 conversations").count():
                break
            page.wait_for_timeout(100)
        expect(page.get_by_text("10,000 conversations")).to_be_visible()
        assert 0 < drawn.count() < 60, "only what is seen is drawn"
        page.evaluate(TO_THE_END)
        expect(page.locator(f'li[aria-posinset="{MANY}"]')).to_be_visible()
        console.is_accessible()
        console.was_clean()
