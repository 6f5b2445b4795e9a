"""Tools: names, schemas, approval, time limits, failures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from adapters.models.tools import Approval, Arguments, Tool, ToolRegistry, ToolRule, ToolRules, Verdict
from flow_engine.ports.models import ToolCall, ToolSpec

pytestmark = pytest.mark.anyio

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


@dataclass
class Recorder:
    """A tool that answers with `result` and keeps what it was called with."""

    result: object = "found"
    calls: list[Arguments] = field(default_factory=list[Arguments])

    async def __call__(self, arguments: Arguments) -> object:
        self.calls.append(arguments)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def tool(self, name: str = "search", schema: dict[str, object] | None = None) -> Tool:
        return Tool(ToolSpec(name, "Searches.", QUERY if schema is None else schema), self, timeout_s=0.05)


def registry(*tools: Tool, approval: Approval | None = None) -> ToolRegistry:
    made = ToolRegistry(approval)
    for tool in tools:
        made.register(tool)
    return made


def search(**arguments: str | int) -> ToolCall:
    return ToolCall("1", "search", arguments)


async def test_a_tool_gets_its_arguments_and_gives_its_result() -> None:
    recorder = Recorder({"hits": [1, 2]})
    assert await registry(recorder.tool()).execute(search(query="x")) == {"hits": [1, 2]}  # M10
    assert recorder.calls == [{"query": "x"}]


async def test_specs_tell_name_description_and_schema() -> None:
    assert registry(Recorder().tool()).specs() == (ToolSpec("search", "Searches.", QUERY),)  # M10


@pytest.mark.parametrize("arguments", [{}, {"query": 5}])
async def test_arguments_that_do_not_fit_keep_the_tool_from_running(arguments: dict[str, int]) -> None:
    recorder = Recorder()
    result = await registry(recorder.tool()).execute(search(**arguments))
    assert isinstance(result, dict)
    assert "query" in str(result["error"])  # M9
    assert not recorder.calls


async def test_a_name_that_is_no_tool_is_answered_with_those_there_are() -> None:
    result = await registry(Recorder().tool()).execute(ToolCall("1", "serach", {}))
    assert result == {"error": "no tool 'serach'; there are: search"}


@pytest.mark.parametrize(
    ("raised", "message"), [(ValueError("no such drug"), "no such drug"), (KeyError(), "KeyError")]
)
async def test_what_a_tool_raises_is_its_answer(raised: Exception, message: str) -> None:
    assert await registry(Recorder(raised).tool()).execute(search(query="x")) == {"error": message}  # M9


async def test_a_tool_that_takes_too_long_is_left() -> None:
    async def slow(arguments: Arguments) -> object:
        await asyncio.sleep(30)
        return None

    tool = Tool(ToolSpec("search", "", QUERY), slow, timeout_s=0.01)
    assert await registry(tool).execute(search(query="x")) == {"error": "no result within 0.01 s"}


async def test_a_timeout_of_the_tools_own_is_its_failure() -> None:
    assert await registry(Recorder(TimeoutError("db")).tool()).execute(search(query="x")) == {"error": "db"}


async def test_a_result_that_json_cannot_hold_is_a_failure() -> None:
    result = await registry(Recorder(object()).tool()).execute(search(query="x"))
    assert isinstance(result, dict)
    assert list(result) == ["error"]


async def test_a_profile_calls_only_its_own_tools() -> None:
    recorder, other = Recorder(), Recorder()
    narrowed = registry(recorder.tool(), other.tool("send_reply")).only(["search"])
    assert [spec.name for spec in narrowed.specs()] == ["search"]
    result = await narrowed.execute(ToolCall("1", "send_reply", {"query": "x"}))
    assert "error" in str(result)
    assert not other.calls  # M10


def test_unknown_and_double_names_and_broken_schemas_are_refused() -> None:
    tools = registry(Recorder().tool())
    with pytest.raises(ValueError, match="serach"):
        tools.only(["serach"])
    with pytest.raises(ValueError, match="already"):
        tools.register(Recorder().tool())
    with pytest.raises(ValueError, match="parameters of tool 'x'"):
        tools.register(Recorder().tool("x", {"type": "nothing"}))
    deep: dict[str, object] = {}
    for _ in range(150):  # what JSON may hold, and a server of MCP may list
        deep = {"properties": {"a": deep}}
    with pytest.raises(ValueError, match="parameters of tool 'x': nested too deeply"):
        tools.register(Recorder().tool("x", deep))


async def test_a_schema_fetches_nothing() -> None:
    recorder = Recorder()
    tools = registry(recorder.tool(schema={"$ref": "http://127.0.0.1:9/schema.json"}))
    result = await tools.execute(search(query="x"))
    assert isinstance(result, dict)
    assert "cannot be checked" in str(result["error"])
    assert not recorder.calls


@dataclass
class Rules:
    verdicts: dict[str, Verdict]

    def verdict(self, call: ToolCall) -> Verdict:
        return self.verdicts[call.name]


@dataclass
class Somebody:
    says: bool
    asked: list[str] = field(default_factory=list[str])

    async def confirms(self, call: ToolCall) -> bool:
        self.asked.append(call.name)
        return self.says


@pytest.mark.parametrize(
    ("verdict", "person", "runs"),
    [
        ("allow", None, True),
        ("allow", Somebody(False), True),
        ("prompt", Somebody(True), True),
        ("prompt", Somebody(False), False),
        ("prompt", None, False),
        ("forbid", Somebody(True), False),
    ],
)
async def test_the_policy_decides_and_asks_a_person(
    verdict: Verdict, person: Somebody | None, runs: bool
) -> None:
    recorder = Recorder()
    approval = Approval(Rules({"search": verdict}), person)
    result = await registry(recorder.tool(), approval=approval).execute(search(query="x"))
    assert bool(recorder.calls) is runs  # W2
    assert (result == "found") is runs
    if person is not None:
        assert bool(person.asked) is (verdict == "prompt")


@pytest.mark.parametrize(
    ("own", "rules", "verdict"),
    [
        ("allow", [], "allow"),
        ("allow", [ToolRule("allow", "*"), ToolRule("prompt", "search")], "prompt"),
        ("allow", [ToolRule("forbid", "sea*"), ToolRule("allow", "search")], "forbid"),
        ("allow", [ToolRule("forbid", "Search"), ToolRule("forbid", "research")], "allow"),
        ("prompt", [ToolRule("allow", "*")], "prompt"),
        ("forbid", [ToolRule("prompt", "*")], "forbid"),
        ("prompt", [ToolRule("forbid", "search")], "forbid"),
    ],
)
async def test_the_strictest_of_the_tools_own_verdict_and_the_rules_holds(
    own: Verdict, rules: list[ToolRule], verdict: Verdict
) -> None:
    """D5, W2"""
    recorder, person = Recorder(), Somebody(True)
    tools = ToolRegistry(Approval(ToolRules(tuple(rules)), person))
    tools.register(replace(recorder.tool(), approval=own))
    await tools.execute(search(query="x"))
    assert (bool(recorder.calls), bool(person.asked)) == (verdict != "forbid", verdict == "prompt")


async def test_a_rejection_says_so() -> None:
    approval = Approval(Rules({"search": "prompt"}), Somebody(False))
    result = await registry(Recorder().tool(), approval=approval).execute(search(query="x"))
    assert result == {
        "success": False,
        "error": "USER_REJECTED",
        "message": "'search' was not confirmed",
    }  # W8
