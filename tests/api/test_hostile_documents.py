"""Version documents that are meant to hurt: each has its refusal, and the service goes on (F2, F9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from api.gateway import MAX_BODY_BYTES
from tests.api.harness import Scene, clinic, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task, many_tasks, minimal_version

pytestmark = pytest.mark.anyio


def own(document: JsonObject) -> JsonObject:
    return {k: v for k, v in document.items() if k not in ("_id", "conversationalFlowId")}


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def with_raw(place: bytes, raw: bytes) -> bytes:
    """A document in which `place`, a text that stands there once, is replaced by raw JSON."""
    body = orjson.dumps(own(minimal_version(uiMetadata={"x": "PLACE"})))
    assert body.count(place) == 1
    return body.replace(place, raw)


def twice_the_same_task() -> JsonObject:
    document = clinic()
    document["tasks"].append(aio_task("reception"))
    document["variables"].append(document["variables"][0])
    return document


def everything_wrong() -> JsonObject:
    """Hundreds of thousands of errors in less than a megabyte."""
    return {**minimal_version(), "tasks": [{}] * 100_000}


CORPUS: list[tuple[str, Callable[[], bytes], int, set[str]]] = [
    ("a megabyte", lambda: orjson.dumps(own(clinic(globalPrompt="a" * 1_000_000))), 413, {"too_large"}),
    ("two megabytes", lambda: b'{"draft":true,"x":"' + b"a" * 2_000_000 + b'"}', 413, {"too_large"}),
    ("white space", lambda: b" " * 1_100_000 + b'{"draft":true}', 413, {"too_large"}),
    (
        "101 levels",
        lambda: orjson.dumps(own(minimal_version(uiMetadata={"x": nested(99)}))),
        422,
        {"too_deep"},
    ),
    ("200,000 levels", lambda: with_raw(b'"PLACE"', b"[" * 200_000 + b"]" * 200_000), 422, {"too_deep"}),
    ("unclosed", lambda: b"[" * 500_000, 422, {"too_deep"}),
    (
        "1,000 tasks",
        lambda: orjson.dumps(own({**many_tasks(300), "tasks": many_tasks(1000)["tasks"]})),
        422,
        set(),
    ),
    ("duplicates", lambda: orjson.dumps(own(twice_the_same_task())), 422, {"document_invalid"}),
    ("everything wrong", lambda: orjson.dumps(own(everything_wrong())), 422, {"document_invalid"}),
    ("NaN", lambda: with_raw(b'"PLACE"', b"NaN"), 400, {"json_invalid"}),
    ("Infinity", lambda: with_raw(b'"PLACE"', b"-Infinity"), 400, {"json_invalid"}),
    ("1e400", lambda: with_raw(b'"PLACE"', b"1e400"), 400, {"json_invalid"}),
    ("a lone surrogate", lambda: with_raw(b'"PLACE"', b'"\\ud800"'), 400, {"json_invalid"}),
    ("no UTF-8", lambda: with_raw(b'"PLACE"', b'"\xff"'), 400, {"json_invalid"}),
    ("a list", lambda: b"[]", 422, {"document_invalid"}),
    ("null", lambda: b"null", 422, {"document_invalid"}),
    ("nothing", lambda: b"", 400, {"json_invalid"}),
    (
        "a bomb",
        lambda: orjson.dumps(own(clinic(globalPrompt="{{ 'a' * 10**9 }}"))),
        422,
        {"document_invalid"},
    ),
    (
        "a walk",
        lambda: orjson.dumps(own(clinic(globalPrompt="{{ ''.__class__.__mro__ }}"))),
        422,
        {"document_invalid"},
    ),
]


async def flow_of(scene: Scene) -> str:
    flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
    return (await scene.post("/v1/flows", flow)).json()["id"]


async def still_serves(scene: Scene, flow_id: str) -> None:
    """Nothing of the refused document is kept, and a sound one is taken and run at once."""
    assert (await scene.http.get(f"/v1/flows/{flow_id}/versions")).json() == []
    started = time.process_time()
    await scene.save(flow_id, clinic())
    await scene.started()
    assert time.process_time() - started < 5


def codes(reply: httpx.Response) -> set[str]:
    return {error["code"] for error in reply.json()["errors"]}


@pytest.mark.parametrize(("name", "make", "status", "expected"), CORPUS, ids=[row[0] for row in CORPUS])
async def test_a_hostile_document_is_refused_in_time_and_nothing_of_it_is_kept(
    name: str, make: Callable[[], bytes], status: int, expected: set[str]
) -> None:
    async with open_scene() as scene:
        flow_id = await flow_of(scene)
        body = make()
        started = time.process_time()
        reply = await scene.http.post(f"/v1/flows/{flow_id}/versions", content=body)
        taken = time.process_time() - started
        assert 400 <= reply.status_code < 500, reply.text[:500]  # F9
        assert taken < 5
        assert reply.status_code in (status, 413), reply.text[:500]
        assert not expected or reply.json()["code"] in expected, reply.text[:500]
        assert len(reply.content) < 1_000_000
        assert reply.json()["errors"]
        await still_serves(scene, flow_id)


@pytest.mark.parametrize(("name", "make", "status", "expected"), CORPUS, ids=[row[0] for row in CORPUS])
async def test_validating_one_says_the_same_without_saving(
    name: str, make: Callable[[], bytes], status: int, expected: set[str]
) -> None:
    async with open_scene() as scene:
        flow_id = await flow_of(scene)
        body = make()
        reply = await scene.http.post(f"/v1/flows/{flow_id}/versions/validate", content=body)
        if len(body) > MAX_BODY_BYTES:
            assert reply.status_code == 413
        elif "json_invalid" in expected:
            assert (reply.status_code, reply.json()["code"]) == (400, "json_invalid")
        else:
            assert reply.status_code == 200  # F27
            assert (reply.json()["valid"], reply.json()["warnings"]) == (False, [])
            assert codes(reply) & expected or expected in (set(), {"document_invalid"})
        await still_serves(scene, flow_id)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"globalPrompt": "a" * 1_000_000}, "too_large"), ({"uiMetadata": {"x": nested(99)}}, "too_deep")],
)
async def test_what_is_too_large_or_too_deep_is_a_verdict_with_that_error(
    change: JsonObject, code: str
) -> None:
    async with open_scene() as scene:
        path = f"/v1/flows/{await flow_of(scene)}/versions"
        document = own(minimal_version(**change))
        verdict = await scene.post(f"{path}/validate", document)
        refused = await scene.post(path, document)
        assert refused.json()["code"] == code
        errors = refused.json()["errors"]
        assert verdict.json() == {"valid": False, "errors": errors, "warnings": []}  # F27


async def test_too_many_tasks_and_every_duplicate_are_named() -> None:
    async with open_scene() as scene:
        flow_id = await flow_of(scene)
        small = [aio_task(f"t{number}", prompt="p", description="d") for number in range(301)]
        many = own(minimal_version(tasks=small, firstTask="t0"))
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", many)
        assert "too_many_tasks" in codes(reply)  # F9
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", own(twice_the_same_task()))
        assert "duplicate_id" in codes(reply)
        pointers = {error["pointer"] for error in reply.json()["errors"]}
        assert {"/tasks/6/_id", "/variables/7/_id"} <= pointers


async def test_as_much_as_is_allowed_is_taken() -> None:
    async with open_scene() as scene:
        flow_id = await flow_of(scene)
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", own(many_tasks(300)))
        assert reply.status_code == 201, reply.text[:500]  # F9
        deep = own(minimal_version(uiMetadata={"x": nested(97)}))
        reply = await scene.post(f"/v1/flows/{flow_id}/versions?tag=deep", deep)
        assert reply.status_code == 201, reply.text[:500]


@pytest.mark.parametrize(
    "hostile",
    [
        "{}",
        "a b",
        "line\nbreak",
        "è 日本",
        "..",
        "__class__",
        "send",
        "model",
        "closed",
        "{{ 7*7 }}",
        "%2F",
    ],
)
async def test_any_text_may_be_the_id_of_a_task_or_a_variable(hostile: str) -> None:
    async with open_scene() as scene:
        variable = {"_id": hostile, "name": f"name of {hostile}", "type": "string", "prompt": "p"}
        document = minimal_version(
            tasks=[
                aio_task("start", connectedTasks=[hostile]),
                aio_task(
                    hostile,
                    connectedTasks=["start"],
                    transitionParameters=[{"variableId": hostile, "required": True}],
                ),
            ],
            firstTask="start",
            variables=[variable],
        )
        await scene.publish(document)
        await scene.started()
        missing = (await scene.change(hostile)).json()["missing"]
        assert [variable["varId"] for variable in missing] == [hostile]  # F11, F12
        write = {"updatedBy": "t", "contactId": "call-1", "varId": hostile, "value": "x"}
        await scene.written(write)
        assert (await scene.changed(hostile))["taskId"] == hostile
        await scene.changed("start")


@pytest.mark.parametrize(
    ("path", "more", "status", "code"),
    [
        ("try", {}, 422, "document_invalid"),
        ("render", {"conversationId": "conv-1", "task": "reception"}, 422, "document_invalid"),
        ("versions/version-1/merge", {"madeFrom": ["version-1"]}, 400, "json_invalid"),
    ],
)
async def test_an_integer_that_nobody_keeps_is_refused_in_an_unsaved_document_too(
    path: str, more: JsonObject, status: int, code: str
) -> None:  # F2 A10
    async with open_scene(clinic()) as scene:
        await scene.started()
        body = {"document": {**own(clinic()), "conversationTimeLimit": 10**30}, **more}
        (flow,) = (await scene.http.get("/v1/flows")).json()
        refused = await scene.http.post(f"/v1/flows/{flow['id']}/{path}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        if code == "document_invalid":
            found = [(each["pointer"], each["code"]) for each in refused.json()["errors"]]
            assert ("/conversationTimeLimit", "integer_too_large") in found
