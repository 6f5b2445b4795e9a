"""Pipecat Flows: the `FlowConfig` of today, and the static configurations of its releases before 1.0, whose
functions stand in the form of OpenAI, Anthropic or Gemini.

A node is a task, a function that leads on is a way, its properties are variables; a function with a handler
is a tool.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, cast

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag

from flow_engine.importing.drafts import Draft, ImportedDraft
from flow_engine.importing.foreign import Foreign, read_foreign, unread

_WRAPPINGS: Final = ("function", "function_declarations")
_NODE: Final = frozenset({"name"})
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


class Function(Foreign):
    name: str
    description: str = ""
    handler: str | None = None
    transition_only: bool = False
    transition_to: str | Branch | None = None
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

    @property
    def role(self) -> str:
        """Who the agent is from this node on, `""` where it stays who it was."""
        return self.role_message or "\n\n".join(message.content for message in self.role_messages)


class FlowConfig(Foreign):
    initial_node: str
    nodes: Mapping[str, Node]
    global_functions: tuple[AnyFunction, ...] = ()


def from_pipecat(raw: JsonValue) -> ImportedDraft:
    """The configuration as a draft. Raises CorrectTheInput `original_invalid`."""
    flow, draft = read_foreign(FlowConfig, raw), Draft()
    draft.remarks += unread(flow, (), _NODE)
    everything = [flow.global_functions, *(node.functions for node in flow.nodes.values())]
    for function in (each for group in everything for _, each in _functions(group)):
        for name, each in function.arguments.properties.items():
            kind = "enum" if each.enum else _FORMATS.get(each.format) or _TYPES.get(each.type, "custom")
            draft.variable(name, kind, each.description, each.enum)
    role = flow.nodes[flow.initial_node].role if flow.initial_node in flow.nodes else ""
    draft.global_prompt = role
    for name, node in flow.nodes.items():
        _task_of(draft, name, node, role)
    for name, node in flow.nodes.items():
        place = ("nodes", name, "functions")
        for number, function in _functions(node.functions):
            _function(draft, name, function, (*place, number))
        for number, function in _functions(flow.global_functions):
            _function(draft, name, function, ("global_functions", number))
    draft.begin(flow.initial_node, "node", ("initial_node",))
    return draft.imported()


def _functions(group: tuple[AnyFunction, ...]) -> Iterator[tuple[int, Function]]:
    for number, each in enumerate(group):
        if isinstance(each, Function):
            yield number, each
        else:
            yield from (
                (number, one) for one in ((each.function,) if each.function else each.function_declarations)
            )


def _task_of(draft: Draft, name: str, node: Node, role: str) -> None:
    task = draft.task(name, name.replace("_", " "))
    place = ("nodes", name)
    for number, action in enumerate(node.pre_actions):
        if action.type == "tts_say":
            task.prompts.append(f'First say: "{action.text}"')
        else:
            draft.dropped(
                (*place, "pre_actions", number), f"an action of type {action.type!r} is the agent's own code"
            )
    if node.role and node.role != role:
        task.prompts.append(node.role)
    task.prompts += [message.content for message in node.task_messages if message.content]
    for number, action in enumerate(node.post_actions):
        if action.type == "end_conversation":
            task.prompts.append(f'Say: "{action.text}"' if action.text else "")
            task.prompts.append("Then end the conversation.")
        else:
            draft.dropped(
                (*place, "post_actions", number), f"an action of type {action.type!r} is the agent's own code"
            )
    if node.context_strategy not in (None, "append", "APPEND"):
        draft.dropped(
            (*place, "context_strategy"), "what a model remembers of the dialogue is the agent's to decide"
        )
    if not node.respond_immediately:
        draft.dropped((*place, "respond_immediately"), "an agent speaks when a task has been entered")


def _function(draft: Draft, source: str, function: Function, place: tuple[str | int, ...]) -> None:
    if function.handler or not (function.transition_only or function.transition_to):
        draft.tool(draft.tasks[source], function.name, function.description)
    following = function.transition_to
    if isinstance(following, Branch):
        draft.changed(
            (*place, "transition_to"), f"the model chooses by {following.field!r} of the tool's result"
        )
        ways = [
            *(
                (f"{following.field} of {function.name} is {case}", target)
                for case, target in following.cases.items()
            )
        ]
        ways += (
            [(f"{following.field} of {function.name} is anything else", following.default)]
            if following.default
            else []
        )
    else:
        ways = [(function.description, following)] if following else []
    for reason, target in ways:
        if target not in draft.tasks:
            draft.dropped((*place, "transition_to"), f"there is no node {target!r}")
        elif target != source:
            draft.way(source, target, reason=reason)
            for name in function.arguments.properties:
                required = name in function.arguments.required
                draft.tasks[target].needs[name] = required and draft.tasks[target].needs.get(name, True)
