"""Pipecat Flows: the `FlowConfig` of today, the static configurations of its releases before 1.0, whose
functions stand in the form of OpenAI, Anthropic or Gemini, and what its visual editor exports.

A node is a task, a function that leads on is a way, its properties are variables; a function with a handler
is a tool.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, TypeAlias, cast

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag

from flow_engine.importing.drafts import Draft, ImportedDraft
from flow_engine.importing.foreign import Foreign, Place, Position, given_twice, read_foreign, unread

_WRAPPINGS: Final = ("function", "function_declarations")
_NODE: Final = frozenset({"name"})
_EDITORS: Final = frozenset(
    {"$id", "$schema", "meta", "context", "edges", "label", "type", "decision_node_position"}
)
"""What means nothing here of an editor's export. Its edges are drawn by what the functions say."""
_TYPES: Final[Mapping[str, str]] = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
}
_FORMATS: Final[Mapping[str, str]] = {"date": "date", "date-time": "date", "email": "email"}


class Message(Foreign):
    role: str = "system"
    content: str = ""


def _not_null(kind: object) -> object:
    """Of a list of types, which JSON Schema has too, the first that is a value's."""
    if not isinstance(kind, list):
        return kind
    return next((each for each in cast("list[object]", kind) if each != "null"), "string")


class Property(Foreign):
    type: Annotated[str, BeforeValidator(_not_null)] = "string"
    description: str = ""
    format: str = ""
    enum: tuple[JsonValue, ...] = ()


class Parameters(Foreign):
    type: str = "object"
    properties: Mapping[str, Property] = Field(default_factory=dict[str, Property])
    required: tuple[str, ...] = ()


class Branch(Foreign):
    field: str
    cases: Mapping[str, str]
    default: str | None = None


class Case(Foreign):
    operator: str
    value: str
    next_node_id: str


class Decision(Foreign):
    """Where an editor's function leads, by the result of its Python code `action`."""

    action: str = ""
    conditions: tuple[Case, ...] = ()
    default_next_node_id: str = ""


class Function(Foreign):
    name: str
    description: str = ""
    handler: str | None = None
    transition_only: bool = False
    transition_to: str | Branch | None = None
    next_node_id: str | None = None
    decision: Decision | None = None
    parameters: Parameters | None = None
    input_schema: Parameters | None = None
    properties: Mapping[str, Property] = Field(default_factory=dict[str, Property])
    required: tuple[str, ...] = ()

    @property
    def arguments(self) -> Parameters:
        """Its parameters, whichever provider's form they have."""
        given = self.parameters or self.input_schema
        return given or Parameters(properties=self.properties, required=self.required)


class Wrapped(Foreign):
    """A function as OpenAI lists it, or several as Gemini does."""

    type: str = "function"
    function: Function | None = None
    function_declarations: tuple[Function, ...] = ()


def _form_of(function: object) -> str:
    if not isinstance(function, Mapping):
        return "plain"
    inside = (cast("Mapping[str, object]", function).get(name) for name in _WRAPPINGS)
    return "wrapped" if any(each is not None for each in inside) else "plain"


AnyFunction = Annotated[
    Annotated[Wrapped, Tag("wrapped")] | Annotated[Function, Tag("plain")], Discriminator(_form_of)
]


class Action(Foreign):
    type: str
    text: str = ""
    handler: str = ""


class Node(Foreign):
    task_messages: tuple[Message, ...] = ()
    role_message: str = ""
    role_messages: tuple[Message, ...] = ()
    functions: tuple[AnyFunction, ...] = ()
    pre_actions: tuple[Action, ...] = ()
    post_actions: tuple[Action, ...] = ()
    context_strategy: JsonValue = None
    respond_immediately: bool = True
    label: str = ""

    @property
    def role(self) -> str:
        """Who the agent is from this node on, `""` where it stays who it was."""
        return self.role_message or "\n\n".join(message.content for message in self.role_messages)


class FlowConfig(Foreign):
    initial_node: str
    nodes: Mapping[str, Node]
    global_functions: tuple[AnyFunction, ...] = ()


class DrawnNode(Foreign):
    """`type` is initial, node or end."""

    id: str
    type: str = "node"
    position: Position | None = None
    data: Node = Node()


class DrawnFlow(Foreign):
    nodes: tuple[DrawnNode, ...]
    global_functions: tuple[AnyFunction, ...] = ()


_Placed: TypeAlias = "tuple[Place, Node]"


def from_pipecat(raw: JsonValue) -> ImportedDraft:
    """The configuration, or the editor's export, as a draft. Raises CorrectTheInput `original_invalid`."""
    draft = Draft()
    drawn = raw.get("nodes") if isinstance(raw, dict) else None
    if isinstance(drawn, list):
        twice = tuple(given_twice(drawn, ("nodes",), "id", "node"))
        edited = read_foreign(DrawnFlow, raw, twice)
        draft.remarks += unread(edited, (), _NODE | _EDITORS)
        placed = {each.id: (("nodes", number, "data"), each.data) for number, each in enumerate(edited.nodes)}
        initial = next((each.id for each in edited.nodes if each.type == "initial"), "")
        _fill(draft, placed, initial, edited.global_functions)
        for each in edited.nodes:
            if each.position is not None:
                draft.tasks[each.id].position = (each.position.x, each.position.y)
    else:
        flow = read_foreign(FlowConfig, raw)
        draft.remarks += unread(flow, (), _NODE)
        named = {name: (("nodes", name), node) for name, node in flow.nodes.items()}
        _fill(draft, named, flow.initial_node, flow.global_functions)
    return draft.imported()


def _fill(
    draft: Draft, nodes: Mapping[str, _Placed], initial: str, everywhere: tuple[AnyFunction, ...]
) -> None:
    for group in (everywhere, *(node.functions for _, node in nodes.values())):
        for _, function in _functions(group):
            for name, each in function.arguments.properties.items():
                kind = "enum" if each.enum else _FORMATS.get(each.format) or _TYPES.get(each.type, "custom")
                draft.variable(name, kind, each.description, each.enum)
    role = nodes[initial][1].role if initial in nodes else ""
    draft.global_prompt = role
    for name, (place, node) in nodes.items():
        _task_of(draft, name, node, role, place)
    given: dict[str, list[Parameters]] = {}
    for name, (place, node) in nodes.items():
        for number, function in _functions(node.functions):
            _function(draft, given, name, function, (*place, "functions", number))
        for number, function in _functions(everywhere):
            _function(draft, given, name, function, ("global_functions", number))
    for name, leading in given.items():
        for each in (each for arguments in leading for each in arguments.properties):
            draft.tasks[name].needs[each] = all(each in arguments.required for arguments in leading)
    led_to = {target for task in draft.tasks.values() for target in task.ways}
    for name in (each for each in nodes if each not in {*led_to, initial}):
        draft.changed(nodes[name][0], "no function here leads to it: connect it where a handler's code does")
    draft.begin(initial, "node", ("initial_node",))


def _functions(group: tuple[AnyFunction, ...]) -> Iterator[tuple[int, Function]]:
    for number, each in enumerate(group):
        if isinstance(each, Function):
            yield number, each
        else:
            yield from (
                (number, one) for one in ((each.function,) if each.function else each.function_declarations)
            )


def _task_of(draft: Draft, name: str, node: Node, role: str, place: Place) -> None:
    task = draft.task(name, node.label or name.replace("_", " "))
    _act(draft, name, node.pre_actions, "First say", (*place, "pre_actions"))
    if node.role and node.role != role:
        task.prompts.append(node.role)
    task.prompts += [message.content for message in node.task_messages if message.content]
    _act(draft, name, node.post_actions, "Say", (*place, "post_actions"))
    if node.context_strategy not in (None, "append", "APPEND"):
        draft.dropped(
            (*place, "context_strategy"), "what a model remembers of the dialogue is the agent's to decide"
        )
    if not node.respond_immediately:
        draft.dropped((*place, "respond_immediately"), "an agent speaks when a task has been entered")


def _act(draft: Draft, name: str, actions: tuple[Action, ...], say: str, place: Place) -> None:
    prompts = draft.tasks[name].prompts
    for number, action in enumerate(actions):
        if action.type not in {"tts_say", "end_conversation"}:
            told = f"an action of type {action.type!r} is the agent's own code"
            draft.dropped((*place, number), told)
            continue
        prompts.append(f'{say}: "{action.text}"' if action.text else "")
        prompts.append("Then end the conversation." if action.type == "end_conversation" else "")


def _function(
    draft: Draft, given: dict[str, list[Parameters]], source: str, function: Function, place: Place
) -> None:
    """Its tool, and its ways. `given`: the arguments of every function that leads to a node, by the node."""
    leads = function.transition_to or function.next_node_id
    if function.handler or function.decision or not (function.transition_only or leads):
        draft.tool(draft.tasks[source], function.name, function.description)
    for name, reason, target in _ways(draft, function, place):
        if target not in draft.tasks:
            draft.dropped((*place, name), f"there is no node {target!r}")
        elif target != source:
            draft.way(source, target, reason=reason)
            given.setdefault(target, []).append(function.arguments)


def _ways(draft: Draft, function: Function, place: Place) -> Iterator[tuple[str, str, str]]:
    """Where a function leads: the property that says so, when in words, and the node."""
    following, decision = function.transition_to, function.decision
    if isinstance(following, Branch):
        result = f"{following.field} of {function.name} is"
        told = f"the model chooses by {following.field!r} of the tool's result"
        draft.changed((*place, "transition_to"), told)
        for case, target in following.cases.items():
            yield "transition_to", f"{result} {case}", target
        if following.default:
            yield "transition_to", f"{result} anything else", following.default
    elif following:
        yield "transition_to", function.description, following
    elif decision:
        draft.changed((*place, "decision"), "the model chooses by the tool's result")
        for each in decision.conditions:
            reason = f"the result of {function.name} {each.operator} {each.value}"
            yield "decision", reason, each.next_node_id
        if decision.default_next_node_id:
            yield "decision", f"the result of {function.name} is anything else", decision.default_next_node_id
    elif function.next_node_id:
        yield "next_node_id", function.description, function.next_node_id
