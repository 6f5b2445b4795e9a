"""Journals of conversations that are over, told when Redis has forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime.compiled import compile_flow
from flow_engine.testing import recorded_test
from flow_engine.use_cases import archiving
from flow_engine.use_cases.recording_format import read_recording
from flows.archive import SqliteArchive
from memory.schedule import RedisJobSchedule
from service.replaying import platform
from tests.api.harness import Scene, clinic, entry, needs, open_scene

pytestmark = pytest.mark.anyio

TALK = ConversationRef("default", "conv-1")
PARTS = ("", "/journal", "/journal?after=1&limit=2", *(f"/at/{seq}" for seq in (1, 2, 3, 4, 5)))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        yield opened


async def ended(scene: Scene) -> dict[str, Any]:
    """What Redis tells of a conversation that has ended, by path; then it is archived, and Redis lets go."""
    flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
    await scene.started(conversationalFlowVersionId=..., flowId=flow, tag="latest")
    await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
    await scene.changed("visit")
    await scene.end()
    scene.clock.advance(seconds=1)
    await scene.work()
    assert len(await stored_journal(scene)) == 5
    told = {path: (await get(scene, path)).json() for path in PARTS}
    await worked(scene)
    assert await stored_journal(scene) == []
    return told


async def worked(scene: Scene) -> None:
    for _ in range(4):
        scene.clock.advance(seconds=2)
        await scene.work()


async def get(scene: Scene, path: str) -> httpx.Response:
    return await scene.http.get(f"/v1/conversations/conv-1{path}")


async def stored_journal(scene: Scene) -> list[tuple[bytes, dict[bytes, bytes]]]:
    client: Any = scene.memory.driver.client  # type: ignore[attr-defined]
    return await client.xrange("{default:conv-1}::journal")


async def forget(scene: Scene, id: str = "conv-1") -> None:
    """As Redis does when their time is over."""
    client: Any = scene.memory.driver.client  # type: ignore[attr-defined]
    await client.delete(*[key async for key in client.scan_iter(match=f"{{default:{id}}}*")])


async def archived(scene: Scene) -> list[tuple[Any, ...]]:
    connection: Any = scene.flows.connection
    return await connection.rows("SELECT conversation_id, first, last FROM journals", ())


async def test_what_redis_has_forgotten_is_told_from_the_flow_database(scene: Scene) -> None:
    before = await ended(scene)  # journal: archive
    await forget(scene)
    scene.clock.advance(days=29)
    assert {path: (await get(scene, path)).json() for path in PARTS} == before
    assert before[""]["status"] == "closed"
    assert [each["seq"] for each in before["/journal"]["entries"]] == [1, 2, 3, 4, 5]
    listed = (await scene.http.get("/v1/conversations")).json()
    assert listed["conversations"] == [], "lists tell what Redis knows"
    for path, code in (("/at/9", "entry_unknown"), ("/at/0", "seq_invalid")):
        assert (await get(scene, path)).json()["code"] == code
    assert (await get(scene, "/journal?after=5")).json() == {"entries": [], "next": None}


async def test_the_stream_of_what_redis_has_forgotten_ends_as_closed(scene: Scene) -> None:
    await ended(scene)  # journal: stream, archive
    await forget(scene)
    stream = await get(scene, "/stream?after=0")
    assert [line for line in stream.text.splitlines() if line.startswith("id: ")][-1] == "id: 5"
    assert stream.text.endswith('event: end\ndata: {"reason":"closed"}\n\n')
    again = await scene.http.get("/v1/conversations/conv-1/stream", headers={"Last-Event-ID": "5"})
    assert again.status_code == 204


async def test_what_redis_has_forgotten_is_recorded_and_replayed_as_before(scene: Scene) -> None:
    """By its id, and as a flow test of it; journal: recordings, replays."""
    await ended(scene)
    flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
    document = {key: value for key, value in clinic().items() if key != "conversationalFlowId"}
    visit = next(task for task in document["tasks"] if task["_id"] == "visit")
    visit["transitionParameters"] += needs("var_date")
    route = f"/v1/flows/{flow_id}/versions"
    saved = await scene.post(f"{route}?parentVersionId=version-1", {**document, "_id": "version-2"})
    assert saved.status_code == 201, saved.text

    async def told() -> tuple[Any, ...]:
        recording = await get(scene, "/recording")
        replays = [
            await scene.post(f"{route}/{version}/replays", {"conversations": ["conv-1"]})
            for version in ("version-1", "version-2")
        ]
        read, flow = read_recording(recording.content), compile_flow(clinic(), "hash")
        story = await asyncio.to_thread(recorded_test.test_of, read, flow, platform())
        return recording.json(), *(reply.json() for reply in replays), story

    before = await told()
    await forget(scene)
    recording, same, other, story = await told()
    assert (recording, same, other, story) == before
    assert [entry["seq"] for entry in recording["entries"]] == [1, 2, 3, 4, 5]
    assert (same["summary"]["conversations"], same["summary"]["samePath"]) == (1, 1)
    assert other["summary"]["newRefusals"] == 1
    assert "change_task" in story


async def test_the_last_of_a_tag_are_the_newest_of_redis_and_of_the_archive_together(scene: Scene) -> None:
    """Each once; journal: replays."""
    flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
    for number in range(1, 6):
        id = f"conv-{number}"
        by_tag = {"conversationalFlowVersionId": ..., "flowId": flow_id, "tag": "latest"}
        await scene.started(conversationId=id, **({} if number == 4 else by_tag))
        if number != 5:
            await scene.end(conversationId=id)
        scene.clock.advance(seconds=1)
    await worked(scene)
    for number in (1, 3):
        await forget(scene, f"conv-{number}")

    async def replayed(**last: int) -> list[str]:
        order = {"from": "latest", **last}
        report = await scene.post(f"/v1/flows/{flow_id}/versions/version-1/replays", order)
        assert report.status_code == 200, report.text
        return [row["conversationId"] for row in report.json()["conversations"]]

    every = ["conv-5", "conv-3", "conv-2", "conv-1"]
    assert await replayed() == every
    assert [await replayed(last=number) for number in (1, 2, 3)] == [every[:number] for number in (1, 2, 3)]
    await scene.started(conversationId="conv-3")  # begun anew, by no tag: Redis tells it now
    assert await replayed() == ["conv-5", "conv-2", "conv-1"]
    assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
    await worked(scene)
    assert await replayed() == ["conv-5", "conv-2"]


async def test_one_that_goes_on_is_not_archived_and_a_later_commit_is(scene: Scene) -> None:
    await scene.started()
    await worked(scene)
    assert [name for name in await jobs(scene) if name.startswith("archive")] == []
    await scene.end()
    await worked(scene)
    assert await archived(scene) == [("conv-1", 1, 3)]
    await scene.say("m-1", "Bye")  # is still taken, and read
    assert (len(await stored_journal(scene)), len(await seqs(scene))) == (1, 4), "from both"
    assert await streamed(scene, after=1) == ["id: 2", "id: 3", "id: 4"]
    await worked(scene)
    assert await archived(scene) == [("conv-1", 1, 3), ("conv-1", 4, 5)]
    for after, limit in ((0, 9), (0, 4), (2, 2), (3, 1), (4, 9), (5, 9)):
        assert await seqs(scene, after, limit) == [*range(after + 1, min(after + limit, 5) + 1)]
    for seq in range(1, 6):
        assert (await get(scene, f"/at/{seq}")).json()["seq"] == seq


async def seqs(scene: Scene, after: int = 0, limit: int = 9) -> list[int]:
    page = (await get(scene, f"/journal?after={after}&limit={limit}")).json()
    return [each["seq"] for each in page["entries"]]


async def streamed(scene: Scene, after: int) -> list[str]:
    stream = await get(scene, f"/stream?after={after}")
    return [line for line in stream.text.splitlines() if line.startswith("id: ")]


async def test_what_is_archived_leaves_redis_and_is_told_as_before(scene: Scene) -> None:
    before = await ended(scene)
    assert {path: (await get(scene, path)).json() for path in PARTS} == before
    assert await streamed(scene, after=2) == ["id: 3", "id: 4", "id: 5"]
    listed = (await scene.http.get("/v1/conversations")).json()["conversations"]
    assert [(row["status"], row["seq"]) for row in listed] == [("closed", 5)]


async def test_one_that_begins_anew_goes_on_with_it(scene: Scene) -> None:
    before = await ended(scene)
    await scene.started(contactId="call-2")
    await scene.written(entry("var_string", "derma", contactId="call-2"))
    assert [number for number, _ in await stored_journal(scene)] == [b"6-0", b"7-0"]
    assert await seqs(scene) == [1, 2, 3, 4, 5, 6, 7]
    assert (await get(scene, "/at/5")).json() == before["/at/5"]
    variables = (await get(scene, "/at/7")).json()["state"]["vars"]
    assert [each["value"] for each in variables if each["varId"] == "var_string"] == ["derma"]
    await scene.end(contactId="call-2")
    await worked(scene)
    assert (await stored_journal(scene), await seqs(scene)) == ([], [1, 2, 3, 4, 5, 6, 7, 8, 9])


async def test_redis_keeps_what_the_archive_would_keep_for_less(scene: Scene) -> None:
    """A conversation with a longer time limit."""
    client: Any = scene.memory.driver.client  # type: ignore[attr-defined]
    await scene.started()
    await scene.end()
    scene.clock.advance(seconds=1)
    await scene.work()
    await client.pexpire("{default:conv-1}::snapshot", 31 * 24 * 3_600_000)
    await worked(scene)
    assert await archived(scene) == [("conv-1", 1, 3)]
    assert len(await stored_journal(scene)) == 3


async def test_redis_keeps_what_another_process_would_look_for_in_its_own_database(scene: Scene) -> None:
    await scene.started()
    await scene.end()
    connection: Any = scene.flows.connection
    await connection.rows("DELETE FROM flows", ())
    await worked(scene)
    assert (await archived(scene), len(await stored_journal(scene))) == ([("conv-1", 1, 3)], 3)


async def test_it_waits_in_redis_until_the_archive_has_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> bool:
        raise RetryLater("flow_store_unavailable", "away")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteArchive, "put", unavailable)
        await scene.started()
        await scene.end()
        await worked(scene)
        assert (await archived(scene), len(await stored_journal(scene))) == ([], 3)
    for _ in range(20):
        await worked(scene)
    assert (await archived(scene), await stored_journal(scene)) == ([("conv-1", 1, 3)], [])


async def jobs(scene: Scene) -> list[str]:
    return [name.decode() for name, _ in await scene.memory.driver.zrange("{flow-engine}:jobs", at_most=99)]


async def test_a_job_that_comes_again_changes_nothing(scene: Scene) -> None:
    before = await ended(scene)
    await schedule(scene)
    await forget(scene)
    await schedule(scene)
    assert {path: (await get(scene, path)).json() for path in PARTS} == before


async def schedule(scene: Scene) -> None:
    """The archiving once more, and done."""
    await RedisJobSchedule(scene.memory.driver).schedule(DueJob(Job("archive", TALK), scene.clock.now()))
    assert await scene.work() >= 1


async def test_after_its_days_it_is_unknown_and_a_job_of_its_own_takes_it_away(scene: Scene) -> None:
    await ended(scene)
    await forget(scene)
    scene.clock.advance(days=30, seconds=1)
    for path in PARTS:
        assert (await get(scene, path)).status_code == 404, path
    assert len(await archived(scene)) == 1
    assert await jobs(scene) == ["prune:::2026-02-14T10"]  # ended at 09:30, 30 days before
    scene.clock.advance(minutes=30)
    assert await scene.work() == 1
    assert await archived(scene) == []
    assert await jobs(scene) == []


async def test_all_that_ends_within_an_hour_is_removed_by_one_job(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:  # journal: archive
    monkeypatch.setattr(archiving, "PRUNED_AT_ONCE", 2)
    for number in range(5):
        own = {"conversationId": f"c{number}", "contactId": f"call-{number}"}
        await scene.started(**own)
        await scene.end(**own)
    await worked(scene)
    assert len(await archived(scene)) == 5
    assert [name for name in await jobs(scene) if name.startswith("prune")] == ["prune:::2026-02-14T10"]
    scene.clock.advance(days=31)
    await scene.work()
    assert await archived(scene) == []


async def test_another_conversation_under_the_id_takes_the_place(scene: Scene) -> None:
    await ended(scene)
    await forget(scene)
    await scene.started(contactId="call-2")
    assert (await get(scene, "")).json()["status"] == "active", "what Redis knows is told"
    assert (await get(scene, "/at/3")).json()["code"] == "entry_unknown"
    await scene.end(contactId="call-2")
    await worked(scene)
    await forget(scene)
    found = (await get(scene, "/journal")).json()["entries"]
    assert [each["seq"] for each in found] == [1, 2, 3]
    assert found[0]["input"]["contactId"] == "call-2"


async def test_a_fork_of_it_goes_on(scene: Scene) -> None:
    await ended(scene)
    await forget(scene)
    made = await scene.post("/v1/conversations/conv-1/fork", {"atRevision": 3, "conversationId": "other"})
    assert made.status_code == 201, made.text
    assert (made.json()["status"], made.json()["task"]) == ("active", "Visita Perché")
    await scene.changed("reception", conversationId="other")
    taken = await scene.post("/v1/conversations/other/fork", {"atRevision": 1, "conversationId": "conv-1"})
    assert (taken.status_code, taken.json()["code"]) == (409, "conversation_exists")


async def test_a_version_that_keeps_less_has_it_archived_for_less() -> None:
    async with open_scene(clinic(retention={"days": 7})) as scene:
        await ended(scene)
        await forget(scene)
        scene.clock.advance(days=6)
        assert (await get(scene, "/journal")).status_code == 200
        scene.clock.advance(days=1)
        assert (await get(scene, "/journal")).status_code == 404


class TestErasure:
    async def test_it_takes_the_archive_along_and_a_late_job_brings_nothing_back(self, scene: Scene) -> None:
        await scene.started()
        await scene.end()
        entries = await stored_journal(scene)
        await worked(scene)
        assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
        assert await archived(scene) == []
        client: Any = scene.memory.driver.client  # type: ignore[attr-defined]
        for number, fields in entries:  # as a job has them that has read the journal before
            await client.xadd("{default:conv-1}::journal", fields, id=number)
        await schedule(scene)
        assert await archived(scene) == []

    async def test_what_redis_has_forgotten_is_erased_once_and_word_of_it_follows(self, scene: Scene) -> None:
        await ended(scene)
        await forget(scene)
        path, key = "/v1/conversations/conv-1", {"Idempotency-Key": "k"}
        receipt = await scene.http.delete(path, headers=key)
        assert (receipt.status_code, receipt.json()["conversationId"]) == (200, "conv-1")
        assert [event["body"]["subtype"] for event in await scene.events()] == ["conversation_erased"]
        assert await archived(scene) == []
        assert (await scene.http.delete(path)).status_code == 404
        assert (await scene.http.delete(path, headers=key)).content == receipt.content
        for part in PARTS:
            assert (await get(scene, part)).status_code == 404, part

    async def test_a_fork_of_a_fork_under_the_first_ones_id_goes_along(self) -> None:  # put-right 18
        async with open_scene(clinic(), journal_days=1) as scene:
            await scene.started()
            for original, fork in (("conv-1", "other"), ("other", "conv-1")):
                await scene.end(conversationId=original)
                await worked(scene)
                await forget(scene, original)
                scene.clock.advance(hours=12)
                path, order = f"/v1/conversations/{original}/fork", {"atRevision": 1, "conversationId": fork}
                assert (await scene.post(path, order)).status_code == 201
                scene.clock.advance(hours=13 if fork == "other" else 0)  # the original's term is over
                await scene.work()
            await scene.end()
            await worked(scene)
            assert sorted(row[0] for row in await archived(scene)) == ["conv-1", "other"]
            assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
            assert await archived(scene) == []

    async def test_forks_go_along_and_the_id_can_be_used_again(self, scene: Scene) -> None:
        await ended(scene)
        made = await scene.post("/v1/conversations/conv-1/fork", {"atRevision": 3, "conversationId": "other"})
        assert made.status_code == 201
        await scene.end(conversationId="other")
        await worked(scene)
        assert sorted(row[0] for row in await archived(scene)) == ["conv-1", "other"]
        await forget(scene)
        assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
        assert await archived(scene) == []
        scene.clock.advance(seconds=1)
        await scene.started(contactId="call-9")
        await scene.end(contactId="call-9")
        await worked(scene)
        assert [row[0] for row in await archived(scene)] == ["conv-1"]
