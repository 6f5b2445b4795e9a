"""Retell's conversation flows, as its API's `create-conversation-flow` and its agents' exports describe them.

Nodes that speak or call something are tasks. Nodes that only decide (`branch`) or only collect
(`extract_dynamic_variables`) are taken out: the ways through them lead on, with their conditions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from pydantic import Field, JsonValue

from flow_engine.importing import drafts, elements, foreign
from flow_engine.json_paths import PathRefused, read_path

_VISUAL: Final = frozenset(
    {"begin_tag_display_position", "notes", "version", "conversation_flow_id", "last_modified"}
)
_SPOKEN: Final = frozenset({"conversation", "subagent", "end"})
_HUMAN: Final = frozenset({"transfer_call", "agent_swap", "bridge_transfer"})
_PASSED_THROUGH: Final = frozenset(
    {"branch", "extract_dynamic_variables", "press_digit", "sms", "code", "component", "cancel_transfer"}
)
_TYPES: Final = frozenset({"string", "number", "boolean", "enum"})
_EMPTY_WORDS: Final = frozenset({"", "always", "else"})
_OF_CONTACT: Final[Mapping[str, str]] = {"user_number": "callerId", "agent_number": "calleeId"}
_DECIDES: Final = frozenset({"branch", "extract_dynamic_variables"})


class Equation(foreign.Foreign):
    left: str
    operator: Literal["==", "!=", ">", ">=", "<", "<=", "contains", "not_contains", "exists", "not_exist"]
    right: str = ""


class Transition(foreign.Foreign):
    type: Literal["prompt", "equation"] = "prompt"
    prompt: str = ""
    equations: tuple[Equation, ...] = ()
    operator: Literal["||", "&&"] = "&&"


class Edge(foreign.Foreign):
    id: str = ""
    transition_condition: Transition = Transition()
    destination_node_id: str = ""


class Instruction(foreign.Foreign):
    type: str = "prompt"
    text: str = ""


class GlobalSetting(foreign.Foreign):
    condition: str
    go_back_conditions: tuple[Edge, ...] = ()


class ExtractedVariable(foreign.Foreign):
    name: str
    type: str = "string"
    description: str = ""
    choices: tuple[str, ...] = ()


class Tool(foreign.Foreign):
    """A tool of the flow or of a subagent."""

    name: str
    tool_id: str = ""
    type: str = "custom"
    description: str = ""
    url: str = ""
    mcp_id: str = ""
    response_variables: Mapping[str, str] = Field(default_factory=dict[str, str])
    variables: tuple[ExtractedVariable, ...] = ()


class McpServer(foreign.Foreign):
    name: str
    url: str = ""
    id: str = ""
    mcp_id: str = ""


class Node(foreign.Foreign):
    id: str
    type: str
    name: str = ""
    instruction: Instruction = Instruction()
    edges: tuple[Edge, ...] = ()
    edge: Edge | None = None
    else_edge: Edge | None = None
    always_edge: Edge | None = None
    skip_response_edge: Edge | None = None
    success_edge: Edge | None = None
    failed_edge: Edge | None = None
    global_node_setting: GlobalSetting | None = None
    display_position: foreign.Position | None = None
    variables: tuple[ExtractedVariable, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_ids: tuple[str, ...] = ()
    tool_id: str = ""
    mcp_id: str = ""
    mcp_tool_name: str = ""
    response_variables: Mapping[str, str] = Field(default_factory=dict[str, str])


class ModelChoice(foreign.Foreign):
    model: str
    type: str = ""


class ConversationFlow(foreign.Foreign):
    nodes: tuple[Node, ...]
    start_node_id: str = ""
    global_prompt: str = ""
    default_dynamic_variables: Mapping[str, str] = Field(default_factory=dict[str, str])
    tools: tuple[Tool, ...] = ()
    mcps: tuple[McpServer, ...] = ()
    model_choice: ModelChoice | None = None
    start_speaker: str = "agent"


@dataclass(frozen=True, slots=True)
class _Way:
    """`words` and `equations` both have to be true; `collected` are variables asked for on the way. `place`
    is that of its last edge with equations, else of its first edge."""

    target: str
    words: tuple[str, ...]
    equations: tuple[str, ...]
    collected: tuple[str, ...]
    place: foreign.Place


def from_retell(raw: JsonValue) -> drafts.ImportedDraft:
    """The conversation flow as a draft. `raw` is the flow, or the export of an agent that has it as
    `conversationFlow`. Raises CorrectTheInput `original_invalid`."""
    draft, place = drafts.Draft(), ()
    if isinstance(raw, dict) and isinstance(inner := raw.get("conversationFlow"), dict):
        for name, value in raw.items():
            if name == "language" and isinstance(value, str) and value != "multi":
                draft.language = value
            elif name != "conversationFlow":
                draft.dropped((name,), f"{name!r} is a setting of the agent, not of its flow")
        raw, place = inner, ("conversationFlow",)
    nodes = raw.get("nodes") if isinstance(raw, dict) else None
    twice = tuple(foreign.given_twice(nodes, ("nodes",), "id", "node"))
    flow = foreign.read_foreign(ConversationFlow, raw, twice)
    return _Import(draft, flow, place).made()


class _Import:
    def __init__(self, draft: drafts.Draft, flow: ConversationFlow, place: tuple[str, ...]) -> None:
        self._draft, self._flow, self._place = draft, flow, place
        self._nodes = {node.id: node for node in flow.nodes}
        self._places = {node.id: (*place, "nodes", number) for number, node in enumerate(flow.nodes)}

    def made(self) -> drafts.ImportedDraft:
        draft, flow = self._draft, self._flow
        draft.remarks += foreign.unread(flow, self._place, _VISUAL)
        draft.defaults.update(flow.default_dynamic_variables)
        draft.of_contact = _OF_CONTACT
        for node in flow.nodes:
            self._collects(node)
        draft.global_prompt = flow.global_prompt
        if flow.start_speaker == "user":
            draft.changed(
                (*self._place, "start_speaker"), "the agent decides by its channel who speaks first"
            )
        if flow.model_choice is not None:
            draft.dropped((*self._place, "model_choice"), "choose the model in mediaConfig")
        for node in flow.nodes:
            self._task_of(node)
        for node in flow.nodes:
            for way in self._ways(node, (node.id,)) if node.id in draft.tasks else ():
                for name in way.collected:
                    draft.tasks[way.target].needs.setdefault(name, False)
                when = elements.joined(way.equations, "and")
                words = " and ".join(each for each in way.words if each.casefold() not in _EMPTY_WORDS)
                draft.way(node.id, way.target, when=when, reason=words, place=way.place)
        start, place = flow.start_node_id or next(iter(self._nodes), ""), (*self._place, "start_node_id")
        if start in self._nodes and start not in draft.tasks:
            onward = next((way.target for way in self._ways(self._nodes[start], (start,))), "")
            begins = "behind it" if onward else f"in {next(iter(draft.tasks), '')!r}"
            draft.changed(place, f"the node {start!r} speaks nothing: the flow starts {begins}")
            start = onward
        draft.begin(start, "node", place)
        return draft.imported()

    def _collects(self, node: Node) -> None:
        found = [*node.variables, *(each for tool in node.tools for each in tool.variables)]
        for each in found:
            kind = each.type if each.type in _TYPES else "string"
            self._draft.variable(each.name, kind, each.description, each.choices)
        called = [tool.response_variables for _, tool in self._tools(node)]
        for results in (node.response_variables, *called):
            for name in results:
                self._draft.variable(name, "custom", "")

    def _tools(self, node: Node) -> Iterator[tuple[foreign.Place, Tool]]:
        """The node's own and those of the flow that it calls, each with its place."""
        for number, tool in enumerate(node.tools):
            yield (*self._places[node.id], "tools", number), tool
        wanted = {node.tool_id, *node.tool_ids} - {""}
        for number, tool in enumerate(self._flow.tools):
            if wanted & {tool.tool_id, tool.name}:
                yield (*self._place, "tools", number), tool

    def _task_of(self, node: Node) -> None:
        draft, place = self._draft, self._places[node.id]
        if node.type in _PASSED_THROUGH:
            if node.type not in _DECIDES:
                draft.dropped(
                    place,
                    f"a node of type {node.type!r} does nothing here: the ways through it lead on",
                )
            if node.global_node_setting:
                told = "a node that speaks nothing is no global task: make one of what is behind it"
                draft.dropped((*place, "global_node_setting"), told)
            return
        task = draft.task(node.id, node.name or node.id)
        task.human = node.type in _HUMAN
        if node.display_position is not None:
            task.position = (node.display_position.x, node.display_position.y)
        if text := node.instruction.text:
            task.prompts.append(f'Say: "{text}"' if node.instruction.type == "static_text" else text)
        if node.type == "end":
            task.prompts.append("Then end the conversation.")
        if task.human:
            draft.changed(
                place, "the number to transfer to is the platform's: a person is found by routingParameters"
            )
        if setting := node.global_node_setting:
            draft.global_tasks.append(node.id)
            task.entered_when.append(setting.condition)
            task.returns = bool(setting.go_back_conditions)
        self._tools_of(node, task)
        if node.type not in _SPOKEN | _HUMAN | {"function", "mcp"}:
            draft.changed(place, f"a node of the unknown type {node.type!r} is a task")

    def _tools_of(self, node: Node, task: elements.TaskDraft) -> None:
        servers = {each.mcp_id or each.id or each.name: each for each in self._flow.mcps}
        tools = [(at, each) for at, each in self._tools(node) if each.type != "extract_dynamic_variable"]
        if node.type == "mcp" and node.mcp_tool_name:
            called = Tool(
                name=node.mcp_tool_name,
                type="mcp",
                mcp_id=node.mcp_id,
                response_variables=node.response_variables,
            )
            tools.append((self._places[node.id], called))
        for place, tool in tools:
            if tool.type in {"end_call", "transfer_call", "agent_swap"}:
                self._draft.dropped(
                    self._places[node.id], f"the tool {tool.name!r} ends or transfers: connect a task for it"
                )
                continue
            results = dict(self._results(tool, (*place, "response_variables")))
            server = servers.get(tool.mcp_id, McpServer(name=""))
            self._draft.tool(
                task, tool.name, tool.description, server=server.name, url=server.url, results=results
            )
        if node.type in {"function", "mcp"} and tools:
            task.prompts.append(f"Call {tools[-1][1].name} once, then go on.")

    def _results(self, tool: Tool, place: foreign.Place) -> Iterator[tuple[str, str]]:
        """JSONPaths by variable, without those that nobody can read."""
        for name, original in tool.response_variables.items():
            path = original if original.startswith("$") else f"$.{original}"
            try:
                read_path(path)
            except PathRefused as refused:
                self._draft.dropped((*place, name), f"the path {original!r} of {tool.name!r}: {refused}")
            else:
                yield name, path

    def _ways(self, node: Node, seen: tuple[str, ...]) -> Iterator[_Way]:
        """Every way to a task, through nodes that are none; each node at most once on it."""
        collected = tuple(each.name for each in node.variables)
        named = [(f"edges/{number}", edge) for number, edge in enumerate(node.edges)]
        single = ("edge", "always_edge", "skip_response_edge", "success_edge", "failed_edge", "else_edge")
        for name in single:
            if (edge := cast("Edge | None", getattr(node, name))) is not None:
                named.append((name, edge))
        for at, edge in named:
            place = (*self._places[node.id], *at.split("/"))
            target = self._nodes.get(edge.destination_node_id)
            if target is None:
                self._draft.dropped(place, "the edge leads nowhere")
                continue
            words, equations = self._condition(edge.transition_condition, (*place, "transition_condition"))
            if node.type in _PASSED_THROUGH - _DECIDES:
                words = ""  # that it has done what it does not do here
            elif at == "else_edge" and node.type not in _DECIDES:
                words = "nothing else applies"
            elif at == "skip_response_edge":
                words = "this is said, whatever the answer"
            if target.id in self._draft.tasks:
                yield _Way(target.id, (words,), (equations,), collected, place)
            elif target.id not in seen:
                for way in self._ways(target, (*seen, target.id)):
                    yield _Way(
                        way.target,
                        (words, *way.words),
                        (equations, *way.equations),
                        (*collected, *way.collected),
                        way.place if any(way.equations) else place,
                    )

    def _condition(self, transition: Transition, place: foreign.Place) -> tuple[str, str]:
        """What of it is left to the model, in words, and what the engine judges."""
        if transition.type == "prompt":
            return transition.prompt, ""
        parts = [self._equation(each) for each in transition.equations]
        word = "and" if transition.operator == "&&" else "or"
        condition = elements.joined([part or "" for part in parts], word)
        if None in parts:
            why = "'contains' is judged by the model, not by the engine"
        elif condition and (fault := self._draft.fault_in(condition)):
            why = f"the model judges it: {fault}"
        else:
            return "", condition
        self._draft.changed(place, why)
        said = (f"{each.left} {each.operator} {each.right}".strip() for each in transition.equations)
        return f" {word} ".join(said), ""

    def _equation(self, equation: Equation) -> str | None:
        name = _named(equation.left)
        left = self._draft.value(name)
        if equation.operator in {"exists", "not_exist"}:
            return f"{'' if equation.operator == 'exists' else 'not '}has({left})"
        if "contains" in equation.operator:
            return None
        if equation.right.strip().startswith("{{"):
            return f"{left} {equation.operator} {self._draft.value(_named(equation.right))}"
        literal = elements.condition_literal(equation.right, self._draft.kind_of(name))
        return f"{left} {equation.operator} {literal}"


def _named(placeholder: str) -> str:
    return placeholder.strip().removeprefix("{{").removesuffix("}}").strip()
