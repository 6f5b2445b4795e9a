"""From the text of a file of scenarios to its model, or to its mistakes, 100 at once.

Mistakes are of the text, of the shape, and of the names of tasks, variables and tools that something is
expected of.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from pydantic import ValidationError

from flow_engine.documents.findings import Problem, first_problems, nearest, problems_of, quoted
from flow_engine.errors import pointer
from flow_engine.json_values import as_object
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing import format
from flow_engine.testing.yaml_text import MOST_MISTAKES, FileRejected, Mistake, Node, Path, read_yaml
from flow_engine.values import listed

_ONE_KEY = f"a step is a mapping with exactly one key, one of {', '.join(format.BODIES)}"


@dataclass(frozen=True, slots=True)
class Suite:
    """A parsed file, with the text's lines."""

    file: format.ScenarioFile
    root: Node

    def line_of_scenario(self, number: int) -> int:
        return self.root.line_of(("scenarios", number))

    def line_of_step(self, number: int, step: int | None) -> int:
        """None: the contact that is opened without a step of its own."""
        if step is None:
            return self.line_of_scenario(number)
        return self.root.line_of(("scenarios", number, "steps", step))


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a file, sound or not: its mistakes of text and shape, and its model where it has none
    of shape."""

    root: Node
    file: format.ScenarioFile | None
    mistakes: tuple[Mistake, ...]

    @property
    def flow(self) -> object:
        """The value of `flow`, a text where it is sound; None where there is none."""
        return as_object(self.root.value).get("flow")

    def suite(self, *more: Mistake) -> Suite:
        """Raises FileRejected with every mistake, and `more`."""
        if self.file is None or self.mistakes or more:
            raise FileRejected([*self.mistakes, *more])
        return Suite(self.file, self.root)


def read_scenarios(text: bytes) -> Reading:
    """Raises FileRejected for what could not be read to its end. `text` is YAML in UTF-8, at most 512 KiB."""
    root, mistakes = read_yaml(text)
    whole = as_object(root.value)
    if "scenarios" not in whole and "tasks" in {**whole, **as_object(whole.get("version"))}:
        told = (
            "this is a flow; accepted are its tests, YAML with `scenarios`, whose flow `flow` or --flow names"
        )
        raise FileRejected([Mistake(1, "", "flow_given", told)])
    file = None
    try:
        file = format.ScenarioFile.model_validate(root.value)
    except ValidationError as error:
        mistakes += [_mistake(found, root) for found in first_problems(error, MOST_MISTAKES)]
    first: dict[str, int] = {}
    for number, scenario in _objects_of(root.value, "scenarios"):
        name = scenario.get("name")
        path: Path = ("scenarios", number, "name")
        line = root.line_of(path)
        if isinstance(name, str) and name and first.setdefault(name, line) != line:
            message = f"the scenario in line {first[name]} has this name already"
            mistakes.append(Mistake(line, pointer(*path), "duplicate_name", message))
    return Reading(root, file, tuple(mistakes))


def _objects_of(owner: object, name: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The mappings of a list, each with its number."""
    items = as_object(owner).get(name)
    for number, item in enumerate(cast("list[object]", items) if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield number, as_object(cast("object", item))


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


def _mistake(problem: Problem, root: Node) -> Mistake:
    """An error of pydantic in the words of the format, with the line of its place."""
    path = problem.place
    if len(path) > 4 and path[2] == "steps":
        # pydantic names the chosen alternative before the keys in it; the file does not.
        path = path[:4] + path[5:]
    key = path[-1] if path else ""
    match problem.kind:
        case "extra_forbidden":
            shape = shape_at(path[:-1])
            fields = {} if shape is None else shape.model_fields
            accepted = listed(info.alias or name for name, info in fields.items())
            message = f"there is no {key!r} here; accepted are {accepted}" if shape else _ONE_KEY
        case "missing":
            message = f"{key!r} is missing"
        case "literal_error":
            message = f"accepted is one of {problem.context['expected']}".replace(
                "True, False", "true, false"
            )
        case known:
            message = _WORDING.get(known, problem.message)
    code = "wrong_value" if problem.kind == format.REFUSED else problem.kind
    return Mistake(root.line_of(path), pointer(*path), code, message)


def shape_at(path: Path) -> type[format.Shape] | None:
    """The model of the mapping at `path`; None for a step itself, which has one key only."""
    match tuple(part for part in path if isinstance(part, str)):
        case ():
            return format.ScenarioFile
        case ("scenarios",):
            return format.Scenario
        case ("scenarios", "steps", "memory", "descriptionForLLM"):
            return format.DescriptionBody
        case ("scenarios", "steps", "say", "model"):
            return format.ModelAnswer
        case ("scenarios", "steps", "expect", _):
            return format.Names
        case ("scenarios", "steps", kind):
            return format.BODIES[kind]
        case _:
            return None


# --- names in expectations, against the flow ----------------------------------------------------


def unknown_names(reading: Reading, flow: CompiledFlow) -> list[Mistake]:
    """Misspelt names in expectations, which could never fail, or never hold; whatever is wrong around them.

    Names in steps are left alone: to ask for a task that does not exist is a scenario like any other. The
    first 100, each with its line, counted from 1: telling what a name is like takes long.
    """
    return list(islice(_unknown_names(reading, flow), MOST_MISTAKES))


def _unknown_names(reading: Reading, flow: CompiledFlow) -> Iterator[Mistake]:
    unknown_in = looking_for_unknown(flow)
    for number, scenario in _objects_of(reading.root.value, "scenarios"):
        for index, step in _objects_of(scenario, "steps"):
            for key, code, message in unknown_in(sound_part(step.get("expect"))):
                at: Path = ("scenarios", number, "steps", index, "expect", key)
                yield Mistake(reading.root.line_of(at), pointer(*at), code, message)


def sound_part(expected: object) -> format.ExpectBody:
    """What is expected, without the keys that are mistaken in their shape."""
    given = as_object(expected)
    try:
        return format.ExpectBody.model_validate(given)
    except ValidationError as error:
        mistaken = {problem.place[:1] for problem in problems_of(error)}
    try:
        return format.ExpectBody.model_validate(
            {key: value for key, value in given.items() if (key,) not in mistaken}
        )
    except ValidationError:  # nothing is left
        return format.ExpectBody.model_construct()


def looking_for_unknown(
    flow: CompiledFlow,
) -> Callable[[format.ExpectBody], Iterator[tuple[str, str, str]]]:
    """To be asked of expectations: the key, a code and a message for each name that the flow does not have.
    What it has is listed once, for all of them."""
    points, servers = flow.document.checkpoints, flow.document.mcp_servers
    tools = {tool.tool_name for server in servers for tool in server.included_tools if tool.tool_name}
    variable = ("variable", flow.variables.resolve, [variable.name for variable in flow.variables])
    ids = {name: point.id for point in points for name in (point.name, point.id)}
    kinds: Mapping[str, tuple[str, Callable[[str], object], Sequence[str]]] = {
        **dict.fromkeys(("missing", "memory", "stale", "conflicts"), variable),
        "checkpoints": ("checkpoint", ids.get, [point.name for point in points]),
        "mcp_tools": ("tool", {name: name for name in tools}.get, sorted(tools)),
    }
    task = ("task", flow.task_named, [task.name for task in flow.tasks.values()])

    def unknown_in(expected: format.ExpectBody) -> Iterator[tuple[str, str, str]]:
        for key, names in named_by(expected).items():
            what, found, known = kinds.get(key, task)
            told = "tool of an MCP server" if what == "tool" else what
            for name in names:
                if found(name) is None:
                    message = f"the flow has no {told} {quoted(name)}; {nearest(name, known)}"
                    yield key, f"unknown_{what}", message

    return unknown_in


def named_by(expected: format.ExpectBody) -> Mapping[str, Iterable[str]]:
    """The names of tasks, variables and tools in an expectation, by its key."""
    return {
        "task": () if expected.task is None else (expected.task,),
        "reachable": format.every_of(expected.reachable),
        "not_reachable": expected.not_reachable or (),
        "unmet": format.every_of(expected.unmet),
        "suggested": format.every_of(expected.suggested),
        "advanced": () if expected.advanced is None else (expected.advanced,),
        "missing": expected.missing or (),
        "memory": expected.memory or (),
        "stale": format.every_of(expected.stale),
        "conflicts": format.every_of(expected.conflicts),
        "checkpoints": format.every_of(expected.checkpoints),
        "mcp_tools": format.every_of(expected.mcp_tools),
    }
