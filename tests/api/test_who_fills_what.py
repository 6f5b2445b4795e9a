"""Which tool writes which variable: what the linter proves of it, and what a refusal tells."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.documents import parse_version
from flow_engine.linting import lint
from flow_engine.linting.graph import Barriers, explore_arrivals
from tests.api.harness import entry, needs, open_scene
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task, minimal_version

pytestmark = pytest.mark.anyio

SLOT = {"_id": "slot", "name": "slot", "type": "custom"}
PRICE = {"_id": "price", "name": "price", "type": "custom"}
PROVEN = {"required_variable_never_filled", "connection_never_open", "required_variable_unfilled_on_path"}


def chosen(*tools: tuple[str, JsonObject]) -> list[JsonObject]:
    return [{"mcpServerName": "agenda", "selectedTools": [{"toolName": n, **more} for n, more in tools]}]


def agenda(
    *, search: JsonObject, quote: JsonObject, way: Any = ("menu", "search", "quote", "book")
) -> JsonObject:
    """`menu` → `search` → `quote` → `book`, which requires slot and price; tools in `search` and `quote`."""
    tasks = [
        aio_task("menu", connectedTasks=["search", "book"]),
        aio_task("search", connectedTasks=["quote", "menu"], mcpToolSelection=chosen(("find", search))),
        aio_task("quote", connectedTasks=["book"], mcpToolSelection=chosen(("ask_price", quote))),
        aio_task("book", connectedTasks=["menu"], transitionParameters=needs("slot", "price")),
    ]
    for here, there in pairwise(way):
        task = next(each for each in tasks if each["_id"] == here)
        task["connectedTasks"] = list(dict.fromkeys([*task["connectedTasks"], there]))
    servers = [
        {
            "name": "agenda",
            "url": "https://mcp.example.com/agenda",
            "includedTools": [{"toolName": "find"}, {"toolName": "ask_price"}],
        }
    ]
    variables = [*minimal_version()["variables"], SLOT, PRICE]
    return minimal_version(tasks=tasks, firstTask="menu", variables=variables, mcpServers=servers)


def proven(document: JsonObject) -> list[tuple[str, str]]:
    found = lint(parse_version(document), ENVIRONMENT)
    return [(f.code, f.reason) for f in found if f.code in PROVEN]


def test_tools_that_tell_nothing_may_write_anything_as_before() -> None:
    assert proven(agenda(search={}, quote={})) == []


def test_a_variable_that_no_tool_on_any_path_writes_is_proven_to_stay_empty() -> None:
    found = proven(agenda(search={"writes": ["slot"]}, quote={"writes": []}))
    assert [code for code, _ in found] == ["required_variable_never_filled"]
    assert "only a tool writes the custom 'price', and none that is selected writes it" in found[0][1]
    assert "'slot'" not in found[0][1]


def test_a_mapping_writes_what_it_names() -> None:
    assert proven(agenda(search={"writes": ["slot"]}, quote={"resultMapping": {"price": "$.price"}})) == []


def test_the_tool_that_writes_it_elsewhere_is_named() -> None:
    document = agenda(search={"writes": ["slot"]}, quote={"writes": ["price"]})
    document["tasks"][2]["connectedTasks"] = ["menu"]
    document["tasks"][1]["connectedTasks"] = ["menu", "book"]
    found = proven(document)
    assert [code for code, _ in found] == ["required_variable_never_filled"]
    told = (
        "only a tool writes the custom 'price' ('ask_price' of 'quote'), and none that is selected writes it"
    )
    assert told in found[0][1]


async def test_a_refusal_names_every_task_with_a_tool_that_can_the_nearest_first() -> None:
    document = agenda(search={"writes": ["slot"]}, quote={"writes": ["slot", "price", "var_string"]})
    document["tasks"][3]["transitionParameters"] = needs("slot", "price", "var_string", "var_number")
    async with open_scene(document) as scene:
        await scene.started()
        missing = {v["varId"]: v for v in (await scene.change("book")).json()["missing"]}
        search = {"taskId": "search", "task": "search", "tools": ["find"]}
        quote = {"taskId": "quote", "task": "quote", "tools": ["ask_price"]}
        assert {var_id: v["fillableIn"] for var_id, v in missing.items()} == {
            "slot": [search, quote],
            "price": [quote],
            "var_string": [quote],
            "var_number": [],
        }
        assert missing["slot"]["fillableBy"] == []
        assert missing["var_number"]["fillableBy"] == ["convMiner"]
        await scene.changed("search")
        await scene.written(entry("slot", 1, descriptionForLLM=[{"name": "id", "value": "1"}]))
        await scene.changed("quote")
        refusal = (await scene.change("book")).json()
        assert [(v["varId"], v["fillableBy"]) for v in refusal["missing"]] == [
            ("price", ["ask_price"]),
            ("var_string", ["convMiner", "ask_price"]),
            ("var_number", ["convMiner"]),
        ]


async def test_where_nobody_reads_along_the_dialogue_fills_nothing() -> None:  # F12
    tasks = [
        aio_task("desk", connectedTasks=["quiet", "done"]),
        aio_task("quiet", connectedTasks=["done"], aiHelpers=[{"name": "convMiner", "enabled": False}]),
        aio_task("done", transitionParameters=needs("var_string")),
    ]
    async with open_scene(minimal_version(tasks=tasks, firstTask="desk")) as scene:
        await scene.started()
        assert (await scene.change("done")).json()["missing"][0]["fillableBy"] == ["convMiner"]
        await scene.changed("quiet")
        assert (await scene.change("done")).json()["missing"][0]["fillableBy"] == []


_NAMES = "abcd"
_EDGES = st.fixed_dictionaries(
    {n: st.sets(st.sampled_from(_NAMES)).map(lambda s: tuple(sorted(s))) for n in _NAMES}
)
_BITS = st.dictionaries(st.sampled_from(_NAMES), st.integers(0, 7))


@given(_EDGES, _BITS, _BITS)
def test_what_can_be_entered_is_what_some_walk_enters(
    edges: dict[str, tuple[str, ...]], writing: dict[str, int], needing: dict[str, int]
) -> None:
    found = explore_arrivals("a", edges, Barriers(writing, needing, frozenset()))
    seen = {("a", 0)}
    while True:
        steps = {
            (target, bits | writing.get(task, 0))
            for task, bits in seen
            for target in edges[task]
            if not needing.get(target, 0) & ~(bits | writing.get(task, 0))
        }
        if steps <= seen:
            break
        seen |= steps
    assert found.arrivals.keys() == seen
