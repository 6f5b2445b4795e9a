"""From the text of a file of scenarios to its model, or to every mistake at once.

Mistakes are of the text, of the shape, and of the names of tasks, variables and tools that something is
expected of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from flow_engine.documents.findings import Problem, problems_of
from flow_engine.errors import pointer
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing.format import (
    BODIES,
    REFUSED,
    DescriptionBody,
    Expect,
    ExpectBody,
    Names,
    Scenario,
    ScenarioFile,
    Shape,
)
from flow_engine.testing.yaml_text import FileRejected, Mistake, Node, Path, read_yaml
from flow_engine.values import listed

_ONE_KEY = f"a step is a mapping with exactly one key, one of {', '.join(BODIES)}"


@dataclass(frozen=True, slots=True)
class Suite:
    """A parsed file, with the text's lines."""

    file: ScenarioFile
    root: Node

    def line_of_scenario(self, number: int) -> int:
        return self.root.line_of(("scenarios", number))

    def line_of_step(self, number: int, step: int | None) -> int:
        """None: the contact that is opened without a step of its own."""
        if step is None:
            return self.line_of_scenario(number)
        return self.root.line_of(("scenarios", number, "steps", step))


def parse_scenarios(text: bytes) -> Suite:
    """Raises FileRejected with every mistake."""
    root, mistakes = read_yaml(text)
    try:
        file = ScenarioFile.model_validate(root.value)
    except ValidationError as error:
        raise FileRejected([*mistakes, *(_mistake(found, root) for found in problems_of(error))]) from None
    mistakes += _names_given_twice(file, root)
    if mistakes:
        raise FileRejected(mistakes)
    return Suite(file, root)


def _names_given_twice(file: ScenarioFile, root: Node) -> list[Mistake]:
    first: dict[str, int] = {}
    mistakes: list[Mistake] = []
    for number, scenario in enumerate(file.scenarios):
        path: Path = ("scenarios", number, "name")
        line = root.line_of(path)
        if first.setdefault(scenario.name, line) != line:
            message = f"the scenario in line {first[scenario.name]} has this name already"
            mistakes.append(Mistake(line, pointer(*path), "duplicate_name", message))
    return mistakes


def _mistake(problem: Problem, root: Node) -> Mistake:
    path = problem.place
    if len(path) > 4 and path[2] == "steps":
        # pydantic names the chosen alternative before the keys in it; the file does not.
        path = path[:4] + path[5:]
    code = "wrong_value" if problem.kind == REFUSED else problem.kind
    return Mistake(root.line_of(path), pointer(*path), code, _message(problem, path))


_WORDING = {
    "string_type": "accepted is text; put it in quotes if it reads like a number or a constant",
    "string_too_short": "accepted is text that is not empty",
    "tuple_type": "accepted is a list",
    "model_type": "accepted is a mapping",
    "mapping_type": "accepted is a mapping",
    "dict_type": "accepted is a mapping",
    "union_tag_not_found": _ONE_KEY,
    "union_tag_invalid": _ONE_KEY,
}


def _message(problem: Problem, path: Path) -> str:
    match problem.kind:
        case "extra_forbidden":
            accepted = _accepted_keys(path)
            if accepted is None:
                return _ONE_KEY
            return f"there is no {path[-1]!r} here; accepted are {listed(accepted)}"
        case "missing":
            return f"{path[-1]!r} is missing"
        case "literal_error":
            return f"accepted is one of {problem.context['expected']}"
        case known:
            return _WORDING.get(known, problem.message)


def _accepted_keys(path: Path) -> list[str] | None:
    """The keys that may stand beside the last of `path`; None where it is a step's second key."""
    shape: type[Shape] | None = None
    match tuple(part for part in path[:-1] if isinstance(part, str)):
        case ():
            shape = ScenarioFile
        case ("scenarios",):
            shape = Scenario
        case ("scenarios", "steps", "memory", "descriptionForLLM"):
            shape = DescriptionBody
        case ("scenarios", "steps", "expect", _):
            shape = Names
        case ("scenarios", "steps", kind):
            shape = BODIES[kind]
        case _:
            pass
    if shape is None:
        return None
    return [info.alias or name for name, info in shape.model_fields.items()]


# --- names in expectations, against the flow ----------------------------------------------------


def unknown_names(suite: Suite, flow: CompiledFlow) -> list[Mistake]:
    """Misspelt names in expectations, which could never fail, or never hold.

    Names in steps are left alone: to ask for a task that does not exist is a scenario like any other.
    """
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
