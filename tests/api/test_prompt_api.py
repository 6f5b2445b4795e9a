"""The prompt of the moment over HTTP (F31)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundReply
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.transactor import Transactor
from tests.api.harness import HANDLER, clinic, entry, open_scene, over_many_contacts
from tests.flow_engine.listening.test_mining import dependencies_of

pytestmark = pytest.mark.anyio
PATH = "/v1/prompt/conv-1"


async def test_the_prompt_is_its_two_parts_joined() -> None:
    async with open_scene(clinic()) as scene:
        started = await scene.started(contact={"callerId": "+39061234567"})
        reply = await scene.prompt()
        assert reply.keys() == {
            *("prompt", "revision", "memoryRevision", "prefixHash", "parts", "memoryFresh", "command"),
            "suggestedTasks",
        }  # F31
        parts = reply["parts"]
        assert reply["prompt"] == parts["prefix"] + "\n\n" + parts["volatile"] == started["prompt"]
        assert (reply["revision"], reply["memoryRevision"]) == (1, 0)
        assert reply["prefixHash"] == started["prefixHash"]
        assert reply["memoryFresh"] is True
        assert "+39061234567" in parts["volatile"]
        assert "+39061234567" not in parts["prefix"]


@pytest.mark.parametrize("path", [PATH, "/prompt/conv-1"])
async def test_post_and_the_bare_path_answer_the_same(path: str) -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        got = await scene.http.get(PATH)
        for body in (b"", b"{}"):
            posted = await scene.http.post(path, content=body)
            assert (posted.status_code, posted.content) == (200, got.content)  # F31
            assert posted.headers["etag"] == got.headers["etag"]


async def test_304_when_nothing_but_the_clock_has_moved() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        first = await scene.http.get(PATH)
        tag = first.headers["etag"]
        scene.clock.advance(minutes=5)
        for sent in (tag, f'"other", {tag}', f"W/{tag}"):
            for method in ("GET", "POST"):
                unchanged = await scene.http.request(method, PATH, headers={"If-None-Match": sent})
                assert (unchanged.status_code, unchanged.content) == (304, b"")  # F31
                assert unchanged.headers["etag"] == tag
        assert (await scene.http.get(PATH, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_a_later_conversation_under_the_same_id_has_another_tag() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        tag = (await scene.http.get(PATH)).headers["etag"]
        assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
        scene.clock.advance(seconds=1)
        await scene.started(contact={"callerId": "+390687654321"})
        reply = await scene.http.get(PATH, headers={"If-None-Match": tag})
        assert reply.status_code == 200  # F31


async def test_the_tag_changes_with_memory_task_contact_and_form() -> None:
    async with open_scene(over_many_contacts()) as scene:
        await scene.started()
        tags = [(await scene.http.get(PATH)).headers["etag"]]

        async def look(query: str = "") -> None:
            reply = await scene.http.get(PATH + query, headers={"If-None-Match": ", ".join(tags)})
            assert reply.status_code == 200  # F31
            tags.append(reply.headers["etag"])

        await scene.written(entry("size", "S"))
        await look()
        await scene.changed("operator")
        await look()
        await scene.human("connected")
        await look()
        await scene.started(contactId="call-2")
        await look()
        await look("?format=toon")
        assert len(set(tags)) == 6


async def test_the_memory_may_be_asked_for_as_toon() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.written(entry("size", "S"), entry("var_number", 4))
        markdown = (await scene.http.get(f"{PATH}?format=markdown")).json()
        toon = (await scene.http.get(f"{PATH}?format=toon")).json()
        assert "|size||S|" in markdown["parts"]["volatile"]  # F21
        assert "memory[2]{var,property,value}:" in toon["parts"]["volatile"]
        assert toon["prefixHash"] == markdown["prefixHash"]


async def test_the_setting_chooses_the_form_where_nothing_is_asked() -> None:
    async with open_scene(clinic(), memory_format="toon") as scene:
        await scene.started()
        await scene.written(entry("size", "S"))
        assert "memory[1]{" in (await scene.prompt())["prompt"]  # F21


@pytest.mark.parametrize(
    "query",
    [
        *("wait_ms=-1", "wait_ms=10001", "wait_ms=1.5", "wait_ms=abc", "wait_ms=", "wait_ms=+5", "wait_ms=٣"),
        *("wait_ms=0000000000000000000099999", "wait_ms=" + "9" * 5000, "format=xml", "format="),
    ],
    ids=lambda query: query[:20],
)
async def test_a_query_that_cannot_be_taken_is_422(query: str) -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        reply = await scene.http.get(f"{PATH}?{query}")
        name = query.partition("=")[0]
        assert (reply.status_code, reply.json()["code"]) == (422, f"{name}_invalid")  # F31


@pytest.mark.parametrize("wait", ["0", "1", "10000", "007"])
async def test_without_an_extraction_in_flight_nobody_waits(wait: str) -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        assert (await scene.http.get(f"{PATH}?wait_ms={wait}")).json()["memoryFresh"] is True  # F31


async def test_who_waits_looks_again_ever_more_seldom() -> None:  # F31, C
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.say("m1", "An ECG")  # and no worker reads it
        shared = replace(dependencies_of(scene), pause=pause)
        dialogue = DialogueService(Transactor(shared), shared)
        view = await dialogue.prompt(ConversationRef("default", "conv-1"), wait_s=10.0)
    assert not view.fresh
    assert sum(pauses) == pytest.approx(10.0, abs=0.25)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.03, 0.25)
    assert len(pauses) < 50


async def test_after_the_end_it_is_409() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        tag = (await scene.http.get(PATH)).headers["etag"]
        await scene.end()
        for method in ("GET", "POST"):
            reply = await scene.http.request(method, PATH, headers={"If-None-Match": tag})
            assert (reply.status_code, reply.json()["code"]) == (409, "conversation_closed")  # F31


async def test_an_unknown_conversation_is_404() -> None:
    async with open_scene(clinic()) as scene:
        reply = await scene.http.get(PATH)
        assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown")  # F31


async def test_reading_the_prompt_changes_nothing() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        client = scene.memory.driver.client

        async def state() -> Any:
            return [await client.hgetall("{default:conv-1}::snapshot"), await scene.events()]

        before = await state()
        for _ in range(3):
            await scene.prompt()
        assert await state() == before  # F31


async def test_between_contacts_the_memory_is_still_there_to_be_read() -> None:
    async with open_scene(over_many_contacts(), answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        await scene.started()
        await scene.written(entry("size", "S"))
        await scene.end()
        assert (await scene.http.get("/v1/memory/conv-1")).json()["vars"][5]["value"] == "S"  # F32
