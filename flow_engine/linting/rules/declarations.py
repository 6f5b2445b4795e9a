"""Rules about what a version declares and its tasks use: variables, MCP tools, checkpoints (F39).

What types a tool's parameters have is not in the document. What can be told is whether the places that
call the same tool agree with one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flow_engine.documents import McpToolParameter, Variable
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule, usable_values
from flow_engine.values import VALUE_KINDS

# --- variables ----------------------------------------------------------------------------------


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


# --- MCP servers and tools ----------------------------------------------------------------------


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class _Assignment:
    pointer: str
    task_id: str
    parameter: McpToolParameter
    variable: Variable | None


def agreement(inspection: Inspection) -> Findings:
    """The same parameter of the same tool should get the same kind of value everywhere."""
    by_parameter: dict[tuple[str, str, str], list[_Assignment]] = {}
    for key, assignment in _assignments(inspection):
        by_parameter.setdefault(key, []).append(assignment)
    for (_, tool, name), assignments in by_parameter.items():
        from_variables = [a for a in assignments if a.variable is not None]
        if not from_variables:
            continue
        what = f"parameter {quoted(name)} of {quoted(tool)}"
        for assignment in assignments:
            if assignment.variable is None:
                yield from _against_fixed(inspection, what, assignment, from_variables)
            else:
                yield from _against_variable(inspection, what, assignment, from_variables[0])


def _against_variable(inspection: Inspection, what: str, given: _Assignment, first: _Assignment) -> Findings:
    if given.variable is None or first.variable is None:
        return
    kind, wanted = _kind(given.variable), _kind(first.variable)
    if kind != wanted:
        yield LintFinding(
            given.pointer,
            "parameter_type_mismatch",
            f"{what} gets {kind} from {quoted(given.variable.name)} ({given.variable.type}), but {wanted} "
            f"from {quoted(first.variable.name)} ({first.variable.type}) in {inspection.name(first.task_id)}",
        )


def _against_fixed(
    inspection: Inspection, what: str, given: _Assignment, from_variables: list[_Assignment]
) -> Findings:
    value = given.parameter.assignment_value
    for other in from_variables:
        variable = other.variable
        if variable is None:
            continue
        elsewhere = f"in {inspection.name(other.task_id)} it comes from {quoted(variable.name)}"
        if variable.type == "enum" and usable_values(variable):
            if not any(_same(value, member) for member in usable_values(variable)):
                yield LintFinding(
                    given.pointer,
                    "fixed_value_not_in_enum",
                    f"{what} is fixed to {quoted(value)}, but {elsewhere}, an enum of "
                    f"{listed(map(str, usable_values(variable)))}",
                )
                return
        elif not _fits(value, variable):
            yield LintFinding(
                given.pointer,
                "parameter_type_mismatch",
                f"{what} is fixed to the text {quoted(value)}, but {elsewhere} ({variable.type}), "
                f"which is {_kind(variable)}",
            )
            return


def _kind(variable: Variable) -> str:
    if variable.type == "enum" and variable.enum_values:
        numbers = [not isinstance(value, str) for value in variable.enum_values]
        if all(numbers):
            return "a number"
    return VALUE_KINDS[variable.type].handed_over


def _fits(value: str, variable: Variable) -> bool:
    """Fixed values are texts; one that spells a number or a boolean passes for it."""
    match variable.type:
        case "number":
            return _NUMBER.fullmatch(value.strip()) is not None
        case "boolean":
            return value.strip().lower() in ("true", "false")
        case "date":
            return any(character.isdigit() for character in value)
        case _:
            return True


def _same(value: str, member: str | int | float) -> bool:
    if isinstance(member, str):
        return value == member
    return _NUMBER.fullmatch(value.strip()) is not None and float(value) == member


def _assignments(inspection: Inspection) -> Iterator[tuple[tuple[str, str, str], _Assignment]]:
    for number, task in enumerate(inspection.version.tasks):
        for s, selection in enumerate(task.mcp_tool_selection):
            for t, tool in enumerate(selection.selected_tools):
                for p, parameter in enumerate(tool.tool_parameters):
                    if parameter.assignment_strategy == "prompt":
                        continue
                    place = pointer("tasks", number, "mcpToolSelection", s, "selectedTools", t)
                    variable = (
                        inspection.variables.get(parameter.assignment_value)
                        if parameter.assignment_strategy == "variable"
                        else None
                    )
                    key = (selection.mcp_server_name, tool.tool_name, parameter.parameter_name)
                    where = f"{place}/toolParameters/{p}/assignmentValue"
                    yield key, _Assignment(where, task.id, parameter, variable)


def unused_servers_and_tools(inspection: Inspection) -> Findings:
    selected = {
        (selection.mcp_server_name, tool.tool_name)
        for task in inspection.version.tasks
        for selection in task.mcp_tool_selection
        for tool in selection.selected_tools
    }
    used_servers = {server for server, _ in selected}
    for number, server in enumerate(inspection.version.mcp_servers):
        if server.name not in used_servers:
            yield LintFinding(
                pointer("mcpServers", number),
                "unused_mcp_server",
                f"no task selects a tool of MCP server {quoted(server.name)}",
            )
            continue
        for index, tool in enumerate(server.included_tools):
            if tool.tool_name is not None and (server.name, tool.tool_name) not in selected:
                yield LintFinding(
                    pointer("mcpServers", number, "includedTools", index),
                    "unused_mcp_tool",
                    f"no task selects tool {quoted(tool.tool_name)} of MCP server {quoted(server.name)}",
                )


# --- checkpoints --------------------------------------------------------------------------------


def checkpoints(inspection: Inspection) -> Findings:
    enabled_in: dict[str, list[str]] = {}
    for task in inspection.version.tasks:
        for checkpoint in task.enabled_checkpoints:
            enabled_in.setdefault(checkpoint.id, []).append(task.id)
    for number, checkpoint in enumerate(inspection.version.checkpoints):
        tasks = enabled_in.get(checkpoint.id, [])
        if not tasks:
            yield LintFinding(
                pointer("checkpoints", number),
                "checkpoint_never_enabled",
                f"no task enables checkpoint {quoted(checkpoint.name)}, so that it is never judged",
            )
        elif checkpoint.required and not inspection.reachable.intersection(tasks):
            yield LintFinding(
                pointer("checkpoints", number),
                "required_checkpoint_unreachable",
                f"required checkpoint {quoted(checkpoint.name)} is enabled only in tasks that cannot be "
                f"reached: {listed(inspection.tasks[task_id].effective_name for task_id in tasks)}",
            )


RULES: tuple[Rule, ...] = (
    enums,
    unused_variables,
    agreement,
    unused_servers_and_tools,
    checkpoints,
)
