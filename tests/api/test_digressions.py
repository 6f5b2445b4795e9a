"""Tasks that can be entered from everywhere, and digressions that go back where they were entered from."""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.documents import parse_version
from flow_engine.linting import lint
from flow_engine.ports.outbound import OutboundReply
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.session import MOST_DIGRESSIONS
from tests.api.harness import HANDLER, Scene, multi_contact, open_scene
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task, hum_task, minimal_version

pytestmark = pytest.mark.anyio


def shop(**changes: Any) -> JsonObject:
    """`menu` → `order` → `pay`; `hours` and `voice` from everywhere but `pay`, which excludes `hours`."""
    return minimal_version(
        tasks=[
            aio_task("menu", connectedTasks=["order"]),
            aio_task("order", connectedTasks=["pay", "menu"]),
            aio_task("pay", connectedTasks=["menu"], excludedGlobalTasks=["hours"]),
            aio_task("hours", name="opening hours", returns=True),
            aio_task("voice", returns=True, channels=["phone"]),
            hum_task(connectedTasks=["menu"]),
        ],
        firstTask="menu",
        globalTasks=["hours", "voice", "operator"],
        **changes,
    )


async def refused(scene: Scene, task: str) -> Any:
    reply = await scene.change(task)
    assert reply.status_code == 200
    assert reply.json()["result"] is False
    return reply.json()


def names(reply: Any) -> list[str]:
    return [task["taskId"] for task in reply["reachableTasks"]]


async def test_global_tasks_are_reachable_where_they_are_not_excluded() -> None:
    async with open_scene(shop()) as scene:
        assert names(await scene.started()) == ["order", "hours", "voice", "operator"]
        await scene.changed("order")
        assert names(await scene.changed("pay")) == ["menu", "voice", "operator"]
        assert (await refused(scene, "opening hours"))["code"] == "task_not_connected"
        assert (await scene.changed("operator"))["taskType"] == "HUM"


async def test_back_goes_where_the_digression_was_entered_from() -> None:
    async with open_scene(shop()) as scene:
        begun = await scene.started()
        assert "returnsTo" not in begun
        await scene.changed("order")
        aside = await scene.changed("opening hours")
        assert aside["returnsTo"] == "order"
        assert '- back: return to "order"' in aside["prompt"]
        again = await scene.changed("back")
        assert (again["taskId"], again["command"]) == ("order", "/start_task order AIO")
        assert "- back: " not in again["prompt"]
        changes = [e["body"] for e in await scene.events() if e["body"].get("subtype") == "task_changed"]
        assert {key: changes[-1][key] for key in ("from", "to", "by")} == {
            "from": "opening hours",
            "to": "order",
            "by": "back",
        }


async def test_digressions_are_nested_and_a_task_of_its_own_ends_them() -> None:
    async with open_scene(shop()) as scene:
        await scene.started()
        await scene.changed("hours")
        assert (await scene.changed("voice"))["returnsTo"] == "opening hours"
        assert (await scene.changed("back"))["returnsTo"] == "menu"
        await scene.changed("voice")
        await scene.changed("operator")
        await scene.changed("menu")
        assert (await refused(scene, "back"))["code"] == "nothing_to_go_back_to"


async def test_digressions_are_nested_as_deep_as_eight() -> None:
    async with open_scene(shop()) as scene:
        await scene.started()
        for number in range(MOST_DIGRESSIONS + 2):
            await scene.changed(("hours", "voice")[number % 2])
        for _ in range(MOST_DIGRESSIONS):
            await scene.changed("back")
        refusal = await refused(scene, "back")
        assert refusal["code"] == "nothing_to_go_back_to"
        assert refusal["command"].startswith("/error ")


async def test_nothing_to_go_back_to_is_a_refusal_as_data() -> None:
    async with open_scene(shop()) as scene:
        await scene.started()
        refusal = await refused(scene, "back")
        assert (refusal["code"], refusal["from"], refusal["missing"]) == ("nothing_to_go_back_to", "menu", [])
        assert names(refusal) == ["order", "hours", "voice", "operator"]


async def test_a_task_that_is_named_back_is_meant_first() -> None:
    document = shop()
    document["tasks"].append(aio_task("back", connectedTasks=["menu"]))
    document["tasks"][3]["connectedTasks"] = ["back"]
    async with open_scene(document) as scene:
        await scene.started()
        assert "returnsTo" not in await scene.changed("hours")
        assert (await scene.changed("back"))["taskId"] == "back"


async def test_a_digression_is_kept_while_its_contact_resumes() -> None:
    document = shop(closureConfig={"multiContact": False})
    async with open_scene(document) as scene:
        await scene.started()
        await scene.changed("hours")
        resumed = await scene.started()
        assert (resumed["command"], resumed["returnsTo"]) == ("/resume", "menu")
        assert (await scene.changed("back"))["taskId"] == "menu"


def test_the_linter_knows_the_ways_of_global_tasks_and_digressions() -> None:
    document = shop()
    codes = {f.code for f in lint(parse_version(document), ENVIRONMENT)}
    assert not codes & {"dead_end", "unreachable_task", "loop_without_exit"}


def test_digressions_that_lead_to_one_another_are_no_loop_since_they_go_back() -> None:
    document = {**shop(), "globalTasks": ["hours"]}
    by_id = {task["_id"]: task for task in document["tasks"]}
    by_id["menu"]["connectedTasks"] = ["order", "operator"]
    by_id["hours"]["connectedTasks"] = ["holidays"]
    document["tasks"].append(aio_task("holidays", returns=True, connectedTasks=["hours"]))
    assert "loop_without_exit" not in {f.code for f in lint(parse_version(document), ENVIRONMENT)}

    by_id["hours"]["returns"] = document["tasks"][-1]["returns"] = False
    assert "loop_without_exit" in {f.code for f in lint(parse_version(document), ENVIRONMENT)}


async def test_unknown_global_tasks_refuse_the_save() -> None:
    async with open_scene() as scene:
        flow = {"name": "f", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        document = {**shop(), "conversationalFlowId": flow_id, "globalTasks": ["gone"]}
        document["tasks"][0]["excludedGlobalTasks"] = ["lost"]
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", document)
        found = [(e["pointer"], e["code"]) for e in reply.json()["errors"]]
        assert found == [
            ("/globalTasks/0", "unknown_task"),
            ("/tasks/0/excludedGlobalTasks/0", "unknown_task"),
        ]


def test_a_flow_without_global_tasks_has_the_ways_that_it_names() -> None:
    document = minimal_version()
    flow = compile_flow(document, "hash")
    assert {t: list(p.connected) for t, p in flow.tasks.items()} == {
        t["_id"]: t["connectedTasks"] for t in document["tasks"]
    }


async def test_a_digression_from_a_task_of_another_channel_says_where_that_one_is() -> None:  # F12, F28
    document = shop()
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
        if task["_id"] == "order":
            task["channels"] = ["chat"]
    async with open_scene(document, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        await scene.started(channel="chat")
        await scene.changed("order")
        await scene.changed("opening hours")
        await scene.end()
        again = await scene.started(contactId="call-2", channel="phone")
        assert (again["taskId"], again.get("returnsTo")) == ("hours", None)
        reply = (await scene.change("back", contactId="call-2")).json()
        assert (reply["result"], reply["code"]) == (False, "nothing_to_go_back_to")
        assert reply["reason"] == (
            "task 'order' is not available on phone; it is on: chat, "
            "so that task 'opening hours' cannot go back"
        )
