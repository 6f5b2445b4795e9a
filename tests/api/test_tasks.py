"""Moving between tasks, and the human part of HUM and AIS tasks (F11, F12, F25, F29, F34)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import HANDLER, Scene, clinic, entry, needs, open_scene, over_many_contacts
from tests.flow_engine.documents.samples import JsonObject, aio_task

pytestmark = pytest.mark.anyio


async def snapshot(scene: Scene) -> Any:
    return orjson.loads(await scene.memory.driver.client.hget("{default:conv-1}::snapshot", "session"))


def crossroads() -> JsonObject:
    """A first task from which every rule can be broken, two of them at once."""
    document = clinic()
    reception, visit = document["tasks"][:2]
    document["variables"].append({"_id": "var_slot", "name": "slot", "type": "custom"})
    document["mcpServers"] = [
        {"name": "agenda", "url": "http://agenda.internal/mcp", "includedTools": [{"toolName": "findSlots"}]}
    ]
    reception["mcpToolSelection"] = [
        {"mcpServerName": "agenda", "selectedTools": [{"toolName": "findSlots", "toolParameters": []}]}
    ]
    reception["connectedTasks"] += ["by-chat", "booking"]
    visit["transitionParameters"] = needs("var_number", "var_boolean") + needs("var_date", required=False)
    document["tasks"] += [
        aio_task("by-chat", channels=["chat"], transitionParameters=needs("var_string")),
        aio_task("far", channels=["chat"], transitionParameters=needs("var_string")),
        aio_task("booking", transitionParameters=needs("var_slot", "var_string")),
    ]
    return document


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "code"),
        [
            ("nowhere", "task_unknown"),
            ("", "task_unknown"),
            ("reception", "already_in_task"),
            ("island", "task_not_connected"),
            ("written", "channel_not_available"),
            ("booking", "missing_variables"),
            ("far", "task_not_connected"),
            ("by-chat", "channel_not_available"),
        ],
    )
    async def test_a_refusal_is_data_and_changes_nothing_but_a_counter(self, asked: str, code: str) -> None:
        async with open_scene(crossroads()) as scene:
            await scene.started()
            before = await scene.prompt()
            reply = await scene.change(asked)
            refusal = reply.json()
            assert reply.status_code == 200  # F29
            assert (refusal["result"], refusal["code"], refusal["from"]) == (False, code, "reception")  # F12
            assert refusal["command"] == f"/error {refusal['reason']}"  # F25
            assert [task["taskId"] for task in refusal["reachableTasks"]] == [
                *("visit", "operator", "supervised", "booking"),
            ]
            after = await scene.prompt()
            assert after["prefixHash"] == before["prefixHash"]  # F11
            assert refusal["revision"] == after["revision"] == before["revision"] + 1
            assert (await scene.events())[-1]["body"]["code"] == code

    async def test_missing_variables_say_what_could_fill_them(self) -> None:
        async with open_scene(crossroads()) as scene:
            await scene.started()
            refusal = (await scene.change("booking")).json()
            assert refusal["missing"] == [  # F12
                {
                    "varId": "var_slot",
                    "name": "slot",
                    "type": "custom",
                    "fillableBy": ["findSlots"],
                    "fillableIn": [{"taskId": "reception", "task": "reception", "tools": ["findSlots"]}],
                },
                {
                    "varId": "var_string",
                    "name": "a string",
                    "type": "string",
                    "fillableBy": ["convMiner", "findSlots"],
                    "fillableIn": [],
                },
            ]
            assert "'slot'" in refusal["reason"]
            reachable = {task["taskId"]: task for task in refusal["reachableTasks"]}
            assert reachable["booking"]["missingVariables"] == ["slot", "a string"]
            assert reachable["operator"]["missingVariables"] == []

    async def test_only_what_is_missing_is_listed(self) -> None:
        async with open_scene(crossroads()) as scene:
            await scene.started()
            await scene.written(entry("var_string", "Ada"))
            assert [v["varId"] for v in (await scene.change("booking")).json()["missing"]] == [
                "var_slot"
            ]  # F12

    @pytest.mark.parametrize("reason_part", ["line\nbreak", "/start_task x AIO"])
    async def test_what_was_asked_cannot_look_like_a_second_command(self, reason_part: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            command = (await scene.change(reason_part)).json()["command"]
            assert command.startswith("/error ")  # F25
            assert "\n" not in command


class TestGuards:
    async def test_false_and_zero_are_values(self) -> None:
        async with open_scene(crossroads()) as scene:
            await scene.started()
            await scene.written(entry("var_number", 0), entry("var_boolean", False))
            assert (await scene.changed("visit"))["taskId"] == "visit"  # F5, F11

    @pytest.mark.parametrize("nothing", ["", "   ", None])
    async def test_nothing_written_is_no_value(self, nothing: Any) -> None:
        async with open_scene(crossroads()) as scene:
            await scene.started()
            await scene.written(entry("var_number", 0), entry("var_boolean", False))
            await scene.written(entry("var_number", nothing))
            assert [v["varId"] for v in (await scene.change("visit")).json()["missing"]] == [
                "var_number"
            ]  # F5

    @pytest.mark.parametrize(
        "asked", ["visit", "Visita Perché", "visita perche", "VISITA_PERCHÉ", "  visita \n perché "]
    )
    async def test_a_task_is_named_by_id_or_by_name_in_any_spelling(self, asked: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("a string", "Ada"), entry("var_boolean", True))
            assert (await scene.changed(asked))["taskId"] == "visit"  # F4

    async def test_the_guard_of_the_first_task_is_not_asked_at_the_start(self) -> None:
        document = clinic()
        document["tasks"][0]["transitionParameters"] = needs("var_number")
        async with open_scene(document) as scene:
            await scene.started()
            await scene.changed("operator")
            assert (await scene.change("reception")).json()["code"] == "missing_variables"  # F9, F11

    async def test_the_channel_is_that_of_the_contact_now(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            assert (await scene.change("written")).json()["code"] == "channel_not_available"
            await scene.started(contactId="chat-1", channel="chat")
            assert (await scene.change("written", contactId="chat-1")).json()["result"] is True  # F11


class TestChanging:
    async def test_a_change_brings_all_that_a_new_contact_would(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.changed("operator")
            assert reply["command"] == "/start_task operator HUM skills=radiology"  # F25, F29
            assert (reply["taskType"], reply["taskStatus"]) == ("HUM", "routing")
            assert reply["routingParameters"] == {
                "timeout": 60,
                "agentSkills": ["radiology"],
                "agentOptionalSkills": [],
                "agentIds": [],
            }
            assert reply["revision"] == 2
            events = [event["body"] for event in await scene.events()][-2:]
            assert sorted(events, key=lambda body: body["subtype"]) == [  # F40
                {"subtype": "routing_requested", "skills": ["radiology"], "timeout": 60},
                {"subtype": "task_changed", "from": "reception", "to": "operator"},
            ]

    async def test_entries_and_refusals_are_counted_and_unknown_names_are_one(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            for task in ("operator", "reception", "operator"):
                await scene.changed(task)
            for task in ("island", "island", "written", "nowhere", "x" * 500):
                await scene.change(task)
            stored = await snapshot(scene)
            assert stored["entered"] == {"reception": 2, "operator": 2}  # F14
            assert stored["refused"] == {"island": 2, "written": 1, "": 2}

    async def test_values_are_rendered_at_the_entry_and_stay(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("var_string", "Ada"), entry("var_boolean", True))
            prompt = (await scene.changed("visit"))["prompt"]
            assert "Ask for memory->a string; known at the start: Ada." in prompt  # F22, F23
            await scene.written(entry("var_string", "Grace"))
            later = await scene.prompt()
            assert "known at the start: Ada." in later["parts"]["prefix"]
            assert "|a string||Grace|" in later["parts"]["volatile"]
            await scene.changed("reception")
            assert "known at the start: Grace." in (await scene.changed("visit"))["prompt"]

    @pytest.mark.parametrize(
        ("ids", "status", "code"),
        [
            ({"contactId": "call-9"}, 409, "contact_not_active"),
            ({"conversationId": "conv-9"}, 404, "conversation_unknown"),
        ],
    )
    async def test_what_is_unknown_is_refused(self, ids: JsonObject, status: int, code: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.change("operator", **ids)
            assert (reply.status_code, reply.json()["code"]) == (status, code)  # F29

    async def test_a_contact_that_is_not_the_active_one_is_409(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            await scene.started(contactId="call-2")
            reply = await scene.change("operator")
            assert (reply.status_code, reply.json()["code"]) == (409, "contact_not_active")  # F29
            assert reply.json()["state"]["activeContactId"] == "call-2"


class TestHumanTasks:
    async def test_a_transfer_goes_from_routing_over_connected_to_completed(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            connected = (await scene.human("connected")).json()
            assert (connected["taskStatus"], connected["command"], connected["revision"]) == (
                "connected",
                None,
                3,
            )  # F34
            completed = (await scene.human("completed")).json()
            assert (completed["taskStatus"], completed["command"]) == ("completed", "/human_task_completed")
            assert [e["body"]["outcome"] for e in (await scene.events())[-2:]] == ["connected", "completed"]
            assert (await scene.changed("reception"))["taskId"] == "reception"

    @pytest.mark.parametrize("first", [(), ("connected",)])
    @pytest.mark.parametrize(
        ("reason", "command"),
        [
            ("nobody\nanswers", "/human_task_failed nobody answers"),
            (None, "/human_task_failed unknown"),
        ],
    )
    async def test_a_failure_tells_the_model_why(
        self, first: tuple[str, ...], reason: Any, command: str
    ) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            for outcome in first:
                await scene.human(outcome)
            failed = (await scene.human("failed", reason=reason)).json()
            assert (failed["taskStatus"], failed["command"]) == ("failed", command)  # F25, F34

    @pytest.mark.parametrize("outcomes", [("connected",), ("failed",), ("connected", "completed")])
    async def test_an_outcome_that_is_repeated_changes_nothing(self, outcomes: tuple[str, ...]) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            for outcome in outcomes:
                last = await scene.human(outcome, reason="busy")
            events = await scene.events()
            again = await scene.human(outcomes[-1], reason="another reason")
            assert again.json() == last.json()  # F34
            assert await scene.events() == events

    @pytest.mark.parametrize(
        ("task", "before", "outcome", "accepted"),
        [
            ("reception", (), "connected", []),
            ("operator", (), "completed", ["connected", "failed"]),
            ("operator", (), "taken_over", ["connected", "failed"]),
            ("operator", ("connected",), "released", ["completed", "failed"]),
            ("operator", ("failed",), "connected", []),
            ("operator", ("connected", "completed"), "failed", []),
            ("supervised", (), "connected", ["taken_over"]),
            ("supervised", ("taken_over",), "completed", ["released"]),
        ],
    )
    async def test_an_outcome_that_does_not_follow_is_409_with_those_that_do(
        self, task: str, before: tuple[str, ...], outcome: str, accepted: list[str]
    ) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            if task != "reception":
                await scene.changed(task)
            for done in before:
                await scene.human(done)
            reply = await scene.human(outcome)
            problem = reply.json()
            assert (reply.status_code, problem["code"]) == (409, "outcome_not_possible")  # F34
            assert problem["accepted"] == accepted
            assert problem["state"]["taskName"] == task

    async def test_an_outcome_that_does_not_exist_is_422(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.human("vanished")
            assert (reply.status_code, reply.json()["errors"][0]["pointer"]) == (422, "/outcome")  # F34

    async def test_a_human_takes_a_supervised_task_over_and_gives_it_back(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await scene.changed("supervised"))["taskStatus"] == "ai"  # F10
            taken = (await scene.human("taken_over")).json()
            assert (taken["taskStatus"], taken["command"]) == ("human", None)  # F34
            assert (await scene.events())[-1]["taskStatus"] == "HUM"  # F40
            released = (await scene.human("released")).json()
            assert released["taskStatus"] == "ai"
            assert (await scene.events())[-1]["taskStatus"] == "AIS"

    async def test_a_contact_that_is_over_cannot_report(self) -> None:
        async with open_scene(
            over_many_contacts(), answers={HANDLER: [OutboundReply(200, b"false")]}
        ) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.end()
            reply = await scene.human("connected")
            assert (reply.status_code, reply.json()["code"]) == (409, "contact_not_active")  # F34


class TestRoutingTimeout:
    async def routing(self, scene: Scene, seconds: float) -> None:
        await scene.started()
        await scene.changed("operator")
        scene.clock.advance(seconds=seconds)

    async def test_before_its_time_is_out_routing_goes_on(self) -> None:
        async with open_scene(clinic()) as scene:
            await self.routing(scene, 59.9)
            assert (await scene.human("connected")).json()["taskStatus"] == "connected"  # F34
            scene.clock.advance(minutes=5)
            assert (await scene.started())["taskStatus"] == "connected"

    async def test_it_fails_by_itself_whoever_looks_first_and_only_once(self) -> None:
        async with open_scene(clinic()) as scene:
            await self.routing(scene, 60)
            before = (await scene.events())[-1]["body"]["subtype"]
            assert before != "human_task"
            first, second = await scene.prompt(), await scene.prompt()
            assert first["revision"] == second["revision"] == 3  # F34
            assert "Nobody was available" in first["parts"]["volatile"]
            failures = [e["body"] for e in await scene.events() if e["body"]["subtype"] == "human_task"]
            assert failures == [{"subtype": "human_task", "outcome": "failed", "reason": "timeout"}]

    async def test_a_connection_that_comes_too_late_is_409(self) -> None:
        async with open_scene(clinic()) as scene:
            await self.routing(scene, 61)
            late = await scene.human("connected")
            assert (late.status_code, late.json()["code"]) == (409, "outcome_not_possible")  # F34

    async def test_the_failure_that_is_reported_too_tells_of_the_timeout(self) -> None:
        async with open_scene(clinic()) as scene:
            await self.routing(scene, 61)
            reply = (await scene.human("failed", reason="busy")).json()
            assert reply["command"] == "/human_task_failed timeout"  # F25, F34

    async def test_the_conversation_goes_on_from_the_failed_task(self) -> None:
        async with open_scene(clinic()) as scene:
            await self.routing(scene, 61)
            changed = await scene.changed("reception")
            assert (changed["taskId"], changed["command"]) == (
                "reception",
                "/human_task_failed timeout",
            )  # F34
            assert (await scene.changed("operator"))["taskStatus"] == "routing"
