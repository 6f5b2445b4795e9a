"""What a reply owes to version, task, channel and language: JSON that is made once for all conversations."""

from collections.abc import Callable, Mapping, Sequence

import orjson
from pydantic import BaseModel

from flow_engine.runtime import replies
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.conversation_state import ConversationState
from flow_engine.runtime.rules import connected_on

_VALUE = b"\0"
"""Where the value of a variable goes. No JSON text holds this character."""


def fixed_parts(runner: ConversationState) -> replies.FixedParts:
    """Those of the runner's task, made at the first time."""
    flow, platform, channel = runner.flow, runner.platform, runner.session.latest_contact.channel
    key = (flow.content_hash, runner.task.id, channel, runner.session.language, platform.address())
    if (fixed := platform.fixed.get(key)) is not None:
        return fixed
    task, version = runner.task, flow.document
    routing = task.document.routing_parameters
    tools, urls, tool_values = mcp_tools(runner, lambda when: True)
    targets = connected_on(channel, flow, task)
    chosen = (tool for selection in task.document.mcp_tool_selection for tool in selection.selected_tools)
    of_task = {
        "taskId": task.id,
        "taskName": task.name,
        "taskType": task.type,
        "routingParameters": None if routing is None or not task.kind.routed else _as_sent(routing),
        "mcpServers": urls,
        **({"approvalRequired": True} if task.kind.holds else {}),
    }
    of_conversation = {
        "channel": channel,
        "language": runner.session.language,
        "supportedLanguages": version.supported_languages,
        "languageDetection": _as_sent(version.language_detection),
        "hideTranscriptionToHuman": bool(task.document.hide_transcription_to_human),
    }
    fixed = replies.FixedParts(
        task=orjson.dumps(of_task)[1:-1],
        conversation=orjson.dumps(of_conversation)[1:-1],
        media_reads=platform.media(flow).reads(channel),
        tools=tools,
        tool_values=tool_values,
        conditional_tools=any(tool.when is not None for tool in chosen),
        targets=[_target(flow, target, b"," if number else b"[") for number, target in enumerate(targets)],
        required=(*{var_id: None for target in targets for var_id in target.required},),
    )
    platform.fixed.put(key, fixed)
    return fixed


def _target(flow: CompiledFlow, task: TaskPlan, before: bytes) -> replies.FixedTarget:
    head = orjson.dumps({"taskId": task.id, "name": task.name, "type": task.type})
    required = orjson.dumps([flow.variables.name_of(var_id) for var_id in task.required])
    return replies.FixedTarget(
        task.id,
        b'%b%b,"description":' % (before, head[:-1]),
        b',"requiredVariables":%b,"missingVariables":' % required,
    )


def mcp_tools(
    runner: ConversationState, holds: Callable[[str | None], bool]
) -> tuple[Sequence[bytes], Sequence[str], Sequence[str]]:
    """The platform's servers, then those that the task selects tools of, without those whose condition is not
    true: JSON cut at the values of variables, the servers' URLs, and the variables' ids."""
    flow, platform, values = runner.flow, runner.platform, list[str]()

    def value_of(strategy: str, assigned: str) -> Mapping[str, object]:
        spec = flow.variables.resolve(assigned) if strategy == "variable" else None
        if spec is None:
            own = {"fixed": assigned, "variable": None}
            return {"value": own[strategy]} if strategy in own else {}
        values.append(spec.id)
        return {"value": orjson.Fragment(_VALUE)}

    servers: list[dict[str, object]] = [
        {
            "serverName": server.name,
            "url": server.url.replace("{baseUrl}", platform.address()),
            "tools": [{"toolName": name, "parameters": []} for name in server.tools],
        }
        for server in platform.system_servers(flow.document)
    ]
    urls = {server.name: server.url for server in flow.document.mcp_servers}
    for selection in runner.task.document.mcp_tool_selection:
        tools = [
            {
                "toolName": tool.tool_name,
                "parameters": [
                    {
                        "parameterName": p.parameter_name,
                        "assignmentStrategy": p.assignment_strategy,
                        "assignmentValue": p.assignment_value,
                        **value_of(p.assignment_strategy, p.assignment_value),
                    }
                    for p in tool.tool_parameters
                ],
                **({"resultMapping": tool.result_mapping} if tool.result_mapping else {}),
            }
            for tool in selection.selected_tools
            if holds(tool.when)
        ]
        name = selection.mcp_server_name
        servers.append({"serverName": name, "url": urls[name], "tools": tools})
    parts = orjson.dumps(servers).split(_VALUE)
    return parts, list(dict.fromkeys(str(server["url"]) for server in servers)), values


def _as_sent(model: BaseModel) -> Mapping[str, object]:
    """A part of the document with its defaults filled in, as an agent reads it."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
