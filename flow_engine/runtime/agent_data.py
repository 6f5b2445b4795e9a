"""What an agent gets after a step: prompt, tools, media and where it may go next (F28, F29)."""

from pydantic import BaseModel

from flow_engine.runtime import commands
from flow_engine.runtime.conversation_state import ConversationState
from flow_engine.runtime.prompt import Prompt, PromptInput
from flow_engine.runtime.replies import (
    AgentData,
    JsonObject,
    McpToolsReply,
    MissingVariableReply,
    ReachableTaskReply,
    TaskRefused,
    ToolParameterReply,
    ToolReply,
)
from flow_engine.runtime.rules import reachable_tasks
from flow_engine.task_types import TASK_KINDS
from flow_engine.vocabulary import MemoryFormat


def agent_data_of(runner: ConversationState, contact_id: str, command: str | None) -> AgentData:
    """Everything an agent needs to go on, after whatever the runner has done. JSON values."""
    session, task, version = runner.session, runner.task, runner.flow.document
    channel = session.latest_contact.channel
    prompt = compose_prompt(runner)
    tools = _mcp_tools(runner)
    routing = task.document.routing_parameters
    data = AgentData(
        conversationId=session.conversation_id,
        contactId=contact_id,
        tenantId=session.tenant_id,
        campaignId=session.campaign_id,
        revision=session.revision,
        command=command,
        taskId=task.id,
        taskName=task.name,
        taskType=task.type,
        taskStatus=runner.status,
        prompt=prompt.text,
        prefixHash=prompt.prefix_hash,
        routingParameters=_as_sent(routing) if routing is not None and TASK_KINDS[task.type].routed else None,
        mcpServers=list(dict.fromkeys(server["url"] for server in tools)),
        mcpTools=tools,
        reachableTasks=_reachable(runner),
        channel=channel,
        language=session.language,
        supportedLanguages=list(version.supported_languages),
        languageDetection=_as_sent(version.language_detection),
        hideTranscriptionToHuman=bool(task.document.hide_transcription_to_human),
        **runner.platform.media(runner.flow).reply(
            channel,
            runner.template_scope(),
            runner.platform.prompt_sections(runner.flow, channel)["courtesy_instructions"],
        ),
    )
    if runner.left_task is not None:
        data["leftTask"] = runner.left_task.name
    return data


def compose_prompt(runner: ConversationState, memory_format: MemoryFormat | None = None) -> Prompt:
    """The installation's memory format, unless another is asked for (F21)."""
    session, loaded = runner.session, runner.loaded
    return runner.platform.composer.compose(
        PromptInput(
            flow=runner.flow,
            session=session,
            sections=runner.platform.prompt_sections(runner.flow, session.latest_contact.channel),
            memory=runner.memory,
            memory_updated_at=None if runner.new_memory else loaded.memory_updated_at,
            previous_contacts=runner.previous_contacts,
            tenant=runner.tenant,
            now=runner.now,
            attempts={} if runner.new_memory else loaded.mining.attempts,
            memory_format=memory_format or runner.platform.memory_format,
        )
    )


def get_refusal(runner: ConversationState) -> TaskRefused:
    """The refusal of a change of task, as data (F12). JSON values. Raises LookupError when the last change
    was not refused."""
    refusal = runner.get_task_validation_error()
    return {
        "result": False,
        "code": refusal.code,
        "reason": refusal.reason,
        "command": commands.error(refusal.reason),
        "from": refusal.from_task.name,
        "missing": [
            MissingVariableReply(varId=m.var_id, name=m.name, type=m.type, fillableBy=list(m.fillable_by))
            for m in refusal.missing
        ],
        "reachableTasks": _reachable(runner),
        "revision": runner.session.revision,
    }


def _as_sent(model: BaseModel) -> JsonObject:
    """A part of the document with its defaults filled in, as an agent reads it."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _reachable(runner: ConversationState) -> list[ReachableTaskReply]:
    described, names = runner.session.task.descriptions, runner.flow.variables
    return [
        ReachableTaskReply(
            taskId=reachable.task.id,
            name=reachable.task.name,
            type=reachable.task.type,
            description=described[reachable.task.id],
            requiredVariables=[names.name_of(var_id) for var_id in reachable.required],
            missingVariables=[names.name_of(var_id) for var_id in reachable.missing],
        )
        for reachable in reachable_tasks(runner.flow, runner.task, runner.guard)
    ]


def _mcp_tools(runner: ConversationState) -> list[McpToolsReply]:
    """The platform's servers, then those that the task selects tools of."""
    platform, version = runner.platform, runner.flow.document
    replies = [
        McpToolsReply(
            serverName=server.name,
            url=server.url.replace("{baseUrl}", platform.address()),
            tools=[ToolReply(toolName=name, parameters=[]) for name in server.tools],
        )
        for server in platform.system_servers(version)
    ]
    urls = {server.name: server.url for server in version.mcp_servers}
    for selection in runner.task.document.mcp_tool_selection:
        tools: list[ToolReply] = []
        for tool in selection.selected_tools:
            parameters: list[ToolParameterReply] = []
            for p in tool.tool_parameters:
                reply = ToolParameterReply(
                    parameterName=p.parameter_name,
                    assignmentStrategy=p.assignment_strategy,
                    assignmentValue=p.assignment_value,
                )
                if p.assignment_strategy == "fixed":
                    reply["value"] = p.assignment_value
                elif p.assignment_strategy == "variable":
                    spec = runner.flow.variables.resolve(p.assignment_value)
                    entry = None if spec is None else runner.memory.get(spec.id)
                    reply["value"] = None if entry is None else entry.value
                parameters.append(reply)
            tools.append(ToolReply(toolName=tool.tool_name, parameters=parameters))
        name = selection.mcp_server_name
        replies.append(McpToolsReply(serverName=name, url=urls[name], tools=tools))
    return replies
