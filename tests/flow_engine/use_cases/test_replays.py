"""What another version would have made of recorded conversations."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

import memory.journal as journal_module
from flow_engine.documents import content_hash
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.ports.outbound import OutboundReply
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.platform import Platform
from flow_engine.use_cases.recording_format import Recording, read_recording
from flow_engine.use_cases.replaying import Compiled, Side
from flow_engine.use_cases.replays import Replay, ReplayReply
from system_prompts.loader import load_system_prompts
from tests.api.harness import BASE_URL, HANDLER, Scene, clinic, entry, needs, open_scene, over_many_contacts
from tests.api.test_digressions import shop
from tests.api.test_history_at import HANDLER_ANSWERS, step
from tests.api.test_migrations import with_task
from tests.flow_engine.documents.samples import JsonObject
from tests.flow_engine.listening.test_mining import MINE, Model, says, working_on
from tests.flow_engine.testing.test_replay_page import NOTHING

pytestmark = pytest.mark.anyio


async def recorded(scene: Scene, conversation: str = "conv-1") -> Recording:
    reply = await scene.http.get(f"/v1/conversations/{conversation}/recording")
    assert reply.status_code == 200, reply.text
    return read_recording(reply.content)


async def replay_on(document: JsonObject, *recordings: Recording) -> Replay:
    raw = {**document, "_id": "draft-1"}
    replay = Replay(
        compile_flow(raw, content_hash(raw)), Platform(load_system_prompts(), lambda: BASE_URL, "markdown")
    )
    for recording in recordings:
        await replay.add(recording)
    return replay


async def replayed(document: JsonObject, *recordings: Recording) -> ReplayReply:
    return (await replay_on(document, *recordings)).report()


def found(row: Any) -> dict[str, Any]:
    """What is found in a conversation, by its name; nothing of what is as it was."""
    return {key: value for key, value in row.items() if key != "conversationId" and value != NOTHING[key]}


@pytest.fixture
async def visit() -> Recording:
    """reception (1) → two writes (2) → visit (3) → a write (4) → reception (5) → the end (6)."""
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
        await scene.changed("visit")
        await scene.written(entry("var_number", 3))
        await scene.changed("reception")
        scene.clock.advance(minutes=5)
        assert (await scene.end(reason="hangup")).status_code == 200
        return await recorded(scene)


def changed(**tasks: JsonObject) -> JsonObject:
    """The clinic with properties of some tasks set."""
    document = deepcopy(clinic())
    for task in document["tasks"]:
        task.update(tasks.get(task["_id"], {}))
    return document


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_version_finds_nothing(seed: int) -> None:  # journal: replay
    chance = random.Random(seed)
    verdicts = [chance.choice(HANDLER_ANSWERS) for _ in range(60)]
    document = over_many_contacts() if seed % 2 else clinic()
    async with open_scene(document, answers={HANDLER: verdicts}) as scene:
        for number in range(40):
            scene.clock.advance(seconds=chance.choice([0.25, 40, 2000]))
            await step(scene, chance, number)
            if chance.random() < 0.2:
                await working_on(scene, says({"var_string": f"s{number}", "var_number": number})).mine(MINE)
        recording = await recorded(scene)
    assert len(recording.entries) > 20
    report = await replayed(document, recording)
    assert report["conversations"] == [{"conversationId": "conv-1", **NOTHING}]
    assert report["summary"] == {
        "conversations": 1,
        "samePath": 1,
        "otherPath": 0,
        "newRefusals": 0,
        "variablesGone": 0,
        "promptsDiffer": 0,
    }


class TestPaths:
    async def test_a_new_guard_is_a_fork_and_one_refusal(self, visit: Recording) -> None:
        draft = changed(visit={"transitionParameters": needs("var_string", "var_phone")})
        [row] = (await replayed(draft, visit))["conversations"]
        place = {"taskStatus": None, "status": "active"}
        assert row["firstFork"] == {
            "seq": 3,
            "recorded": {"task": "Visita Perché", **place, "result": True, "code": None},
            "replayed": {"task": "reception", **place, "result": False, "code": "missing_variables"},
        }
        refusal = {"seq": 3, "task": "Visita Perché", "code": "missing_variables"}
        assert (row["path"], row["newRefusals"]) == ("other", [refusal])
        assert row["notReplayed"] == [], "the rest goes on from where the conversation was"

    async def test_a_refusal_that_is_none_any_more_is_another_path(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await scene.change("visit")).json()["result"] is False
            await scene.changed("operator")
            recording = await recorded(scene)
        draft = changed(visit={"transitionParameters": []})
        [row] = (await replayed(draft, recording))["conversations"]
        assert row["firstFork"] is not None
        then, now = row["firstFork"]["recorded"], row["firstFork"]["replayed"]
        assert (row["firstFork"]["seq"], then["code"], now["code"]) == (2, "missing_variables", None)
        assert (then["task"], now["task"], row["newRefusals"]) == ("reception", "Visita Perché", [])

    async def test_another_first_task_is_one(self, visit: Recording) -> None:
        [row] = (await replayed({**clinic(), "firstTask": "island"}, visit))["conversations"]
        assert row["firstFork"] is not None
        assert (row["firstFork"]["seq"], row["firstFork"]["replayed"]["task"]) == (1, "island")

    async def test_an_end_that_closes_is_one_and_who_was_asked_then_answers_the_same(
        self, visit: Recording
    ) -> None:
        async with open_scene(
            over_many_contacts(), answers={HANDLER: [OutboundReply(200, b"false")]}
        ) as scene:
            await scene.started()
            assert (await scene.end()).status_code == 200
            await scene.started(contactId="call-2")
            recording = await recorded(scene)
        [row] = (await replayed(clinic(), recording))["conversations"]
        assert row["firstFork"] is not None
        ends = [row["firstFork"][side]["status"] for side in ("recorded", "replayed")]
        assert (row["firstFork"]["seq"], ends) == (2, ["between_contacts", "closed"])
        assert found((await replayed(over_many_contacts(), visit))["conversations"][0]) == {}

    async def test_a_task_by_another_name_or_id_is_the_same(self, visit: Recording) -> None:
        renamed = changed(visit={"name": "examination"})
        [row] = (await replayed(renamed, visit))["conversations"]
        assert (row["path"], row["newRefusals"]) == ("same", [])
        assert row["promptsDiffer"] == [1, 2, 5], "it stands in those of the tasks that lead to it"
        other_id = deepcopy(clinic())
        other_id["tasks"][1]["_id"] = "examination"
        other_id["tasks"][0]["connectedTasks"][0] = "examination"
        assert found((await replayed(other_id, visit))["conversations"][0]) == {}

    async def test_a_task_that_is_gone_leaves_nowhere_to_go_on_until_it_is_left(
        self, visit: Recording
    ) -> None:
        draft = deepcopy(clinic())
        draft["tasks"][1] |= {"_id": "examination", "name": "Visita Perchè no"}
        draft["tasks"][0]["connectedTasks"][0] = "examination"
        report = await replayed(draft, visit)
        [row] = report["conversations"]
        assert (row["path"], row["notReplayed"]) == ("other", [4, 5])
        assert row["newRefusals"] == [{"seq": 3, "task": "Visita Perché", "code": "task_unknown"}]
        assert report["migrations"] == [
            {
                "fromVersionId": "version-1",
                "conversations": 1,
                "mapping": {"visit": "examination"},
                "unmapped": [],
            }
        ]

    async def test_what_nothing_is_like_is_told(self, visit: Recording) -> None:
        draft = deepcopy(clinic())
        draft["tasks"] = [task for task in draft["tasks"] if task["_id"] != "island"]
        report = await replayed(draft, visit)
        assert [each["unmapped"] for each in report["migrations"]] == [["island"]]
        assert report["summary"]["samePath"] == 1

    async def test_a_human_who_is_not_there_any_more_is_a_refusal(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.human("connected")
            recording = await recorded(scene)
        draft = changed(operator={"type": "AIS"})
        [row] = (await replayed(draft, recording))["conversations"]
        assert row["firstFork"] is not None
        assert row["firstFork"]["replayed"]["taskStatus"] == "ai"
        assert row["notReplayed"] == [3]

    async def test_time_passes_as_it_did(self) -> None:
        """A transfer that found nobody in time, and a search that is shorter in the draft."""
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            scene.clock.advance(seconds=40)
            await scene.human("connected")
            recording = await recorded(scene)
        assert found((await replayed(clinic(), recording))["conversations"][0]) == {}
        draft = changed(operator={"routingParameters": {"timeout": 30, "agentSkills": ["radiology"]}})
        [row] = (await replayed(draft, recording))["conversations"]
        assert row["firstFork"] is not None
        assert (row["firstFork"]["seq"], row["firstFork"]["replayed"]["taskStatus"]) == (3, "failed")


class TestValues:
    async def test_time_passes_where_nothing_is_left_of_a_write(self) -> None:
        """A search for a person that ends meanwhile has ended on both sides."""
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            scene.clock.advance(seconds=90)
            await scene.written(entry("var_number", 3))
            recording = await recorded(scene)
        draft = deepcopy(clinic())
        draft["variables"] = [each for each in draft["variables"] if each["_id"] != "var_number"]
        [row] = (await replayed(draft, recording))["conversations"]
        assert (row["path"], row["variablesGone"]) == ("same", ["var_number"])

    async def test_a_variable_that_had_a_value_and_has_no_place_is_gone(self, visit: Recording) -> None:
        draft = deepcopy(clinic())
        draft["variables"] = [each for each in draft["variables"] if each["_id"] != "var_number"]
        [row] = (await replayed(draft, visit))["conversations"]
        assert (row["variablesGone"], row["path"]) == (["var_number"], "same")
        draft["variables"] = [each for each in clinic()["variables"] if each["_id"] != "var_enum"]
        assert (await replayed(draft, visit))["summary"]["variablesGone"] == 0

    async def test_a_value_that_its_type_does_not_take_is_gone(self, visit: Recording) -> None:
        draft = deepcopy(clinic())
        [variable] = [each for each in draft["variables"] if each["_id"] == "var_string"]
        variable["type"] = "number"
        [row] = (await replayed(draft, visit))["conversations"]
        assert row["variablesGone"] == ["var_string"]
        assert row["newRefusals"] == [{"seq": 3, "task": "Visita Perché", "code": "missing_variables"}]

    async def test_what_was_heard_is_heard_again(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "The second visit")
            await working_on(scene, says({"var_string": "x", "var_boolean": True}, "greeted")).mine(MINE)
            await scene.changed("visit")
            recording = await recorded(scene)
        assert found((await replayed(clinic(), recording))["conversations"][0]) == {}
        draft = deepcopy(clinic())
        draft["variables"] = [each for each in draft["variables"] if each["_id"] != "var_boolean"]
        draft["tasks"][1]["transitionParameters"] = needs("var_string")
        [row] = (await replayed(draft, recording))["conversations"]
        assert (row["variablesGone"], row["path"]) == (["var_boolean"], "same")

    async def test_a_summary_that_a_model_wrote_is_read_again_by_the_next_contact(self) -> None:  # F20, F30
        document = over_many_contacts()
        answers = {HANDLER: [OutboundReply(200, b"false")] * 2}
        model = Model(lambda call: "Wants an ECG in March." if call.purpose == "summary" else {})
        async with open_scene(document, answers=answers) as scene:
            await scene.started()
            await scene.say("m-1", "An ECG, please, in March")
            await scene.end()
            by_rules = (await recorded(scene)).entries[-1].outcome["summary"]
            await working_on(scene, model).conclude(Job("conclude", MINE.conversation, "call-1"))
            again = await scene.started(contactId="call-2")
            assert "Wants an ECG in March." in again["prompt"]
            recording = await recorded(scene)
        [written] = [entry for entry in recording.entries if entry.op == "conclusion" and entry.heard]
        assert written.heard is not None
        assert written.heard.previous_contacts is not None
        [contact] = written.heard.previous_contacts
        assert contact["resume"] == "Wants an ECG in March."
        assert by_rules != "Wants an ECG in March."
        replay = await replay_on(document, recording)
        assert found(replay.report()["conversations"][0]) == {}
        side = Side(recording, Compiled(), Platform(load_system_prompts(), lambda: BASE_URL, "markdown"))
        for each in recording.entries:
            await side.take(each, each.input)
        assert [told.resume for told in side.world.state.previous_contacts] == ["Wants an ECG in March."]


class TestPrompts:
    async def test_only_those_of_a_task_that_reads_otherwise_differ(self, visit: Recording) -> None:
        replay = await replay_on(changed(visit={"prompt": "Something <else>."}), visit)
        [row] = replay.report()["conversations"]
        assert found(row) == {"promptsDiffer": [3, 4]}
        [change] = replay.prompt_changes.values()
        assert (change.task, change.seq, change.conversations) == ("Visita Perché", 3, 1)
        assert ("Ask for" in change.recorded, "Something <else>." in change.replayed) == (True, True)

    async def test_after_a_fork_those_are_compared_that_are_made_anew(self, visit: Recording) -> None:
        draft = changed(reception={"connectedTasks": ["operator", "supervised", "written"]})
        [row] = (await replayed(draft, visit))["conversations"]
        assert [refusal["code"] for refusal in row["newRefusals"]] == ["task_not_connected"]
        assert row["promptsDiffer"] == [1, 2, 5], "of the reception, which tells where one can go"


async def test_one_whose_beginning_is_not_kept_starts_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_ENTRIES", 3)
    monkeypatch.setattr(journal_module, "JOURNAL_BYTES", 4_000)
    async with open_scene(clinic()) as scene:
        await scene.started()
        for number in range(20):
            await scene.written(entry("var_string", f"x{number}"), entry("var_boolean", True))
        await scene.changed("visit")
        recording = await recorded(scene)
    assert not recording.complete
    assert found((await replayed(clinic(), recording))["conversations"][0]) == {}
    draft = changed(visit={"transitionParameters": needs("var_phone")})
    [row] = (await replayed(draft, recording))["conversations"]
    assert [refusal["task"] for refusal in row["newRefusals"]] == ["Visita Perché"]


async def test_a_fork_starts_with_what_it_began_with() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
        fork = {"conversationId": "fork-1", "atRevision": 2}
        assert (await scene.post("/v1/conversations/conv-1/fork", fork)).status_code == 201
        await scene.changed("visit", conversationId="fork-1")
        recording = await recorded(scene, "fork-1")
    assert (recording.complete, [each.op for each in recording.entries]) == (False, ["fork", "change-task"])
    assert found((await replayed(clinic(), recording))["conversations"][0]) == {}
    draft = changed(visit={"transitionParameters": needs("var_phone")})
    [row] = (await replayed(draft, recording))["conversations"]
    assert [refusal["seq"] for refusal in row["newRefusals"]] == [2]


async def test_one_that_has_moved_to_another_version_is_stepped_on_both() -> None:
    async with open_scene(over_many_contacts()) as scene:
        await scene.started()
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow, over_many_contacts(_id="version-2"), tag="next")
        body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
        await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)
        await scene.changed("operator")
        recording = await recorded(scene)
    report = await replayed(over_many_contacts(), recording)
    assert found(report["conversations"][0]) == {}
    assert [each["fromVersionId"] for each in report["migrations"]] == ["version-2"]


async def test_one_that_moved_with_a_mapping_is_stepped_with_it() -> None:  # A11, journal: replay
    mapping = {"order": "purchase"}
    document = with_task(shop(), "order", "purchase")
    async with open_scene(shop()) as scene:
        await scene.started()
        await scene.changed("order")
        await scene.changed("hours")
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow, {**document, "_id": "version-2"}, tag="next")
        body = {"fromVersionId": "version-1", "toVersionId": "version-2", "mapping": mapping}
        await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)
        await scene.changed("back")
        recording = await recorded(scene)
    assert recording.entries[3].input["mapping"] == mapping
    (row,) = (await replayed(document, recording))["conversations"]
    assert "notReproduced" not in found(row)
    (row,) = (await replayed(shop(), recording))["conversations"]
    assert (row["newRefusals"], row["notReproduced"]) == ([], [])


@pytest.mark.parametrize("mapping", [None, 5, {"order": ["purchase"]}, {"nothing": "nowhere"}])
async def test_a_mapping_that_is_none_is_not_followed(mapping: object) -> None:  # A11, journal: replay
    async with open_scene(over_many_contacts()) as scene:
        await scene.started()
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow, over_many_contacts(_id="version-2"), tag="next")
        body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
        await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)
        recording = await recorded(scene)
    entries = list(recording.entries)
    entries[1] = entries[1].model_copy(update={"input": {**entries[1].input, "mapping": mapping}})
    report = await replayed(over_many_contacts(), recording.model_copy(update={"entries": entries}))
    assert report["conversations"][0]["newRefusals"] == []


async def test_a_version_that_it_moved_to_brings_its_new_variables() -> None:  # journal: replay
    fresh = {"_id": "fresh", "name": "fresh", "type": "string", "prompt": "New."}
    second = over_many_contacts(_id="version-2")
    second["variables"].append(fresh)
    async with open_scene(over_many_contacts()) as scene:
        await scene.started()
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow, second, tag="next")
        body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
        await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)
        recording = await recorded(scene)
        stored = await scene.memory.conversations.load(ConversationRef("default", "conv-1"))
    side = Side(recording, Compiled(), Platform(load_system_prompts(), lambda: BASE_URL, "markdown"))
    for each in recording.entries:
        await side.take(each, each.input)
    assert {"fresh"} < side.world.state.mined.keys() == stored.mined.keys()
    assert side.world.state.tools.keys() == stored.tools.keys()


async def test_a_recording_whose_outcome_was_another_is_not_passed_over(visit: Recording) -> None:
    entries = list(visit.entries)
    entries[2] = entries[2].model_copy(update={"outcome": {"result": False, "code": "channel_not_available"}})
    other = visit.model_copy(update={"entries": entries})
    assert found((await replayed(clinic(), other))["conversations"][0]) == {"notReproduced": [3]}
