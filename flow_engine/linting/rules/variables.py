"""Rules about the declared variables by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flow_engine.documents.wording import quoted
from flow_engine.errors import pointer
from flow_engine.linting.findings import Findings, LintFinding, Rule
from flow_engine.linting.inspection import Inspection, usable_values

_WORD = re.compile(r"\w+")
_COMPUTED_KEY = re.compile(r"\$(?:vars|values)\s*\[\s*[^'\"\s]")


def enums(inspection: Inspection) -> Findings:
    for number, variable in enumerate(inspection.version.variables):
        if variable.type != "enum":
            continue
        place = pointer("variables", number, "enumValues")
        if not usable_values(variable):
            yield LintFinding(
                place,
                "enum_cannot_match",
                f"enum {quoted(variable.name)} has no values, so that no value can ever be stored in it",
            )
            continue
        seen: dict[str | int | float, int] = {}
        for index, value in enumerate(variable.enum_values):
            if isinstance(value, str) and not value.strip():
                yield LintFinding(
                    f"{place}/{index}",
                    "enum_cannot_match",
                    f"a blank value of enum {quoted(variable.name)} can never be stored: blank is no value",
                )
            elif seen.setdefault(value, index) != index:
                yield LintFinding(
                    f"{place}/{index}",
                    "enum_value_repeated",
                    f"{quoted(value)} is a value of enum {quoted(variable.name)} already, "
                    f"the one at {place}/{seen[value]} is always found first",
                )


def unused_variables(inspection: Inspection) -> Findings:
    """A name in prose counts as a use: the model sees the memory under the same names."""
    if any(_COMPUTED_KEY.search(placed.source) for placed in inspection.templates):
        return  # which variables a computed key reads cannot be told
    used = set(_referred(inspection))
    unused = [
        (number, variable)
        for number, variable in enumerate(inspection.version.variables)
        if variable.id not in used and variable.name not in used
    ]
    if not unused:
        return
    prose = "\n".join(_prose(inspection))
    words = set(_WORD.findall(prose))
    for number, variable in unused:
        if not any(_mentioned(name, prose, words) for name in (variable.id, variable.name)):
            yield LintFinding(
                pointer("variables", number),
                "unused_variable",
                f"no task requires {quoted(variable.name)}, no tool takes it and no prompt names it",
            )


def _referred(inspection: Inspection) -> Iterator[str]:
    for placed in inspection.templates:
        yield from (use.key for use in placed.template.uses)
    for task in inspection.version.tasks:
        yield from (parameter.variable_id for parameter in task.transition_parameters)
        for selection in task.mcp_tool_selection:
            for tool in selection.selected_tools:
                for parameter in tool.tool_parameters:
                    if parameter.assignment_strategy == "variable":
                        yield parameter.assignment_value


def _prose(inspection: Inspection) -> Iterator[str]:
    version = inspection.version
    yield from (placed.source for placed in inspection.templates)
    for described in (*version.checkpoints, *version.reasons_of_contact, *version.results):
        yield described.prompt
    for task in version.tasks:
        for selection in task.mcp_tool_selection:
            for tool in selection.selected_tools:
                for parameter in tool.tool_parameters:
                    if parameter.assignment_strategy == "prompt":
                        yield parameter.assignment_value


def _mentioned(name: str, prose: str, words: set[str]) -> bool:
    if _WORD.fullmatch(name):
        return name in words
    return bool(name.strip()) and name in prose


RULES: tuple[Rule, ...] = (enums, unused_variables)
