"""A version in outline: what is in it, where it leads, and the place of each thing in the document."""

from collections.abc import Sequence

from typing_extensions import TypedDict

from flow_engine.documents.model import FlowVersion
from flow_engine.errors import pointer


class TaskOutline(TypedDict):
    """`pointer` is an RFC 6901 pointer into the document; `to` are names of tasks, `requires` of variables,
    `tools` of MCP tools."""

    id: str
    name: str
    type: str
    pointer: str
    to: Sequence[str]
    requires: Sequence[str]
    tools: Sequence[str]


class VariableOutline(TypedDict):
    id: str
    name: str
    type: str
    pointer: str


class VersionOutline(TypedDict):
    versionId: str
    draft: bool
    tags: Sequence[str]
    channels: Sequence[str]
    firstTask: str
    tasks: Sequence[TaskOutline]
    variables: Sequence[VariableOutline]


def outline(version: FlowVersion, version_id: str, tags: Sequence[str]) -> VersionOutline:
    """Of a draft as far as it goes: an unknown id stands for its name. Pointers are RFC 6901."""
    names = {task.id: task.effective_name for task in version.tasks}
    variables = {variable.id: variable.name for variable in version.variables}
    return VersionOutline(
        versionId=version_id,
        draft=version.draft,
        tags=tags,
        channels=version.channels,
        firstTask=names.get(version.first_task, version.first_task),
        tasks=[
            TaskOutline(
                id=task.id,
                name=task.effective_name,
                type=task.type,
                pointer=pointer("tasks", number),
                to=[names.get(target, target) for target in task.connected_tasks],
                requires=[
                    variables.get(parameter.variable_id, parameter.variable_id)
                    for parameter in task.transition_parameters
                    if parameter.required
                ],
                tools=[
                    tool.tool_name for chosen in task.mcp_tool_selection for tool in chosen.selected_tools
                ],
            )
            for number, task in enumerate(version.tasks)
        ],
        variables=[
            VariableOutline(
                id=variable.id, name=variable.name, type=variable.type, pointer=pointer("variables", number)
            )
            for number, variable in enumerate(version.variables)
        ],
    )
