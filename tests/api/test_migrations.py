"""Moving live conversations to another version: told first, then done, and nothing unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import HANDLER, Scene, clinic, entry, multi_contact, open_scene
from tests.api.test_advance import booking
from tests.api.test_approvals import desk
from tests.api.test_digressions import shop
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        for task in ("reception", "visit", "operator"):
            await opened.started(conversationId=task)
        both = [entry("var_string", "ECG"), entry("var_boolean", False)]
        await opened.written(*both, conversation="visit")
        await opened.changed("visit", conversationId="visit")
        await opened.changed("operator", conversationId="operator")
        yield opened


async def flow_of(scene: Scene) -> str:
    return (await scene.http.get("/v1/flows")).json()[0]["id"]


async def publish_next(scene: Scene, document: JsonObject) -> str:
    flow_id = await flow_of(scene)
    own = {k: v for k, v in document.items() if k != "conversationalFlowId"} | {"_id": "version-2"}
    reply = await scene.post(f"/v1/flows/{flow_id}/versions?parentVersionId=version-1", own)
    assert reply.status_code == 201, reply.text
    return flow_id


async def migrate(scene: Scene, flow_id: str, *, dry_run: bool, **changes: Any) -> httpx.Response:
    body = {"fromVersionId": "version-1", "toVersionId": "version-2", **changes}
    return await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun={str(dry_run).lower()}", body)


def renamed(document: JsonObject, old: str, new: str) -> JsonObject:
    """The document with one task under another id; its name stays."""
    for task in document["tasks"]:
        task["connectedTasks"] = [new if t == old else t for t in task.get("connectedTasks", [])]
        if task["_id"] == old:
            task.setdefault("name", old)
            task["_id"] = new
    return document


def verdicts(reply: httpx.Response) -> dict[str, tuple[str, str | None]]:
    assert reply.status_code == 200, reply.text
    return {r["conversationId"]: (r["verdict"], r["toTask"]) for r in reply.json()["conversations"]}


async def test_a_dry_run_tells_and_changes_nothing(scene: Scene) -> None:
    flow_id = await publish_next(scene, renamed(clinic(), "visit", "exam"))
    before = await scene.prompt("visit")
    reply = await migrate(scene, flow_id, dry_run=True)
    assert verdicts(reply) == {
        "reception": ("keep", "reception"),
        "visit": ("map", "Visita Perché"),
        "operator": ("keep", "operator"),
    }
    assert reply.json()["counts"] == {"keep": 2, "map": 1, "cannot": 0, "migrated": 0}
    assert await scene.prompt("visit") == before


async def test_without_saying_so_a_request_is_a_dry_run(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
    reply = await scene.post(f"/v1/flows/{flow_id}/migrations", body)
    assert (reply.json()["dryRun"], reply.json()["counts"]["migrated"]) == (True, 0)


async def test_a_migrated_conversation_goes_on_in_the_new_version_with_its_memory(scene: Scene) -> None:
    document = renamed(clinic(), "visit", "exam")
    document["tasks"][1]["prompt"] = "The new text for {{ $vars.var_string }}."
    flow_id = await publish_next(scene, document)
    reply = await migrate(scene, flow_id, dry_run=False)
    assert reply.json()["counts"]["migrated"] == 3
    prompt = await scene.prompt("visit")
    assert prompt["revision"] == 3
    assert "The new text for memory->" in prompt["prompt"]
    assert "|ECG|" in prompt["prompt"]
    assert (await scene.changed("reception", conversationId="visit"))["taskName"] == "reception"
    assert verdicts(await migrate(scene, flow_id, dry_run=False)) == {}


async def test_the_part_of_a_human_task_is_kept_and_nobody_is_called_twice(scene: Scene) -> None:
    await scene.human("connected", conversationId="operator")
    flow_id = await publish_next(scene, renamed(clinic(), "operator", "desk"))
    await migrate(scene, flow_id, dry_run=False)
    data = (await scene.human("completed", conversationId="operator")).json()
    assert (data["taskId"], data["taskStatus"]) == ("desk", "completed")
    requests = [e for e in await scene.events("operator") if e["body"]["subtype"] == "routing_requested"]
    assert len(requests) == 1


def over_contacts(document: JsonObject) -> JsonObject:
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
    return document


async def test_a_conversation_between_contacts_is_taken_up_in_the_mapped_task() -> None:
    answers = {HANDLER: [OutboundReply(200, b"false")]}
    async with open_scene(over_contacts(clinic()), answers=answers) as scene:
        await scene.started()
        await scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
        await scene.changed("visit")
        assert (await scene.end()).json()["status"] == "between_contacts"
        flow_id = await publish_next(scene, over_contacts(renamed(clinic(), "visit", "exam")))
        assert (await migrate(scene, flow_id, dry_run=False)).json()["counts"]["migrated"] == 1
        data = await scene.started(contactId="call-2")
        assert (data["command"], data["taskId"]) == ("/resume", "exam")
        assert "|ECG|" in data["prompt"]


@pytest.mark.parametrize(
    ("limit_s", "ends_after_s"), [(4 * 86_400, 4 * 86_400), (3_600, 3_600), (None, 7_200)]
)
async def test_the_time_limit_is_that_of_the_new_version_s_task(
    limit_s: int | None, ends_after_s: int
) -> None:  # F16, F30
    answers = {HANDLER: [OutboundReply(200, b"false")]}
    document = over_contacts(clinic())
    for task in document["tasks"]:
        task["closureConfig"] = (
            {"multiContact": False} if limit_s is None else multi_contact(conversationTimeLimit=limit_s)
        )
    async with open_scene(over_contacts(clinic()), answers=answers) as scene:
        await scene.started()
        await scene.end()
        await migrate(scene, await publish_next(scene, document), dry_run=False)
        lives_s = await scene.memory.driver.client.ttl("{default:conv-1}::snapshot")
        assert lives_s == pytest.approx(max(86_400, limit_s or 0), abs=5)
        for passed_s, status in ((ends_after_s - 1, "between_contacts"), (2, "closed")):
            scene.clock.advance(seconds=passed_s)
            await scene.work()
            assert (await scene.http.get("/v1/conversations/conv-1")).json()["status"] == status


async def test_a_language_that_the_new_version_lacks_gives_way_to_its_default() -> None:  # F28, contract 16
    spoken = {"defaultLanguage": "en-US", "supportedLanguages": ["en-US", "it-IT"]}
    async with open_scene(clinic(**spoken, globalPrompt="In {{ $language }}.")) as scene:
        await scene.started(language="it")
        await scene.started(conversationId="english")
        left = {"defaultLanguage": "es-ES", "supportedLanguages": ["es-ES", "en-US"]}
        flow_id = await publish_next(scene, clinic(**left, globalPrompt="In {{ $language }}."))
        await migrate(scene, flow_id, dry_run=False)
        data = await scene.started()
        assert (data["language"], data["supportedLanguages"]) == ("es-ES", ["es-ES", "en-US"])
        assert "In es-ES." in data["prompt"]
        assert (await scene.started(conversationId="english"))["language"] == "en-US"


async def test_a_task_that_the_agent_has_yet_to_be_told_of_is_told_as_it_is_called_now() -> None:  # F25
    way = {"who": {"count": {"when": "has(vars.var_string)", "advance": "auto"}}}
    async with open_scene(booking(way)) as scene:
        await scene.started()
        assert (await scene.written(entry("var_string", "Ann")))["advanced"]["to"] == "how many"
        following = booking(way)
        following["tasks"][1]["name"] = "how often"
        await migrate(scene, await publish_next(scene, following), dry_run=False)
        assert (await scene.prompt())["command"] == "/start_task how often AIO"


async def test_what_stands_in_the_way_is_said_and_the_conversation_stays(scene: Scene) -> None:
    document = clinic()
    document["tasks"] = [t for t in document["tasks"] if t["_id"] != "visit"]
    for task in document["tasks"]:
        task["connectedTasks"] = [t for t in task.get("connectedTasks", []) if t != "visit"]
        if task["_id"] == "operator":
            task["type"] = "AIS"
    flow_id = await publish_next(scene, document)
    reply = await migrate(scene, flow_id, dry_run=False)
    assert {k: v for k, (v, _) in verdicts(reply).items()} == {
        "reception": "keep",
        "visit": "cannot",
        "operator": "cannot",
    }
    reasons = {r["conversationId"]: r["reason"] for r in reply.json()["conversations"]}
    assert "map it" in reasons["visit"]
    assert "AIS" in reasons["operator"]
    assert (await scene.changed("reception", conversationId="visit"))["revision"] == 3


async def test_a_given_mapping_wins_and_may_use_names(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    mapping = {"visita_perche": "island"}
    reply = await migrate(scene, flow_id, dry_run=False, mapping=mapping)
    assert verdicts(reply)["visit"] == ("map", "island")
    assert (await scene.changed("reception", conversationId="visit"))["taskName"] == "reception"


def with_task(document: JsonObject, old: str, new: str) -> JsonObject:
    """The document with one task under another id, which is its name as well."""
    return orjson.loads(orjson.dumps(document).replace(f'"{old}"'.encode(), f'"{new}"'.encode()))


MAPPED = {"order": "purchase", "operator": "desk"}


@pytest.fixture
async def aside() -> AsyncIterator[Scene]:
    """In a digression from a task that has another id and name in `purchases`."""
    async with open_scene(shop()) as opened:
        await opened.started()
        await opened.changed("order")
        await opened.changed("hours")
        yield opened


def purchases() -> JsonObject:
    return with_task(with_task(shop(), "order", "purchase"), "operator", "desk")


async def test_a_digression_returns_to_what_became_of_its_task(aside: Scene) -> None:  # A11, contract 16
    flow_id = await publish_next(aside, purchases())
    await migrate(aside, flow_id, dry_run=False, mapping=MAPPED)
    assert (await aside.changed("back"))["taskId"] == "purchase"
    *_, entry, _ = (await aside.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
    assert entry["input"] == {
        "op": "migration",
        "from": "version-1",
        "to": "version-2",
        "mapping": MAPPED,
    }


async def test_a_digression_returns_to_the_task_of_the_same_name(aside: Scene) -> None:  # A11, contract 16
    flow_id = await publish_next(aside, renamed(shop(), "order", "purchase"))
    await migrate(aside, flow_id, dry_run=False)
    assert (await aside.changed("back"))["taskId"] == "purchase"


async def test_a_digression_that_has_nowhere_to_return_to_stays(aside: Scene) -> None:  # A11, contract 16
    flow_id = await publish_next(aside, purchases())
    (row,) = (await migrate(aside, flow_id, dry_run=True)).json()["conversations"]
    assert (row["verdict"], row["reason"]) == (
        "cannot",
        "the new version has no task 'order', which 'opening hours' returns to; map it to one",
    )


async def test_a_digression_that_does_not_return_any_more_moves(aside: Scene) -> None:  # A11, contract 16
    document = purchases()
    document["tasks"][3] |= {"returns": False, "connectedTasks": ["menu"]}
    flow_id = await publish_next(aside, document)
    assert verdicts(await migrate(aside, flow_id, dry_run=False)) == {"conv-1": ("keep", "opening hours")}


async def counted(scene: Scene) -> Any:
    """The counts by task that the newest entry of the journal has changed."""
    entries = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
    changed = entries[-1]["delta"]["session"]
    return changed.get("entered"), changed.get("refused")


async def test_counts_are_of_what_became_of_their_tasks(aside: Scene) -> None:  # A11, contract 16
    document = purchases()
    document["tasks"][3]["connectedTasks"] = ["purchase"]
    only_once = {"when": "entries('purchase') < 1 and refusals('desk') < 1", "reason": "Once."}
    document["tasks"][3]["connectionConditions"] = {"purchase": only_once}
    flow_id = await publish_next(aside, document)
    await aside.change("pay")
    await migrate(aside, flow_id, dry_run=False, mapping=MAPPED)
    assert await counted(aside) == ({"order": None, "purchase": 1}, None)
    refusal = (await aside.change("purchase")).json()
    assert refusal["code"] == "condition_not_met"


async def test_counts_of_tasks_that_have_become_one_are_added_up(aside: Scene) -> None:  # A11, contract 16
    for task in ("back", "pay", "order", "nowhere", "hours"):
        await aside.change(task)
    flow_id = await publish_next(aside, purchases())
    await migrate(aside, flow_id, dry_run=False, mapping={"order": "purchase", "menu": "purchase"})
    entered, refused = await counted(aside)
    assert entered == {"menu": None, "order": None, "purchase": 3}
    assert refused == {"order": None, "purchase": 1}


async def test_a_text_that_waits_is_of_what_became_of_its_task() -> None:  # A11, contract 16
    async with open_scene(desk()) as scene:
        await scene.started(channel="chat")
        await scene.changed("answers")
        await scene.human("waiting", text="We refund 20 €.")
        flow_id = await publish_next(scene, with_task(desk(), "answers", "replies"))
        await migrate(scene, flow_id, dry_run=False, mapping={"answers": "replies"})
        assert (await scene.prompt())["approval"]["taskId"] == "replies"
        assert (await scene.human("approved")).json()["command"] == "/human_task_approved"


async def test_a_value_that_does_not_fit_its_new_type_stays_where_it_is(scene: Scene) -> None:
    document = clinic()
    for variable in document["variables"]:
        if variable["_id"] == "var_string":
            variable["type"] = "number"
    flow_id = await publish_next(scene, document)
    assert verdicts(await migrate(scene, flow_id, dry_run=True))["visit"][0] == "cannot"


async def test_every_obstacle_is_told_at_once(scene: Scene) -> None:  # A11, contract 16
    document = renamed(clinic(), "visit", "consultation")
    document["tasks"][1]["name"] = "consultation"
    for variable in document["variables"]:
        if variable["_id"] == "var_string":
            variable |= {"type": "enum", "enumValues": ["eyes", "ears"]}
    flow_id = await publish_next(scene, document)
    reply = (await migrate(scene, flow_id, dry_run=True)).json()
    [reason] = [row["reason"] for row in reply["conversations"] if row["conversationId"] == "visit"]
    assert reason == (
        "the new version has no task 'Visita Perché'; map it to one; the new version does not take the "
        "value of variable 'a string'; accepted is one of 'eyes', 'ears'"
    )


async def test_a_mapping_of_unknown_tasks_is_refused_whole(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    reply = await migrate(scene, flow_id, dry_run=False, mapping={"nobody": "nowhere", "visit": "nothing"})
    assert reply.status_code == 422
    assert [e["pointer"] for e in reply.json()["errors"]] == [
        "/mapping/nobody",
        "/mapping/nobody",
        "/mapping/visit",
    ]


async def test_of_very_many_unknown_tasks_the_first_are_told(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    reply = await migrate(scene, flow_id, dry_run=False, mapping={f"t{n}": "x" * 300 for n in range(2_000)})
    assert reply.status_code == 422
    assert [each["pointer"] for each in reply.json()["errors"]] == [
        f"/mapping/t{n}" for n in range(50) for _ in range(2)
    ]
    assert len(reply.content) < 50_000


async def test_versions_of_another_flow_are_unknown_here(scene: Scene) -> None:
    await publish_next(scene, clinic())
    other = (await scene.post("/v1/flows", {"name": "n", "campaignId": "c", "updatedBy": "u"})).json()["id"]
    assert (await migrate(scene, other, dry_run=False)).status_code == 404


async def test_to_the_version_that_it_is_on_nothing_is_moved(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    reply = await migrate(scene, flow_id, dry_run=False, toVersionId="version-1")
    assert reply.status_code == 422
    [finding] = reply.json()["errors"]
    assert (finding["pointer"], finding["code"]) == ("/toVersionId", "same_version")
    for name in ("reception", "visit", "operator"):
        found = (await scene.http.get(f"/v1/conversations/{name}")).json()
        assert (found["versionId"], found["status"]) == ("version-1", "active")


@pytest.mark.parametrize("narrowed", ["version", "task"])
async def test_one_on_a_channel_that_the_new_version_lacks_stays(scene: Scene, narrowed: str) -> None:
    """The others move: each is judged by where it stands."""
    document = clinic()
    if narrowed == "version":
        document["channels"] = document["mandatoryChannels"] = ["chat"]
    else:
        document["tasks"][1]["channels"] = ["chat"]
    flow_id = await publish_next(scene, document)
    reply = await migrate(scene, flow_id, dry_run=False)
    stay = {"reception", "visit", "operator"} if narrowed == "version" else {"visit"}
    assert {id for id, (verdict, _) in verdicts(reply).items() if verdict == "cannot"} == stay
    rows = {row["conversationId"]: row for row in reply.json()["conversations"]}
    assert "is not available on phone in the new version" in rows["visit"]["reason"]
    assert reply.json()["counts"]["migrated"] == 3 - len(stay)


async def test_a_closed_conversation_is_not_live(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    await scene.end(conversationId="reception")
    assert "reception" not in verdicts(await migrate(scene, flow_id, dry_run=True))


async def test_rows_that_cannot_move_keep_no_other_from_moving() -> None:  # A11, contract 16
    async with open_scene(clinic()) as scene:
        document = renamed(clinic(), "operator", "gone")
        document["tasks"] = [task for task in document["tasks"] if task["_id"] != "gone"]
        for task in document["tasks"]:
            task["connectedTasks"] = [t for t in task["connectedTasks"] if t != "gone"]
        names = [f"c{number}" for number in range(9)]
        for number, name in enumerate(names):
            await scene.started(conversationId=name)
            if number % 3 == 0:
                await scene.changed("operator", conversationId=name)
        flow_id = await publish_next(scene, document)
        moved: set[str] = set()
        for order in range(9):  # noqa: B007 - how many orders it took is asserted
            report = (await migrate(scene, flow_id, dry_run=False, limit=2)).json()
            moved |= {row["conversationId"] for row in report["conversations"] if row["migrated"]}
            if not report["more"]:
                break
        assert order == 2
        assert moved == {name for number, name in enumerate(names) if number % 3}
        left = (await migrate(scene, flow_id, dry_run=False, limit=2)).json()
        assert {row["verdict"] for row in left["conversations"]} == {"cannot"}
        assert left["more"] is False


@pytest.mark.parametrize("stored", [b"{", b'{"format": 99}'])
async def test_one_that_cannot_be_read_is_a_row_and_stops_no_other(  # A11, contract 16
    scene: Scene, stored: bytes
) -> None:
    flow_id = await publish_next(scene, clinic())
    await scene.memory.driver.client.hset("{default:visit}::snapshot", "session", stored)
    reply = await migrate(scene, flow_id, dry_run=False)
    assert verdicts(reply) == {
        "reception": ("keep", "reception"),
        "operator": ("keep", "operator"),
        "visit": ("cannot", None),
    }
    (row,) = (row for row in reply.json()["conversations"] if row["verdict"] == "cannot")
    assert row["reason"].startswith("snapshot_")
    assert reply.json()["more"] is False


async def test_a_limit_says_that_there_is_more(scene: Scene) -> None:
    flow_id = await publish_next(scene, clinic())
    reply = (await migrate(scene, flow_id, dry_run=False, limit=2)).json()
    assert (len(reply["conversations"]), reply["more"]) == (2, True)
    rest = (await migrate(scene, flow_id, dry_run=False, limit=2)).json()
    assert (len(rest["conversations"]), rest["more"]) == (1, False)
