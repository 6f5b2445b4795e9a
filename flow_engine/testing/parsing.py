"""From the text of a file of scenarios to its model, or to every mistake at once.

Mistakes are of the text, of the shape, and (`references.py`) of the names of tasks, variables and tools
that something is expected of.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flow_engine.errors import pointer
from flow_engine.testing.format import BODIES, REFUSED, DescriptionBody, Names, Scenario, ScenarioFile, Shape
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
        problems = error.errors(include_url=False, include_input=False)
        raise FileRejected([*mistakes, *(_mistake(problem, root) for problem in problems)]) from None
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


def _mistake(problem: ErrorDetails, root: Node) -> Mistake:
    path = _without_tag(problem["loc"])
    code = "wrong_value" if problem["type"] == REFUSED else problem["type"]
    return Mistake(root.line_of(path), pointer(*path), code, _message(problem, path))


def _without_tag(loc: Path) -> Path:
    """pydantic names the chosen alternative before the keys in it; the file does not."""
    return loc[:4] + loc[5:] if len(loc) > 4 and loc[2] == "steps" else loc


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


def _message(problem: ErrorDetails, path: Path) -> str:
    context = problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            accepted = _accepted_keys(path)
            if accepted is None:
                return _ONE_KEY
            return f"there is no {path[-1]!r} here; accepted are {listed(accepted)}"
        case "missing":
            return f"{path[-1]!r} is missing"
        case "literal_error":
            return f"accepted is one of {context['expected']}"
        case known:
            return _WORDING.get(known, problem["msg"])


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
