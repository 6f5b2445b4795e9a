"""The names in expectations, against the flow: a misspelt name in one could never fail, or never hold.

Names in steps are left alone: to ask for a task that does not exist is a scenario like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flow_engine.errors import pointer
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing.format import Expect, ExpectBody, Names
from flow_engine.testing.parsing import Suite
from flow_engine.testing.yaml_text import Mistake, Path
from flow_engine.values import listed


def unknown_names(suite: Suite, flow: CompiledFlow) -> list[Mistake]:
    mistakes: list[Mistake] = []
    for number, scenario in enumerate(suite.file.scenarios):
        for index, step in enumerate(scenario.steps):
            if isinstance(step, Expect):
                path: Path = ("scenarios", number, "steps", index, "expect")
                for key, code, message in _unknown(step.expect, flow):
                    at = (*path, key)
                    mistakes.append(Mistake(suite.root.line_of(at), pointer(*at), code, message))
    return mistakes


def _unknown(expected: ExpectBody, flow: CompiledFlow) -> Iterator[tuple[str, str, str]]:
    tasks = {
        "task": () if expected.task is None else (expected.task,),
        "reachable": _every(expected.reachable),
        "not_reachable": expected.not_reachable or (),
    }
    for key, names in tasks.items():
        unknown = [name for name in names if flow.task_named(name) is None]
        known = (task.name for task in flow.tasks.values())
        yield from _findings(key, "unknown_task", "task", unknown, known)
    for key, names in {"missing": expected.missing or (), "memory": expected.memory or ()}.items():
        unknown = [name for name in names if flow.variables.resolve(name) is None]
        known = (variable.name for variable in flow.variables)
        yield from _findings(key, "unknown_variable", "variable", unknown, known)
    included = (tool for server in flow.document.mcp_servers for tool in server.included_tools)
    tools = {tool.tool_name for tool in included if tool.tool_name is not None}
    unknown = [name for name in _every(expected.mcp_tools) if name not in tools]
    yield from _findings("mcp_tools", "unknown_tool", "tool of an MCP server", unknown, sorted(tools))


def _every(names: Names | None) -> tuple[str, ...]:
    return () if names is None else names.every


def _findings(
    key: str, code: str, what: str, unknown: list[str], known: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    if unknown:
        there = listed(known)
        yield key, code, f"the flow has no {what} {listed(unknown)}; it has {there}"
