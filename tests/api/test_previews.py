"""Templates of a document, rendered for a conversation that is stored (console: the prompt's editor)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from tests.api.harness import CALL, Scene, clinic, entry, keyring_of, open_scene

pytestmark = pytest.mark.anyio

PROMPT = (
    "Call {{ $contact.name }} of {{ $tenant.city }}: size {{ $values.size }} ({{ $vars.size }}), "
    "{{ $values.var_string }}{% if $contact.vip %} kindly{% endif %} in {{ $language }}."
)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        await opened.started(contact={"name": "Ada"}, tenant={"name": "Rome"})
        await opened.written(entry("size", "S"))
        yield opened


def edited(**changes: Any) -> dict[str, Any]:
    """The clinic in the middle of a change of its first task's prompt."""
    document = {k: v for k, v in clinic(**changes).items() if k not in ("_id", "conversationalFlowId")}
    document["tasks"][0]["prompt"] = PROMPT
    return document


async def asked(scene: Scene, query: str = "", **body: Any) -> httpx.Response:
    flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
    whole = {"conversationId": "conv-1", "task": "reception", **body}
    return await scene.post(f"/v1/flows/{flow}/render{query}", whole)


async def rendered(scene: Scene, query: str = "", **body: Any) -> dict[str, Any]:
    """The text of the first task's prompt."""
    reply = await asked(scene, query, **body)
    assert reply.status_code == 200, reply.text
    [text] = [each for each in reply.json()["texts"] if each["pointer"] == "/tasks/0/prompt"]
    return text


async def test_an_edited_prompt_reads_what_the_conversation_knows(scene: Scene) -> None:
    before = await scene.memory.driver.client.keys("*")
    text = await rendered(scene, document=edited())
    assert text["text"] == "Call Ada of [unknown: $tenant.city]: size S (memory->size),  in en-US."
    assert text["whole"] is False
    assert text["problems"] == []
    assert text["unknown"] == [
        {"name": "$values.var_string", "reason": "no_value"},
        {"name": "$contact.vip", "reason": "not_there"},
        {"name": "$tenant.city", "reason": "not_there"},
    ]
    assert sorted(await scene.memory.driver.client.keys("*")) == sorted(before), "nothing is stored"


async def test_all_texts_of_the_task_come_with_their_places(scene: Scene) -> None:
    reply = (await asked(scene, document=edited(globalPrompt="On {{ $channel }}."))).json()
    assert (reply["conversationId"], reply["seq"], reply["taskId"]) == ("conv-1", None, "reception")
    assert (reply["channel"], reply["language"]) == ("phone", "en-US")
    places = {each["pointer"]: each["text"] for each in reply["texts"]}
    assert places["/globalPrompt"] == "On phone."
    document = edited()
    following = {n for n, task in enumerate(document["tasks"]) if f"/tasks/{n}/description" in places}
    names = {document["tasks"][n]["_id"] for n in following}
    assert names == set(document["tasks"][0]["connectedTasks"])


async def test_a_saved_version_is_rendered_after_any_entry_of_the_journal(scene: Scene) -> None:
    version = await scene.save(
        (await scene.http.get("/v1/flows")).json()[0]["id"], {**edited(), "_id": "edited", "draft": True}
    )
    assert "size S" in (await rendered(scene, versionId=version))["text"]
    assert "size  (" in (await rendered(scene, versionId=version, atRevision=1))["text"], (
        "before it was known"
    )
    assert "size S" in (await rendered(scene))["text"], "the newest version is meant where none is named"


async def test_what_a_template_gets_wrong_is_told_beside_its_text(scene: Scene) -> None:
    document = edited()
    document["tasks"][0]["prompt"] = "{{ $vars.colour }} {{ size }}"
    text = await rendered(scene, document=document)
    assert text["unknown"] == [{"name": "$vars.colour", "reason": "no_variable"}]
    assert [(each["line"], each["code"]) for each in text["problems"]] == [(1, "template_unknown_name")]
    document["tasks"][0]["prompt"] = "{% if $vars.size %}never closed"
    text = await rendered(scene, document=document)
    assert text["whole"] is False
    assert text["problems"][0]["code"] == "template_unclosed"


async def test_a_task_is_named_as_everywhere(scene: Scene) -> None:  # F4
    document = edited()
    document["tasks"][0]["name"] = "Recepción del día"
    reply = await asked(scene, document=document, task="recepcion  DEL dia")
    assert (reply.status_code, reply.json()["taskId"]) == (200, "reception")


async def test_what_cannot_be_rendered_has_pointers(scene: Scene) -> None:
    broken = edited()
    broken["tasks"][0]["prompt"] = 3
    reply = await asked(scene, document=broken)
    assert (reply.status_code, reply.json()["code"]) == (422, "document_invalid")
    assert reply.json()["errors"][0]["pointer"] == "/tasks/0/prompt"
    reply = await asked(scene, document=edited(), task="nowhere")
    assert (reply.status_code, reply.json()["code"]) == (422, "task_unknown")
    assert reply.json()["errors"][0]["pointer"] == "/task"
    assert "'reception'" in reply.json()["detail"]
    reply = await asked(scene, document=edited(), versionId="version-1")
    assert (reply.status_code, reply.json()["code"]) == (422, "body_invalid")
    reply = await asked(scene, atRevision=0, task="")
    assert {each["pointer"] for each in reply.json()["errors"]} == {"/atRevision", "/task"}
    for body, code in (
        ({"conversationId": "nobody"}, "conversation_unknown"),
        ({"atRevision": 900}, "entry_unknown"),
        ({"versionId": "nothing"}, "version_unknown"),
    ):
        reply = await asked(scene, **body)
        assert (reply.status_code, reply.json()["code"]) == (404, code)
    reply = await scene.post("/v1/flows/none/render", {"conversationId": "conv-1", "task": "reception"})
    assert (reply.status_code, reply.json()["code"]) == (404, "flow_unknown")


KEYS = orjson.dumps(
    {
        "keys": [
            {"key": "all", "tenant": "a", "scopes": ["admin"]},
            {"key": "watch", "tenant": "a", "scopes": ["operator"]},
            {"key": "design", "tenant": "a", "scopes": ["designer"]},
            {"key": "other", "tenant": "b", "scopes": ["admin"]},
        ]
    }
)


def secret(document: dict[str, Any], var_id: str) -> dict[str, Any]:
    for variable in document["variables"]:
        if variable["_id"] == var_id:
            variable["sensitive"] = True
    return document


async def test_sensitive_values_are_masked_by_scope() -> None:  # console: masked by scope
    async with open_scene(authenticator=keyring_of(KEYS)) as scene:

        async def call(key: str, path: str, body: Any, method: str = "POST") -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return await scene.http.request(method, path, json=body, headers=headers)

        order = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
        flow = (await call("all", "/v1/flows", order)).json()["id"]
        document = secret({k: v for k, v in clinic().items() if k != "conversationalFlowId"}, "var_string")
        assert (await call("all", f"/v1/flows/{flow}/versions", document)).status_code == 201
        start = {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone"}
        start["contact"] = {"note": "calls about AB-1234"}
        assert (await call("all", "/v1/handle-new-contact", start)).status_code == 200
        wrote = [entry("var_string", "AB-1234"), entry("size", "S")]
        assert (await call("all", "/v1/memory/conv-1", wrote, "PUT")).status_code == 200

        draft = edited()  # the designer took the mark off
        draft["tasks"][0]["prompt"] = "{{ $values.var_string }}/{{ $contact.note }}/{{ $values.size }}"
        body = {"conversationId": "conv-1", "task": "reception", "document": draft}
        path = f"/v1/flows/{flow}/render"

        async def text_for(key: str, query: str = "", **changes: Any) -> str:
            reply = await call(key, path + query, {**body, **changes})
            assert reply.status_code == 200, reply.text
            return next(t["text"] for t in reply.json()["texts"] if t["pointer"] == "/tasks/0/prompt")

        assert await text_for("watch") == "[hidden]/calls about [hidden]/S"
        assert await text_for("all") == "[hidden]/calls about [hidden]/S"
        assert await text_for("all", "?reveal=true") == "AB-1234/calls about AB-1234/S"
        stricter = secret({**draft, "variables": [dict(v) for v in draft["variables"]]}, "var_enum")
        assert (await text_for("watch", document=stricter)).endswith("/[hidden]")
        for key, query in (("watch", "?reveal=true"), ("design", "")):
            reply = await call(key, path + query, body)
            assert (reply.status_code, reply.json()["code"]) == (403, "scope_missing")
        reply = await call("other", path, body)
        assert (reply.status_code, reply.json()["code"]) == (404, "flow_unknown")
