"""The designers' tools at `/mcp`, called as a coding agent calls them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import INVALID_REQUEST, PARSE_ERROR, CallToolResult

from flow_engine.documents.scalars import LONGEST_S
from flow_engine.testing.running import NOBODY
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore
from tests.api.harness import keyring_of, open_scene
from tests.api.test_mcp_server import connected, text_of
from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version

pytestmark = pytest.mark.anyio

CONVERSATION_TOOLS = ["change_task", "get_memory", "set_memory"]
DESIGN_TOOLS = [
    "list_flows",
    "create_flow",
    "read_version",
    "outline_version",
    "validate_version",
    "lint_version",
    "save_draft",
    "test_version",
    "diff_versions",
    "publish_version",
    "try_turn",
    "simulate_version",
    "replay_version",
]
KEYS = {
    "keys": [
        {"key": "designer-a", "tenant": "a", "scopes": ["designer"]},
        {"key": "designer-b", "tenant": "b", "scopes": ["designer"]},
        {"key": "agent-a", "tenant": "a", "scopes": ["agent"]},
        {"key": "tools-a", "tenant": "a", "scopes": ["tools"]},
        {"key": "admin-a", "tenant": "a", "scopes": ["admin"]},
    ]
}


def two_tasks(**changes: Any) -> JsonObject:
    """A document as a coding agent writes it: without what the server sets."""
    welcome = aio_task("welcome", connectedTasks=["order"])
    order = aio_task("order", connectedTasks=["welcome"])
    document = minimal_version(tasks=[welcome, order], firstTask="welcome", **changes)
    return {
        name: value
        for name, value in document.items()
        if name not in ("_id", "conversationalFlowId", "createdAt", "createdBy")
    }


def flow_test(*steps: str) -> str:
    lines = "".join(f"      - {step}\n" for step in steps)
    return f"scenarios:\n  - name: from welcome to an order\n    steps:\n{lines}"


PASSES = flow_test("expect: {task: welcome}", "change_task: order", "expect: {task: order}")
FAILS = flow_test("change_task: order", "expect: {task: welcome}")
MAX = {"name": "Max", "goal": "Order.", "mood": "calm", "language": "en-US", "expect": {"task": "order"}}
MAX_ORDERS = "runs: [{turns: [{user: 'Tea, please.', agent: [{change_task: order}, {say: Sure.}]}]}]"


class Session:
    """Calls tools, and counts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls = 0

    async def result(self, tool: str, **arguments: Any) -> CallToolResult:
        self.calls += 1
        return await self.client.call_tool(tool, arguments)

    async def reply(self, tool: str, **arguments: Any) -> Any:
        result = await self.result(tool, **arguments)
        assert not result.is_error, text_of(result)
        return result.structured_content

    async def problem(self, tool: str, **arguments: Any) -> Any:
        result = await self.result(tool, **arguments)
        assert result.is_error
        return json.loads(text_of(result))


# --- who is offered them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("designer-a", DESIGN_TOOLS),
        ("agent-a", CONVERSATION_TOOLS),
        ("tools-a", CONVERSATION_TOOLS[1:]),
        ("admin-a", CONVERSATION_TOOLS + DESIGN_TOOLS),
    ],
)
async def test_a_key_sees_the_tools_of_its_scopes_and_can_call_no_other(key: str, names: list[str]) -> None:
    """F35, F43"""
    keyring = keyring_of(json.dumps(KEYS).encode())
    async with open_scene(authenticator=keyring) as scene, connected(scene.app, key=key) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == names
        for name in {*CONVERSATION_TOOLS, *DESIGN_TOOLS} - {*names}:
            assert (await Session(client).problem(name))["code"] == "scope_missing"


async def test_tools_that_only_read_say_so() -> None:  # F35
    writing = {"create_flow", "save_draft", "publish_version", "try_turn"}
    async with open_scene() as scene, connected(scene.app) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name in DESIGN_TOOLS:
            annotations = tools[name].annotations
            assert annotations is not None
            assert annotations.read_only_hint is (name not in writing), name


async def test_another_tenants_flow_looks_like_one_that_never_was() -> None:  # F43
    keyring = keyring_of(json.dumps(KEYS).encode())
    async with (
        open_scene(authenticator=keyring) as scene,
        connected(scene.app, key="designer-a") as own,
        connected(scene.app, key="designer-b") as other,
    ):
        flow_id = (await Session(own).reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await Session(own).reply("save_draft", flowId=flow_id, document=two_tasks())
        version = {"flowId": flow_id, **draft}
        assert (await Session(other).reply("list_flows")) == {"flows": []}
        for tool, arguments in (
            ("read_version", version),
            ("outline_version", version),
            ("lint_version", version),
            ("validate_version", {"flowId": flow_id, "document": two_tasks()}),
            ("save_draft", {"flowId": flow_id, "document": two_tasks()}),
            ("test_version", {**version, "tests": PASSES}),
            ("diff_versions", {**version, "otherVersionId": draft["versionId"]}),
            ("publish_version", {**version, "tag": "prod"}),
            ("try_turn", version),
            ("simulate_version", {**version, "persona": MAX, "recordingYaml": MAX_ORDERS}),
            ("replay_version", {**version, "from": "latest"}),
        ):
            refused = await Session(other).problem(tool, **arguments)
            assert (refused["status"], refused["code"]) == (404, "flow_unknown"), tool


# --- a session --------------------------------------------------------------------------------------


async def designed(session: Session) -> tuple[str, str]:
    """From an empty flow to a published one, by 15 calls; the flow's id and that of the version."""
    flow_id = (await session.reply("create_flow", name="Shop", campaignId="autumn"))["flowId"]
    assert (await session.reply("list_flows"))["flows"] == [
        {"flowId": flow_id, "name": "Shop", "campaignId": "autumn", "tags": {}, "versions": 0}
    ]

    # A first attempt, unfinished: it may be kept, and says what it lacks.
    unfinished = two_tasks()
    del unfinished["firstTask"]
    unfinished["tasks"][1]["connectedTasks"] = ["nowhere"]
    told = await session.reply("validate_version", flowId=flow_id, document=unfinished)
    assert told["ok"] is False
    assert {(row["pointer"], row["code"]) for row in told["errors"]} == {
        ("/firstTask", "missing_property"),
        ("/tasks/1/connectedTasks/0", "unknown_task"),
    }

    told = await session.reply("validate_version", flowId=flow_id, document={"tasks": 10**30})
    assert ("/tasks", "integer_too_large") in {(row["pointer"], row["code"]) for row in told["errors"]}

    # The document is talked to before it is saved.
    turn = await session.reply("try_turn", flowId=flow_id, document=two_tasks(), channel="phone")
    assert (turn["task"], turn["pointer"], turn["events"]) == ("welcome", "/tasks/0", ["contact_started"])
    assert turn["reachableTasks"] == [{"name": "order", "pointer": "/tasks/1", "open": True}]
    going = {"flowId": flow_id, "tryId": turn["tryId"]}
    refused = await session.reply("try_turn", **going, changeTask="nowhere")
    assert [each["code"] for each in refused["refusals"]] == ["task_unknown"]
    assert (await session.reply("try_turn", **going, text="/task order"))["pointer"] == "/tasks/1"

    first = (await session.reply("save_draft", flowId=flow_id, document=two_tasks()))["versionId"]
    failed = await session.reply("test_version", flowId=flow_id, versionId=first, tests=FAILS)
    assert (failed["passed"], failed["failed"]) == (0, 1)
    assert failed["scenarios"][0]["failure"]["line"] == 5
    assert failed["scenarios"][0]["failure"]["step"] == "expect"
    passed = await session.reply("test_version", flowId=flow_id, versionId=first, tests=PASSES)
    assert (passed["passed"], passed["failed"]) == (1, 0)
    assert passed["scenarios"] == [{"name": "from welcome to an order", "passed": True, "failure": None}]
    assert passed["coverage"]["transitions"]["leftOut"] == ["order → welcome"]

    shop = {"flowId": flow_id, "versionId": first, "recordingYaml": MAX_ORDERS}
    simulated = await session.reply("simulate_version", **shop, persona=MAX, runs=2)
    assert (simulated["passed"], simulated["failed"], simulated["passK"]) == (2, 0, 1)

    changed = two_tasks(globalPrompt="Sell tea.")
    second = (await session.reply("save_draft", flowId=flow_id, document=changed))["versionId"]
    compared = {"flowId": flow_id, "versionId": first, "otherVersionId": second}
    [change] = (await session.reply("diff_versions", **compared))["changes"]
    assert (change["change"], change["path"], change["after"]) == ("changed", "/globalPrompt", "Sell tea.")

    replayed = await session.reply("replay_version", flowId=flow_id, versionId=second, **{"from": "prod"})
    assert replayed["summary"]["conversations"] == replayed["more"] == 0
    published = await session.reply("publish_version", flowId=flow_id, versionId=second, tag="prod")
    outline = await session.reply("outline_version", flowId=flow_id, versionId="prod")
    assert outline["versionId"] == published["versionId"] != second
    assert (outline["draft"], outline["tags"]) == (False, ["prod", "latest"])
    assert session.calls <= 25
    return flow_id, published["versionId"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_leads_from_an_empty_flow_to_a_published_one_with_its_tests(mode: str) -> None:
    """F2, F6, F8, F9, F27, F35, F41"""
    async with open_scene() as scene, connected(scene.app, mode=mode) as client:
        flow_id, _ = await designed(Session(client))
        started = await scene.started(conversationalFlowVersionId=..., flowId=flow_id, tag="prod")
        assert started["taskName"] == "welcome"


async def test_what_simulated_users_come_to_is_short_and_points_at_tasks() -> (
    None
):  # console: simulated users
    wants = {**MAX, "expect": {"task": "welcome"}}
    long = "runs:\n  - turns:\n" + "      - {user: Hello., agent: [{say: Hello.}]}\n" * 8
    long += "      - {user: 'Tea, please.', agent: [{change_task: order}]}\n"
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id, _ = await designed(session)
        told = {"flowId": flow_id, "document": two_tasks(), "recordingYaml": long}
        failed = await session.result("simulate_version", **told, persona=wants)
        assert text_of(failed).splitlines() == [
            "0 passed, 1 failed, pass^1 0",
            "run 1: at the end, task: expected 'welcome', found 'order'",
        ]
        reply: Any = failed.structured_content
        [run] = reply["results"]
        assert (run["task"], run["pointer"], run["turns"]) == ("order", "/tasks/1", 9)
        assert len(run["conversation"]) == 6
        assert run["conversation"][-1] == {"user": "Tea, please.", "agent": [{"change_task": "order"}]}
        assert reply["recordingYaml"] is None

        passed = await session.reply("simulate_version", **told, persona=MAX, record=True)
        assert passed["results"][0]["conversation"] == []
        again = {**told, "recordingYaml": passed["recordingYaml"]}
        assert (await session.reply("simulate_version", **again, persona=MAX))["passK"] == 1
        assert (await session.reply("list_flows"))["flows"][0]["versions"] == 3  # nothing was saved


@pytest.mark.parametrize(
    ("sent", "code", "pointers"),
    [
        ({"persona": MAX}, "model_not_configured", []),
        ({"recordingYaml": MAX_ORDERS}, "arguments_invalid", [""]),
        ({"persona": MAX, "recordingYaml": "runs: 1"}, "recording_invalid", ["/recordingYaml/runs"]),
        (
            {"persona": {**MAX, "expect": {"task": "nowhere"}}, "recordingYaml": MAX_ORDERS},
            "persona_invalid",
            ["/persona/expect/task"],
        ),
        ({"persona": MAX, "runs": 21, "record": "yes"}, "arguments_invalid", ["/runs", "/record"]),
    ],
)
async def test_a_simulation_over_mcp_says_what_is_wrong_and_where(
    sent: Mapping[str, object], code: str, pointers: Sequence[str]
) -> None:  # F35
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        told = {"flowId": flow_id, "document": two_tasks(), **sent}
        problem = await session.problem("simulate_version", **told)
        assert problem["code"] == code
        assert [each["pointer"] for each in problem.get("errors", ())] == pointers


async def test_what_replays_find_is_short_and_points_at_tasks() -> None:  # console: replay_version
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id, _ = await designed(session)
        for number in range(2):
            ids = {"conversationId": f"conv-{number}", "contactId": f"call-{number}"}
            await scene.started(**ids, conversationalFlowVersionId=..., flowId=flow_id, tag="prod")
            if number:
                await scene.changed("order", **ids)
        guarded = two_tasks()
        guarded["variables"] = [{"_id": "v1", "name": "size", "type": "number", "prompt": "The size"}]
        guarded["tasks"][1]["transitionParameters"] = [{"variableId": "v1", "required": True}]
        draft = await session.reply("save_draft", flowId=flow_id, document=guarded)
        found = await session.reply("replay_version", flowId=flow_id, **draft, **{"from": "prod", "last": 10})
        assert (found["summary"]["conversations"], found["summary"]["otherPath"]) == (2, 1)
        [row] = found["conversations"]
        assert (row["conversationId"], row["newRefusals"][0]["code"]) == ("conv-1", "missing_variables")
        assert (found["pointers"], found["more"]) == ({"order": "/tasks/1"}, 0)
        by_id = await session.reply("replay_version", flowId=flow_id, **draft, conversations=["conv-0"])
        assert by_id["conversations"] == []


async def test_a_turn_over_mcp_says_what_cannot_be_meant() -> None:  # F35
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id, version_id = await designed(session)
        for arguments in (
            {"tryId": "nobody"},
            {"tryId": "nobody", "text": "a", "channel": "phone"},
            {"text": "a", "changeTask": "b"},
            {"versionId": version_id, "document": {}},
        ):
            problem = await session.problem("try_turn", flowId=flow_id, **arguments)
            assert (problem["status"], problem["code"]) == (422, "arguments_invalid"), arguments
        unknown = await session.problem("try_turn", flowId=flow_id, tryId="nobody", text="hello")
        assert (unknown["status"], unknown["code"]) == (404, "try_unknown")
        begun = await session.reply("try_turn", flowId=flow_id, text="/task order")
        assert (begun["turn"], begun["task"]) == (2, "order")
        wrong = await session.problem("try_turn", flowId=flow_id, tryId=begun["tryId"], memory={"size": 1})
        assert [each["pointer"] for each in wrong["errors"]] == ["/memory/size"]
        for seconds in (0, LONGEST_S + 1):
            [told] = (await session.problem("try_turn", flowId=flow_id, wait=seconds))["errors"]
            assert told["pointer"] == "/wait"
            assert str(LONGEST_S) in told["message"] or seconds == 0
            assert "text" not in told["message"], "the tool takes none"


# --- each tool --------------------------------------------------------------------------------------


async def test_an_outline_points_at_every_task_and_variable() -> None:  # F35
    document = two_tasks()
    document["variables"] = [{"_id": "v1", "name": "size", "type": "number", "prompt": "The size"}]
    document["tasks"][1]["transitionParameters"] = [{"variableId": "v1", "required": True}]
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=document)
        result = await session.result("outline_version", flowId=flow_id)
        assert result.structured_content == {
            "versionId": draft["versionId"],
            "draft": True,
            "tags": [],
            "channels": document["channels"],
            "firstTask": "welcome",
            "tasks": [
                {
                    "id": "welcome",
                    "name": "welcome",
                    "type": "AIO",
                    "pointer": "/tasks/0",
                    "to": ["order"],
                    "requires": [],
                    "tools": [],
                },
                {
                    "id": "order",
                    "name": "order",
                    "type": "AIO",
                    "pointer": "/tasks/1",
                    "to": ["welcome"],
                    "requires": ["size"],
                    "tools": [],
                },
            ],
            "variables": [{"id": "v1", "name": "size", "type": "number", "pointer": "/variables/0"}],
        }
        assert text_of(result).splitlines() == [
            f"draft {draft['versionId']}, first task 'welcome'",
            "/tasks/0 welcome (AIO) → order",
            "/tasks/1 order (AIO) → welcome",
        ]


async def test_a_version_is_read_by_id_by_tag_or_as_the_newest() -> None:  # F6, F27
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        empty = await session.problem("read_version", flowId=flow_id)
        assert (empty["status"], empty["code"]) == (422, "version_missing")
        first = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        tagged = await session.reply("publish_version", flowId=flow_id, **first, tag="prod")
        newest = await session.reply("save_draft", flowId=flow_id, document={})
        for named, expected in (
            ({}, newest),
            ({"versionId": "prod"}, tagged),
            ({"versionId": "latest"}, tagged),
            (first, first),
        ):
            read = await session.reply("read_version", flowId=flow_id, **named)
            assert read["versionId"] == read["document"]["_id"] == expected["versionId"]
        compared = {"versionId": "prod", "otherVersionId": newest["versionId"]}
        assert (await session.reply("diff_versions", flowId=flow_id, **compared))["changes"]
        compared = {"versionId": first["versionId"], "otherVersionId": "latest"}
        [change] = (await session.reply("diff_versions", flowId=flow_id, **compared))["changes"]
        assert change["path"].endswith("/draft")
        played = await session.reply("test_version", flowId=flow_id, versionId="prod", tests=PASSES)
        assert played["passed"] == 1
        replayed = await session.reply(
            "replay_version", flowId=flow_id, versionId="latest", **{"from": "prod"}
        )
        assert replayed["summary"]["conversations"] == 0
        unknown = await session.problem("read_version", flowId=flow_id, versionId="staging")
        assert (unknown["status"], unknown["code"]) == (404, "version_unknown")


async def test_a_document_that_is_too_large_is_a_verdict_with_that_error() -> None:  # F9 F27
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        large = two_tasks(globalPrompt="a" * 1_000_000)
        verdict = await session.reply("validate_version", flowId=flow_id, document=large)
        assert (verdict["ok"], [row["code"] for row in verdict["errors"]]) == (False, ["too_large"])


async def test_a_saved_draft_is_linted_as_the_version_that_it_would_become() -> None:  # F9
    lonely = two_tasks()
    lonely["tasks"].append(aio_task("island"))
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        await session.reply("save_draft", flowId=flow_id, document=lonely)
        linted = await session.reply("lint_version", flowId=flow_id)
        assert linted == await session.reply("validate_version", flowId=flow_id, document=lonely)
        assert linted["ok"] is True
        assert "/tasks/2" in {row["pointer"] for row in linted["warnings"]}
        await session.reply("save_draft", flowId=flow_id, document={})
        assert (await session.reply("lint_version", flowId=flow_id))["ok"] is False


async def test_a_draft_is_a_draft_whatever_its_document_says() -> None:  # F8
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        document = two_tasks(draft=False)
        given = deepcopy(document)
        await session.reply("save_draft", flowId=flow_id, document=document)
        assert document == given
        read = await session.reply("read_version", flowId=flow_id)
        assert read["document"]["draft"] is True
        assert (await session.reply("list_flows"))["flows"][0]["tags"] == {}


async def test_a_document_that_was_read_can_be_edited_and_saved() -> None:  # A14, D7
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        first = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        read = await session.reply("read_version", flowId=flow_id)
        again = await session.reply("save_draft", flowId=flow_id, document=read["document"])
        assert again["versionId"] != first["versionId"]


async def test_a_draft_with_a_broken_schema_is_refused_with_every_pointer() -> None:  # F2
    document = two_tasks(channels=["phone", "pigeon"])
    document["tasks"][0]["type"] = "ROBOT"
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        refused = await session.problem("save_draft", flowId=flow_id, document=document)
        assert (refused["status"], refused["code"]) == (422, "document_invalid")
        assert {row["pointer"] for row in refused["errors"]} == {"/channels/1", "/tasks/0/type"}
        assert (await session.reply("list_flows"))["flows"][0]["versions"] == 0


@pytest.mark.parametrize(
    ("tests", "pointers"),
    [
        ("[", [""]),
        ("scenarios: []", ["/scenarios"]),
        (flow_test("expect: {task: nowhere}"), ["/scenarios/0/steps/0/expect/task"]),
        (
            flow_test("change_task: nowhere", "jump: order"),
            ["/scenarios/0/steps/1"],
        ),
    ],
)
async def test_a_yaml_that_cannot_be_played_is_refused_with_its_places(
    tests: str, pointers: list[str]
) -> None:  # F41
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        refused = await session.problem("test_version", flowId=flow_id, **draft, tests=tests)
        assert (refused["status"], refused["code"]) == (422, "tests_invalid")
        assert sorted({row["pointer"] for row in refused["errors"]}) == pointers
        assert all(row["message"].startswith("line ") for row in refused["errors"])


async def test_playing_leaves_nothing_behind() -> None:  # F41
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        before = await scene.memory.driver.client.keys("*")
        assert (await session.reply("test_version", flowId=flow_id, **draft, tests=PASSES))["passed"] == 1
        assert await scene.memory.driver.client.keys("*") == before
        assert (await scene.http.get(f"/v1/memory/{NOBODY}")).status_code == 404


async def test_publishing_an_unfinished_draft_lists_what_it_lacks_and_moves_nothing() -> None:  # F8
    document = two_tasks()
    del document["firstTask"]
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=document)
        refused = await session.problem("publish_version", flowId=flow_id, **draft, tag="prod")
        assert [row["pointer"] for row in refused["errors"]] == ["/firstTask"]
        [row] = (await session.reply("list_flows"))["flows"]
        assert (row["tags"], row["versions"]) == ({}, 1)


async def test_a_published_version_is_only_pointed_at() -> None:  # F6: promotion, and rollback
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        versions = []
        for prompt in ("Sell tea.", "Sell coffee."):
            draft = await session.reply("save_draft", flowId=flow_id, document=two_tasks(globalPrompt=prompt))
            versions.append(await session.reply("publish_version", flowId=flow_id, **draft, tag="prod"))
        older, newer = versions
        assert (await session.reply("list_flows"))["flows"][0]["tags"]["prod"] == newer["versionId"]
        assert await session.reply("publish_version", flowId=flow_id, **older, tag="prod") == older
        [row] = (await session.reply("list_flows"))["flows"]
        assert row["tags"] == {"latest": newer["versionId"], "prod": older["versionId"]}
        assert row["versions"] == 4


async def test_a_call_that_is_repeated_under_its_key_takes_effect_once() -> None:  # F15
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)

        async def twice(tool: str, **arguments: Any) -> Any:
            first, second = [
                await session.reply(tool, **arguments, idempotencyKey=f"key of {tool}") for _ in range(2)
            ]
            assert first == second
            return first

        flow_id = (await twice("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await twice("save_draft", flowId=flow_id, document=two_tasks())
        published = await twice("publish_version", flowId=flow_id, **draft, tag="prod")
        other = await session.reply("publish_version", flowId=flow_id, **draft, tag="other")
        await session.reply("publish_version", flowId=flow_id, **other, tag="prod")
        await twice("publish_version", flowId=flow_id, **draft, tag="prod")
        [row] = (await session.reply("list_flows"))["flows"]
        assert (row["versions"], row["tags"]["prod"]) == (3, other["versionId"])
        assert other != published
        begun = await twice("try_turn", flowId=flow_id, text="Tea.")
        gone_on = {"flowId": flow_id, "tryId": begun["tryId"], "idempotencyKey": "k"}
        turns = [(await session.reply("try_turn", **gone_on, text="Now."))["turn"] for _ in range(2)]
        assert turns == [begun["turn"] + 1] * 2
        reused = {"name": "Café", "campaignId": "c", "idempotencyKey": "key of create_flow"}
        assert (await session.problem("create_flow", **reused))["code"] == "idempotency_key_reused"


async def test_two_designers_cannot_bury_each_others_work() -> None:  # F6
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        base = (await session.reply("publish_version", flowId=flow_id, **draft, tag="latest"))["versionId"]
        mine, theirs = [
            await session.reply(
                "save_draft",
                flowId=flow_id,
                document=two_tasks(globalPrompt=prompt),
                parentVersionId=base,
            )
            for prompt in ("Sell tea.", "Sell coffee.")
        ]
        await session.reply("publish_version", flowId=flow_id, **theirs, tag="latest")
        refused = await session.problem("publish_version", flowId=flow_id, **mine, tag="latest")
        assert (refused["status"], refused["code"]) == (409, "parent_not_latest")
        beside = await session.reply("publish_version", flowId=flow_id, **mine, tag="mine")
        tags = (await session.reply("list_flows"))["flows"][0]["tags"]
        assert tags["mine"] == beside["versionId"] != tags["latest"]


@pytest.mark.parametrize("tag", ["", "no spaces", "LATEST", "a" * 65])
async def test_a_tag_that_no_url_can_hold_is_refused_before_anything_is_saved(tag: str) -> None:  # F6
    async with open_scene() as scene, connected(scene.app) as client:
        session = Session(client)
        flow_id = (await session.reply("create_flow", name="Shop", campaignId="c"))["flowId"]
        draft = await session.reply("save_draft", flowId=flow_id, document=two_tasks())
        refused = await session.problem("publish_version", flowId=flow_id, **draft, tag=tag)
        assert refused["status"] == 422
        assert (await session.reply("list_flows"))["flows"][0]["versions"] == 1


# --- over the standard streams ----------------------------------------------------------------------


async def test_a_coding_agent_speaks_over_the_standard_streams(tmp_path: Path) -> None:  # F35
    """The program itself, on the data directory of `serve`, with its log on standard error."""
    settings = {"FLOW_ENGINE_DATA_DIR": str(tmp_path / "data"), "FLOW_ENGINE_SAMPLES": "false"}
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "service.cli", "mcp"], env=settings, cwd=Path(__file__).parents[2]
    )
    with (tmp_path / "stderr").open("w+") as log:
        async with Client(stdio_client(program, errlog=log)) as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            assert offered == CONVERSATION_TOOLS + DESIGN_TOOLS
            flow_id, _ = await designed(Session(client))
        log.seek(0)
        lines = [orjson.loads(line) for line in log if line.startswith("{")]
        assert {(line["event"], line["code"]) for line in lines} == {("tool_call", None)}
        assert [line["tool"] for line in lines][:3] == ["create_flow", "list_flows", "validate_version"]
    database = SqliteDatabase(tmp_path / "data")
    await database.open()
    try:
        [flow] = await SqliteFlowStore(database).list("default", None)
        assert (flow.flow_id, flow.updated_by) == (flow_id, "local")
    finally:
        await database.close()


async def test_a_line_that_is_no_message_is_answered_over_the_standard_streams(tmp_path: Path) -> None:  # F35
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    lines = (
        (b"garbage", (None, PARSE_ERROR)),
        (orjson.dumps(opening), (1, None)),
        (b"", None),
        (b"[]", (None, INVALID_REQUEST)),
        (
            b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"\\ud800"}}',
            (7, INVALID_REQUEST),
        ),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', (None, INVALID_REQUEST)),
        (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', ("a", INVALID_REQUEST)),
        (b"[" * 100_000, (None, PARSE_ERROR)),
        (b'{"jsonrpc":"2.0","id":2,"method":"ping"}', (2, None)),
    )
    environment = {**os.environ, "FLOW_ENGINE_DATA_DIR": str(tmp_path), "FLOW_ENGINE_SAMPLES": "false"}
    async with await anyio.open_process(
        [sys.executable, "-m", "service.cli", "mcp"], env=environment, cwd=Path(__file__).parents[2]
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        answers = BufferedByteReceiveStream(program.stdout)
        for line, expected in lines:
            await program.stdin.send(line + b"\n")
            if expected is not None:
                with anyio.fail_after(30):
                    answer = orjson.loads(await answers.receive_until(b"\n", 1_000_000))
                assert (answer["id"], answer.get("error", {}).get("code")) == expected, line[:80]
        await program.stdin.aclose()
        with anyio.fail_after(30):
            assert await program.wait() == 0
