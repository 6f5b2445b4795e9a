"""Connections that are suggested, and those that are taken without being asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_engine.documents import parse_version
from flow_engine.linting import lint
from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import HANDLER, Scene, entry, multi_contact, needs, open_scene
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task, hum_task, minimal_version

pytestmark = pytest.mark.anyio

NAMED = {"when": "has(vars.var_string)", "advance": "auto"}
COUNTED = {"when": "vars.var_number > 1", "advance": "auto"}


def booking(ways: JsonObject | None = None, **changes: Any) -> JsonObject:
    """`who` → `count` → `book`; `who` and `book` lead to one another too, and `aside` is a digression."""
    tasks = [
        aio_task("who", connectedTasks=["count", "book", "operator"]),
        aio_task("count", name="how many", connectedTasks=["book", "who"]),
        aio_task("book", connectedTasks=["who"], transitionParameters=needs("var_number")),
        aio_task("aside", returns=True),
        hum_task(connectedTasks=["who"]),
    ]
    for source, conditions in (ways or {}).items():
        next(task for task in tasks if task["_id"] == source)["connectionConditions"] = conditions
    return minimal_version(tasks=tasks, firstTask="who", globalTasks=["aside"], **changes)


CHAIN = {"who": {"count": NAMED}, "count": {"book": COUNTED}}


async def moves(scene: Scene) -> list[tuple[str, str, str | None]]:
    bodies = [e["body"] for e in await scene.events() if isinstance(e["body"], dict)]
    return [(b["from"], b["to"], b.get("by")) for b in bodies if b["subtype"] == "task_changed"]


async def operations(scene: Scene) -> list[tuple[str, str]]:
    reply = await scene.http.get("/v1/conversations/conv-1/journal")
    return [(each["input"]["op"], each["outcome"]["task"]) for each in reply.json()["entries"]]


async def task_now(scene: Scene) -> str:
    return (await scene.started())["taskId"]


# --- suggested ------------------------------------------------------------------------------------


async def test_an_open_connection_is_suggested_in_the_volatile_part() -> None:
    async with open_scene(booking({"who": {"book": {"advance": "suggest"}}})) as scene:
        begun = await scene.started()
        before = await scene.prompt()
        assert before["suggestedTasks"] == []
        reply = await scene.written(entry("var_number", 3))
        assert "advanced" not in reply
        after = await scene.prompt()
        assert after["suggestedTasks"] == ["book"]
        assert "Go on with one of them now" in after["parts"]["volatile"]
        assert after["parts"]["volatile"].index("\n- book\n") > 0
        assert after["prefixHash"] == before["prefixHash"] == begun["prefixHash"]
        assert await task_now(scene) == "who"
        await scene.written(entry("var_number", None))
        assert (await scene.prompt())["suggestedTasks"] == []


async def test_a_suggestion_waits_for_channel_variables_and_both_conditions() -> None:
    way = {"when": "has(vars.var_string)", "reason": "Ask first.", "advance": "suggest"}
    document = booking({"who": {"book": way}})
    document["channels"] = ["phone", "chat"]
    document["tasks"][2] |= {"channels": ["phone"], "entryCondition": {"when": "vars.var_number > 1"}}
    async with open_scene(document) as scene:
        await scene.started()
        for write, expected in (
            (entry("var_string", "x"), []),
            (entry("var_number", 1), []),
            (entry("var_number", 2), ["book"]),
        ):
            await scene.written(write)
            assert (await scene.prompt())["suggestedTasks"] == expected
        await scene.started(conversationId="conv-2", channel="chat", contactId="chat-1")
        await scene.written(
            entry("var_string", "x", contactId="chat-1"),
            entry("var_number", 2, contactId="chat-1"),
            conversation="conv-2",
        )
        assert (await scene.prompt("conv-2"))["suggestedTasks"] == []


async def test_a_suggestion_by_the_clock_is_another_etag() -> None:
    way = {"when": "now >= '2026-01-15T09:30:20Z'", "advance": "suggest"}
    async with open_scene(booking({"who": {"count": way}})) as scene:
        await scene.started()
        first = await scene.http.get("/v1/prompt/conv-1")
        assert first.json()["suggestedTasks"] == []
        scene.clock.advance(seconds=20)
        again = await scene.http.get("/v1/prompt/conv-1", headers={"If-None-Match": first.headers["ETag"]})
        assert again.json()["suggestedTasks"] == ["count"]


# --- by itself ------------------------------------------------------------------------------------


async def test_a_write_that_opens_a_connection_moves_the_conversation_in_the_same_commit() -> None:
    async with open_scene(booking({"who": {"count": NAMED}})) as scene:
        begun = await scene.started()
        quiet = await scene.written(entry("var_number", 1))
        assert quiet == {"revision": begun["revision"], "memoryRevision": quiet["memoryRevision"]}
        reply = await scene.written(entry("var_string", "Ann"))
        assert reply["advanced"] == {"from": "who", "to": "how many"}
        assert (reply["revision"], reply["memoryRevision"]) == (
            begun["revision"] + 1,
            quiet["memoryRevision"] + 1,
        )
        assert await moves(scene) == [("who", "how many", "advance")]
        assert await operations(scene) == [
            ("handle-new-contact", "who"),
            ("memory", "who"),
            ("memory", "how many"),
        ]
        prompt = await scene.prompt()
        assert prompt["command"] == "/start_task how many AIO"  # told once, to whoever asks first
        assert prompt["prefixHash"] != begun["prefixHash"]
        assert (await scene.prompt())["command"] is None
        row = (await scene.http.get("/v1/conversations/conv-1")).json()
        assert row["task"] == "how many"


async def test_a_moment_of_the_journal_shows_the_reply_with_its_advance() -> None:
    async with open_scene(booking({"who": {"count": NAMED}})) as scene:
        await scene.started()
        sent = await scene.write(entry("var_string", "Ann"))
        moment = (await scene.http.get("/v1/conversations/conv-1/at/2")).json()
        assert moment["reply"] == sent.text
        assert moment["state"]["taskId"] == "count"
        assert moment["prompt"] == (await scene.prompt())["prompt"]


async def test_what_held_when_a_task_was_asked_for_is_suggested_and_not_taken() -> None:
    async with open_scene(booking(CHAIN)) as scene:
        await scene.started()
        await scene.written(entry("var_number", 2), entry("var_string", "Ann"))
        await scene.changed("who")
        asked = await scene.changed("how many")
        assert (asked["taskId"], asked.get("advanced")) == ("count", None)
        assert (await scene.prompt())["suggestedTasks"] == ["book"]
        assert "advanced" not in await scene.written(entry("var_number", 3))
        await scene.written(entry("var_number", 0))
        assert (await scene.written(entry("var_number", 5)))["advanced"]["to"] == "book"  # it closed between


async def test_a_chain_goes_on_as_far_as_it_is_open() -> None:
    async with open_scene(booking(CHAIN)) as scene:
        await scene.started()
        await scene.written(entry("var_number", 2))  # known before it is asked for
        reply = await scene.written(entry("var_string", "Ann"))
        assert reply["advanced"] == {"from": "who", "to": "book"}
        assert await moves(scene) == [("who", "how many", "advance"), ("how many", "book", "advance")]
        assert (await scene.prompt())["command"] == "/start_task book AIO"


async def test_a_circle_ends_where_it_would_enter_a_task_again() -> None:
    ways = {**CHAIN, "book": {"who": {"when": "has(vars.var_string)", "advance": "auto"}}}
    async with open_scene(booking(ways)) as scene:
        await scene.started()
        reply = await scene.written(entry("var_string", "Ann"), entry("var_number", 2))
        assert reply["advanced"] == {"from": "who", "to": "book"}
        assert len(await moves(scene)) == 2


async def test_refusals_and_entries_lead_on_too() -> None:
    ways = {"who": {"operator": {"when": "refusals('book') >= 2", "advance": "auto"}}}
    async with open_scene(booking(ways)) as scene:
        await scene.started()
        first = (await scene.change("book")).json()
        assert (first["code"], first.get("advanced")) == ("missing_variables", None)
        second = (await scene.change("book")).json()
        assert (second["result"], second["code"]) == (False, "missing_variables")
        assert second["advanced"] == {"from": "who", "to": "operator"}
        assert second["command"] == "/start_task operator HUM"
        kinds = [e["body"]["subtype"] for e in await scene.events()]
        assert kinds[-3:] == ["task_refused", "task_changed", "routing_requested"]
        data = await scene.started()
        assert (data["taskType"], data["taskStatus"]) == ("HUM", "routing")


async def test_a_conversation_starts_returns_and_resumes_where_connections_lead() -> None:
    ways = {"who": {"count": {"when": "contact.vip == true or has(vars.var_string)", "advance": "auto"}}}
    document = booking(ways, closureConfig=multi_contact())
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
    async with open_scene(document, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        vip = await scene.started(contact={"vip": True})
        assert (vip["taskId"], vip["command"]) == ("count", "/start")
        assert vip["advanced"] == {"from": "who", "to": "how many"}
        assert (await scene.prompt())["command"] is None  # the reply told all
        await scene.started(conversationId="conv-2", contactId="call-2")
        two = {"conversationId": "conv-2", "contactId": "call-2"}
        await scene.changed("aside", **two)
        write = entry("var_string", "Ann", contactId="call-2")
        assert "advanced" not in await scene.written(write, conversation="conv-2")
        back = await scene.changed("back", **two)
        assert (back["taskId"], back["advanced"]) == ("count", {"from": "who", "to": "how many"})
        assert back["command"] == "/start_task how many AIO"
        await scene.started(conversationId="conv-3", contactId="call-3")
        await scene.end(conversationId="conv-3", contactId="call-3")
        write = entry("var_string", "Ann", contactId="call-3")
        assert "advanced" not in await scene.written(write, conversation="conv-3")  # nobody is there
        later = await scene.started(conversationId="conv-3", contactId="call-4")
        assert (later["taskId"], later["command"]) == ("count", "/resume")


async def test_what_the_clock_opens_is_entered_by_who_asks_for_the_prompt() -> None:
    way = {"when": "now >= '2026-01-15T09:31:00Z'", "advance": "auto"}
    async with open_scene(booking({"who": {"count": way}})) as scene:
        await scene.started()
        assert (await scene.prompt())["command"] is None
        scene.clock.advance(minutes=2)
        prompt = await scene.prompt()
        assert prompt["command"] == "/start_task how many AIO"
        assert (await operations(scene))[-1] == ("advance", "how many")
        assert (await moves(scene))[-1] == ("who", "how many", "advance")
        moment = (await scene.http.get("/v1/conversations/conv-1/at/2")).json()
        assert moment["prompt"] == prompt["prompt"]
        assert moment["reply"] is not None


async def test_a_message_leads_on_by_its_language_and_is_told_before_the_change() -> None:
    way = {"when": "language == 'en-US'", "advance": "auto"}
    document = booking({"who": {"count": way}}, supportedLanguages=["it-IT", "en-US"])
    async with open_scene(document) as scene:
        await scene.started(language="it-IT")
        reply = (await scene.say("m1", "Hello", language="en-US")).json()
        assert reply["advanced"] == {"from": "who", "to": "how many"}
        assert reply["command"] == "/start_task how many AIO"
        again = (await scene.say("m1", "Hello", language="en-US")).json()
        assert (again["duplicate"], again.get("advanced")) == (True, None)
        told = [e for e in await scene.events() if e["type"] == "message" or "from" in e["body"]]
        assert [(e["type"], e["taskName"]) for e in told] == [("message", "who"), ("system", "how many")]


async def test_a_command_of_a_task_that_was_left_again_is_never_told() -> None:
    async with open_scene(booking({"who": {"count": NAMED}})) as scene:
        await scene.started()
        await scene.written(entry("var_string", "Ann"))
        assert (await scene.changed("who"))["command"] == "/start_task who AIO"
        assert (await scene.prompt())["command"] is None


async def test_a_command_waits_for_the_agent_of_the_active_contact() -> None:  # F25
    document = booking({"who": {"count": NAMED}}, closureConfig=multi_contact())
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
    async with open_scene(document) as scene:
        await scene.started()
        scene.clock.advance(seconds=1)
        await scene.started(contactId="call-2")  # the first one is over: its agent may not know yet
        await scene.written(entry("var_string", "Ann", contactId="call-2"))
        assert (await scene.say("m1", "Hello?")).json()["command"] is None
        assert (await scene.end()).json()["command"] is None
        said = (await scene.say("m2", "Good morning", contactId="call-2")).json()
        assert said["command"] == "/start_task how many AIO"
        assert (await scene.prompt())["command"] is None


async def test_a_closed_or_waiting_conversation_does_not_move() -> None:
    async with open_scene(booking({"who": {"count": NAMED}})) as scene:
        await scene.started()
        await scene.end()
        assert (await scene.write(entry("var_string", "Ann"))).status_code == 409
        assert await moves(scene) == []


async def test_a_repeated_write_gets_the_reply_of_the_first() -> None:
    async with open_scene(booking({"who": {"count": NAMED}})) as scene:
        await scene.started()
        key = {"Idempotency-Key": "w1"}
        body = b'[{"updatedBy":"t","contactId":"call-1","varId":"var_string","value":"Ann"}]'
        first = await scene.http.put("/v1/memory/conv-1", content=body, headers=key)
        again = await scene.http.put("/v1/memory/conv-1", content=body, headers=key)
        assert first.content == again.content
        assert first.json()["advanced"]["to"] == "how many"
        assert len(await moves(scene)) == 1


# --- laws -----------------------------------------------------------------------------------------

_WRITES = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), st.sampled_from(["var_string", "var_number"]), st.sampled_from([None, 1, 2])
        ),
        st.tuples(st.just("change"), st.sampled_from(["who", "count", "book", "aside", "back"]), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_WRITES, how=st.sampled_from(["suggest", "auto"]))
async def test_moves_are_told_by_replies_events_and_journal_alike(steps: list[Any], how: str) -> None:
    ways = {s: {t: {**way, "advance": how} for t, way in each.items()} for s, each in CHAIN.items()}
    async with open_scene(booking(ways)) as scene:
        await scene.started()
        told: list[tuple[str, str]] = []
        for kind, name, value in steps:
            if kind == "write":
                sent = None if value is None else str(value) if name == "var_string" else value
                reply = await scene.written(entry(name, sent))
            else:
                reply = (await scene.change(name)).json()
            if "advanced" in reply:
                told.append((reply["advanced"]["from"], reply["advanced"]["to"]))
        by_itself = [(f, t) for f, t, by in await moves(scene) if by == "advance"]
        assert bool(told) == bool(by_itself)
        assert how == "auto" or not told
        entries = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
        noted = [e["outcome"]["advanced"] for e in entries if "advanced" in e["outcome"]]
        assert [(each["from"], each["to"]) for each in noted] == told
        assert {pair[0] for pair in told} <= {pair[0] for pair in by_itself}
        prompt = await scene.prompt()
        suggested = set(prompt["suggestedTasks"])
        rows = {r["taskId"]: r for r in (await scene.started())["reachableTasks"]}
        assert all(not rows[t]["missingVariables"] and rows[t]["condition"] != {} for t in suggested)


# --- documents ------------------------------------------------------------------------------------


def codes(document: JsonObject) -> set[tuple[str, str]]:
    found = lint(parse_version(document), ENVIRONMENT)
    return {(f.pointer, f.code) for f in found if f.code.startswith("advance")}


def test_the_linter_tells_what_waits_for_nothing_and_what_goes_round() -> None:
    place = "/tasks/0/connectionConditions/count/advance"
    assert codes(booking({"who": {"count": {"advance": "auto"}}})) == {(place, "advance_at_once")}
    assert codes(booking({"who": {"count": {"advance": "suggest"}}})) == set()
    assert codes(booking({"who": {"book": {"advance": "auto"}}})) == set()  # `book` requires something
    round_and_round = {"who": {"count": NAMED}, "count": {"who": NAMED}}
    assert codes(booking(round_and_round)) == {(place, "advance_circle")}
    apart = {
        "who": {"count": NAMED},
        "count": {"who": {"when": "not has(vars.var_string)", "advance": "auto"}},
    }
    assert codes(booking(apart)) == set()
    assert codes(booking(CHAIN)) == set()


async def test_another_word_for_advance_is_refused() -> None:
    async with open_scene() as scene:
        flow = {"name": "f", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        body = booking({"who": {"count": {"advance": "always"}}}) | {"conversationalFlowId": flow_id}
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", body)
        assert reply.status_code == 422
        assert [(e["pointer"], e["code"]) for e in reply.json()["errors"]] == [
            ("/tasks/0/connectionConditions/count/advance", "not_allowed")
        ]
