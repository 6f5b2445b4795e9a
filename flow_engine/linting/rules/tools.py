"""Rules about the tools of MCP servers that tasks select, and their parameters.

What types a tool's parameters have is not in the document. What can be checked is whether the places that
call the same tool agree with one another.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from flow_engine.documents import Document, McpToolParametersMap, McpToolSelection, Task, Variable
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule, ToolParameterUse
from flow_engine.linting.version_graph import usable_values
from flow_engine.values import VALUE_KINDS
from flow_engine.vocabulary import FILLED_BY_AGENTS

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


class Source(NamedTuple):
    """A variable that a parameter comes from, and the first task in which it does. `members` are those of an
    enum that can be stored, as messages list them in `told`; none of all else."""

    variable: Variable
    task_id: str
    kind: str
    members: frozenset[str | int | float]
    told: str


def _source(use: ToolParameterUse, variable: Variable) -> Source:
    members = frozenset(usable_values(variable)) if variable.type == "enum" else frozenset[str]()
    is_number = (
        variable.type == "enum"
        and variable.enum_values
        and not any(isinstance(value, str) for value in variable.enum_values)
    )
    kind = "a number" if is_number else VALUE_KINDS[variable.type].handed_over
    return Source(variable, use.task_id, kind, members, listed(map(str, members)))


def agreement(inspection: Inspection) -> Findings:
    """The same parameter of the same tool should get the same kind of value everywhere."""
    by_parameter: dict[tuple[str, str, str], list[ToolParameterUse]] = {}
    for use in inspection.tool_parameters:
        if use.parameter.assignment_strategy != "prompt":
            by_parameter.setdefault((use.server, use.tool, use.parameter.parameter_name), []).append(use)
    for (_, tool, name), uses in by_parameter.items():
        sources: dict[str, Source] = {}
        for use in uses:
            if use.variable is not None and use.variable.id not in sources:
                sources[use.variable.id] = _source(use, use.variable)
        if not sources:
            continue
        what = f"parameter {quoted(name)} of {quoted(tool)}"
        first = next(iter(sources.values()))
        for use in uses:
            if use.variable is None:
                yield from fixed_value(inspection, what, use, sources.values())
            elif (kind := sources[use.variable.id].kind) != first.kind:
                yield LintFinding(
                    use.pointer,
                    "parameter_type_mismatch",
                    f"{what} gets {kind} from {quoted(use.variable.name)} ({use.variable.type}), "
                    f"but {first.kind} from {quoted(first.variable.name)} ({first.variable.type}) in "
                    f"{inspection.name(first.task_id)}",
                )


def fixed_value(
    inspection: Inspection, what: str, use: ToolParameterUse, sources: Iterable[Source]
) -> Findings:
    """At most one finding: the first place where a variable of another kind is passed. A fixed value is a
    text; one that spells a number or a boolean passes for it."""
    value = use.parameter.assignment_value
    is_number = _NUMBER.fullmatch(value.strip()) is not None
    fits = {
        "number": is_number,
        "boolean": value.strip().lower() in ("true", "false"),
        "date": any(character.isdigit() for character in value),
    }
    for variable, task_id, kind, members, told in sources:
        if members:
            code = "fixed_value_not_in_enum"
            if value in members or (is_number and float(value) in members):
                continue
            fixed, wanted = quoted(value), f", an enum of {told}"
        elif not fits.get(variable.type, True):
            code = "parameter_type_mismatch"
            fixed, wanted = f"the text {quoted(value)}", f" ({variable.type}), which is {kind}"
        else:
            continue
        elsewhere = f"in {inspection.name(task_id)} it comes from {quoted(variable.name)}"
        yield LintFinding(use.pointer, code, f"{what} is fixed to {fixed}, but {elsewhere}{wanted}")
        return


def never_written(inspection: Inspection) -> Findings:
    for use in inspection.tool_parameters:
        if use.variable is not None and use.variable.id in inspection.unwritten:
            yield LintFinding(
                use.pointer,
                "parameter_never_written",
                f"parameter {quoted(use.parameter.parameter_name)} of {quoted(use.tool)} is always empty: no "
                f"tool that is selected writes {quoted(use.variable.name)}",
            )


def filled_by_agents(inspection: Inspection) -> Findings:
    for use in inspection.tool_parameters:
        if use.parameter.parameter_name in FILLED_BY_AGENTS:
            name = quoted(use.parameter.parameter_name)
            yield LintFinding(
                use.pointer,
                "value_ignored",
                f"agents fill {name} by themselves: {quoted(use.tool)} never gets what is assigned here",
            )


def repeated(inspection: Inspection) -> Findings:
    """Parameters of a tool or of a task, and tools of a task, that another entry hides."""
    for part in inspection.objects:
        match part:
            case Task():
                named = [(each, each.variable_id) for each in part.transition_parameters]
            case McpToolSelection():
                named = [(tool, tool.tool_name) for tool in part.selected_tools if tool.when is None]
            case McpToolParametersMap():
                named = [(each, each.parameter_name) for each in part.tool_parameters]
            case _:
                continue
        first: dict[str, Document] = {}
        for each, name in named:
            if (earlier := first.setdefault(name, each)) is not each:
                reason = f"{quoted(name)} stands at {inspection.place_of(earlier)} already"
                yield LintFinding(inspection.place_of(each), "parameter_repeated", reason)


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


RULES: tuple[Rule, ...] = (agreement, never_written, filled_by_agents, repeated, unused_servers_and_tools)
