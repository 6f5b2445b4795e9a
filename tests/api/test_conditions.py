"""Conditions in a served flow: gate, refusal, reachable tasks, prompt, tools, checkpoints."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_engine.conditions.evaluation import Condition
from flow_engine.documents import parse_version
from flow_engine.errors import CorrectTheInput
from flow_engine.linting import lint
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.rules import TaskGuard, explain
from tests.api.harness import Scene, clinic, entry, needs, open_scene
from tests.flow_engine.conditions import expressions
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task, minimal_version

pytestmark = pytest.mark.anyio

ADULT = {"when": "vars.var_number >= 18 and channel == 'phone'", "reason": "Only adults, and by phone."}
ASKED = {"when": "has(vars.var_string)", "reason": "Ask for the complaint first."}


def guarded(**changes: Any) -> JsonObject:
    """`reception` → `loan`, which requires a boolean, under a condition of its own and one on the way."""
    document = clinic(**changes)
    document["tasks"].append(
        aio_task(
            "loan",
            connectedTasks=["reception"],
            entryCondition=ADULT,
            transitionParameters=needs("var_boolean"),
        )
    )
    reception = document["tasks"][0]
    reception["connectedTasks"].append("loan")
    reception["connectionConditions"] = {"loan": ASKED}
    return document


async def loan_row(scene: Scene) -> Any:
    """`loan` among the reachable tasks, as a refusal lists them."""
    refusal = (await scene.change("reception")).json()
    return next(task for task in refusal["reachableTasks"] if task["taskId"] == "loan")


async def test_rules_are_asked_in_their_order_and_a_refusal_explains_itself() -> None:
    async with open_scene(guarded()) as scene:
        await scene.started()
        assert (await scene.change("loan")).json()["code"] == "missing_variables"
        await scene.written(entry("var_boolean", True), entry("var_number", 17))
        refusal = (await scene.change("loan")).json()
        assert (refusal["result"], refusal["code"], refusal["missing"]) == (False, "condition_not_met", [])
        assert refusal["reason"] == ASKED["reason"]
        assert refusal["command"] == f"/error {ASKED['reason']}"
        assert refusal["condition"] == {
            "of": "connection",
            "when": ASKED["when"],
            "truth": "false",
            "parts": [
                {"expression": "has(vars.var_string)", "truth": "false", "values": {"vars.var_string": None}}
            ],
            "wouldHold": ["has(vars.var_string)"],
        }
        await scene.written(entry("var_string", "late"))
        refusal = (await scene.change("loan")).json()
        assert refusal["reason"] == ADULT["reason"]
        assert refusal["condition"] == {
            "of": "task",
            "when": ADULT["when"],
            "truth": "false",
            "parts": [
                {
                    "expression": "vars.var_number >= 18",
                    "truth": "false",
                    "values": {"vars.var_number": 17},
                },
                {"expression": "channel == 'phone'", "truth": "true", "values": {"channel": "phone"}},
            ],
            "wouldHold": ["vars.var_number >= 18"],
        }
        codes = [
            e["body"]["code"] for e in await scene.events() if e["body"].get("subtype") == "task_refused"
        ]
        assert codes == ["missing_variables", "condition_not_met", "condition_not_met"]
        await scene.written(entry("var_number", 18))
        assert (await scene.changed("loan"))["taskName"] == "loan"


async def test_a_missing_value_makes_a_condition_unknown_and_unknown_is_not_true() -> None:
    document = guarded()
    document["tasks"][-1]["transitionParameters"] = []
    document["tasks"][0]["connectionConditions"] = {}
    async with open_scene(document) as scene:
        await scene.started()
        refusal = (await scene.change("loan")).json()
        assert (refusal["code"], refusal["condition"]["truth"]) == ("condition_not_met", "unknown")
        assert refusal["condition"]["of"] == "task"


async def test_an_unmet_task_stays_listed_with_its_reason_in_the_volatile_part() -> None:
    async with open_scene(guarded()) as scene:
        begun = await scene.started()
        rows = {task["taskId"]: task for task in begun["reachableTasks"]}
        assert rows["visit"]["condition"] is None
        assert rows["loan"]["condition"] == {"met": False, "reason": ASKED["reason"]}
        before = await scene.prompt()
        assert f"- loan: {ASKED['reason']}" in before["parts"]["volatile"]
        await scene.written(entry("var_string", "late"))
        assert (await loan_row(scene))["condition"] == {"met": False, "reason": ADULT["reason"]}
        assert f"- loan: {ADULT['reason']}" in (await scene.prompt())["parts"]["volatile"]
        await scene.written(entry("var_number", 18))
        assert (await loan_row(scene))["condition"] == {"met": True, "reason": ASKED["reason"]}
        after = await scene.prompt()
        assert "- loan: " not in after["parts"]["volatile"]
        assert after["prefixHash"] == before["prefixHash"]  # conditions never move the prefix


async def test_what_the_clock_opens_is_not_answered_from_what_was_kept() -> None:
    document = guarded()
    document["tasks"][-1]["entryCondition"] = {"when": "now >= '2026-01-15T09:30:20Z'", "reason": "At half."}
    document["tasks"][0]["connectionConditions"] = {}
    async with open_scene(document) as scene:
        await scene.started()
        first = await scene.http.get("/v1/prompt/conv-1")
        assert "At half." in first.text
        scene.clock.advance(seconds=20)  # the minute of the prompt is the same
        again = await scene.http.get("/v1/prompt/conv-1", headers={"If-None-Match": first.headers["ETag"]})
        assert again.status_code == 200
        assert "At half." not in again.text


async def test_a_tool_whose_condition_is_not_true_is_left_out() -> None:
    document = clinic()
    document["mcpServers"] = [
        {
            "name": "agenda",
            "url": "http://agenda.internal/mcp",
            "includedTools": [{"toolName": "find"}, {"toolName": "book"}],
        }
    ]
    chosen = [{"toolName": "find"}, {"toolName": "book", "when": "vars.var_number > 1"}]
    document["tasks"][0]["mcpToolSelection"] = [{"mcpServerName": "agenda", "selectedTools": chosen}]

    def tools(reply: Any) -> list[str]:
        server = next(each for each in reply["mcpTools"] if each["serverName"] == "agenda")
        return [tool["toolName"] for tool in server["tools"]]

    async with open_scene(document) as scene:
        assert tools(await scene.started()) == ["find"]
        await scene.written(entry("var_number", 2))
        assert tools(await scene.started()) == ["find", "book"]


async def test_a_checkpoint_whose_condition_is_not_true_is_neither_shown_nor_judged() -> None:
    document = clinic(
        checkpoints=[
            {"_id": "paid", "name": "Paid", "prompt": "The bill is paid", "when": "vars.var_boolean"}
        ]
    )
    document["tasks"][0]["enabledCheckpoints"] = [
        {"_id": "paid", "name": "Paid", "prompt": "The bill is paid"}
    ]
    async with open_scene(document) as scene:
        await scene.started()
        before = await scene.prompt()
        assert "The bill is paid" not in before["prompt"]
        await scene.written(entry("var_boolean", True))
        after = await scene.prompt()
        assert "- Paid: The bill is paid" in after["parts"]["volatile"]
        assert after["prefixHash"] == before["prefixHash"]


@pytest.mark.parametrize(
    ("where", "condition", "code", "place"),
    [
        ("task", "vars.var_number => 1", "condition_syntax", "/tasks/0/entryCondition/when"),
        ("task", "vars.gone == 1", "condition_unknown_name", "/tasks/0/entryCondition/when"),
        (
            "connection",
            "vars.var_number == 'x'",
            "condition_type_clash",
            "/tasks/0/connectionConditions/visit/when",
        ),
        ("checkpoint", "sum(1) == 1", "condition_unknown_name", "/checkpoints/0/when"),
    ],
)
async def test_a_condition_that_says_nothing_refuses_the_save(
    where: str, condition: str, code: str, place: str
) -> None:
    document = clinic()
    if where == "checkpoint":
        document["checkpoints"] = [{"_id": "c", "name": "c", "prompt": "c", "when": condition}]
    elif where == "task":
        document["tasks"][0]["entryCondition"] = {"when": condition}
    else:
        document["tasks"][0]["connectionConditions"] = {"visit": {"when": condition}}
    async with open_scene() as scene:
        flow = {"name": "f", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        reply = await scene.post(
            f"/v1/flows/{flow_id}/versions", {**document, "conversationalFlowId": flow_id}
        )
        assert reply.status_code == 422
        assert [(e["pointer"], e["code"]) for e in reply.json()["errors"]] == [(place, code)]


def test_a_stored_condition_that_cannot_be_read_lets_nothing_run() -> None:
    document = minimal_version()
    document["tasks"][0]["entryCondition"] = {"when": "vars."}
    with pytest.raises(CorrectTheInput) as refused:
        compile_flow(document, "hash")
    assert [finding.code for finding in refused.value.findings] == ["condition_syntax"]


# --- gate, linter and a second reading ------------------------------------------------------------


def two_tasks(on_the_way: str, own: str) -> JsonObject:
    """`a` → `b`, over the variables of the random conditions; a tool may write the custom one."""
    variables = [
        {"_id": s.id, "name": s.name, "type": s.type, "prompt": s.name, "enumValues": list(s.enum_values)}
        for s in expressions.VARIABLES
    ]
    tools = {"mcpServerName": "desk", "selectedTools": [{"toolName": "look", "toolParameters": []}]}
    return minimal_version(
        variables=variables,
        mcpServers=[
            {"name": "desk", "url": "https://desk.example.com", "includedTools": [{"toolName": "look"}]}
        ],
        tasks=[
            aio_task(
                "menu",
                connectedTasks=["a task"],
                connectionConditions={"a task": {"when": on_the_way}},
                mcpToolSelection=[tools],
            ),
            aio_task("a task", connectedTasks=["menu"], entryCondition={"when": own}),
        ],
        firstTask="menu",
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions.trees, expressions.trees, st.lists(expressions.all_facts, min_size=1, max_size=3))
def test_gate_linter_and_a_second_reading_agree(one: Any, two: Any, known: list[Any]) -> None:
    texts = [expressions.lang.text_of(tree) for tree in (one, two)]
    document = two_tasks(*texts)
    flow = compile_flow(document, "hash")
    found = {(f.pointer, f.code) for f in lint(parse_version(document), ENVIRONMENT)}
    pointers = ("/tasks/0/connectionConditions/a task/when", "/tasks/1/entryCondition/when")
    for facts in known:
        memory = {
            key: MemoryEntry("custom", "t", None, stored.value, "c", None)
            for key, stored in facts.memory.items()
        }
        guard = TaskGuard(flow, memory, facts.channel, flow.tasks["menu"], facts)
        truths = [expressions.truth(tree, facts) for tree in (one, two)]
        opened = truths == [True, True]
        assert guard.allows("a task") is opened
        refusal = explain(flow, flow.tasks["menu"], "a task", guard)
        assert (refusal is None) is opened
        if refusal is not None and refusal.condition is not None:
            assert refusal.condition.rule.of == ("connection" if truths[0] is not True else "task")
        for place, truth in zip(pointers, truths, strict=True):
            assert truth is not True or (place, "condition_never_true") not in found
            assert truth is True or (place, "condition_always_true") not in found
        assert not opened or (pointers[0], "connection_never_open") not in found


def test_a_flow_without_conditions_compiles_none() -> None:
    assert compile_flow(orjson.loads(orjson.dumps(minimal_version())), "hash").conditions == {}
    assert Condition.compile("true", expressions.VARIABLES).reads_clock is False
