"""A version as the configuration of an XState (v5) machine: JSON that `createMachine` takes.

The machine has the states and the events of the engine's own chart (`statechart.py`). Its guards are
named, with what they ask for, and read by the caller's implementations:

    hasVariables  {required: [variable ids]}    every one of them has a value
    channelIs     {channels: [channels]}        the contact's channel is one of them
    conditionHolds {when: condition}            a condition of the document is true; its language is the
                                                engine's own, described with the flow document
    and           {guards: [{type, params}]}    every one of them holds

A task with `meta: {returns: true}` is left for the one that it was entered from as well, which no transition
says. A transition that the engine suggests, or takes without its event when it comes to hold, has
`meta: {advance: "suggest" | "auto"}`: XState's own eventless transitions would be taken again whenever their
task is entered.

`and` is a name like the others since XState's own `and(...)` is a function, which JSON cannot carry:

    const guards = {
      hasVariables: ({ context }, { required }) => required.every((id) => context.variables[id] != null),
      channelIs: ({ context }, { channels }) => channels.includes(context.channel),
      conditionHolds: ({ context }, { when }) => context.conditions[when] === true,
      and: (args, { guards: all }) => all.every(({ type, params }) => guards[type](args, params)),
    };
    const context = { variables: {}, channel: "phone", conditions: {} };
    setup({ guards }).createMachine({ ...machine, context });
"""

from urllib.parse import quote

from flow_engine.diagrams.drawing import Arrow, Box, drawing_of
from flow_engine.documents import FlowVersion
from flow_engine.errors import CorrectTheInput, ReloadAndDecide
from flow_engine.task_types import ACTIVE, BETWEEN_CONTACTS, CLOSED

JsonObject = dict[str, object]

MOST_REQUIRED = 5_000_000
"""Characters of variable ids in all guards: a target's guard is repeated on every arrow that leads to it."""


def xstate(version: FlowVersion) -> JsonObject:
    """The machine's configuration, ready to be written as JSON.

    Raises ReloadAndDecide `draft_incomplete` for a draft whose tasks do not hold together, what
    `drawing_of` raises, and CorrectTheInput `diagram_too_large`.
    """
    drawing = drawing_of(version)
    if drawing.first is None or drawing.gaps:
        raise ReloadAndDecide(
            "draft_incomplete",
            f"this draft is not a machine yet: {'; '.join(drawing.gaps[:20])}",
            accepted=("mermaid", "svg"),
        )
    sizes = {box.number: sum(map(len, box.required)) + len(box.when or "") for box in drawing.boxes}
    if sum(sizes[arrow.target.number] for arrow in drawing.arrows) > MOST_REQUIRED:
        message = (
            "the guards of this version are too large to be repeated on every transition: ask for mermaid"
        )
        raise CorrectTheInput.breach("diagram_too_large", message)
    transitions: dict[int, JsonObject] = {box.number: {} for box in drawing.boxes}
    for arrow in drawing.arrows:
        transitions[arrow.source.number][_key("enter", arrow.target.task_id)] = entry(arrow)
    first = _key("task", drawing.first.task_id)
    tasks: JsonObject = {_key("task", b.task_id): task(b, transitions[b.number]) for b in drawing.boxes}
    active: JsonObject = {
        "initial": first,
        "on": {"conversation_closed": CLOSED},
        "states": {**tasks, "back": {"type": "history", "history": "shallow", "target": first}},
    }
    states: JsonObject = {ACTIVE: active}
    if drawing.pausing:
        states[BETWEEN_CONTACTS] = {
            "id": BETWEEN_CONTACTS,
            "on": {"contact_resumed": f"{ACTIVE}.back", "conversation_closed": CLOSED},
        }
    states[CLOSED] = {"type": "final"}
    return {"id": _key("version", version.id), "initial": ACTIVE, "states": states}


def task(box: Box, transitions: JsonObject) -> JsonObject:
    """The state of a task: its own states within, the `transitions` to others by their event. A JSON
    object."""
    if box.pauses:
        transitions["contact_ended"] = f"#{BETWEEN_CONTACTS}"
    returning = {"returns": True} if box.returns else {}
    state: JsonObject = {
        "description": box.name,
        "meta": {"taskId": box.task_id, "type": box.type, "channels": box.channels, **returning},
        "on": transitions,
    }
    kind = box.kind
    if kind is None or not kind.sub_states:
        return state
    inner: dict[str, JsonObject] = {name: {} for name in kind.sub_states}
    for event, arcs in kind.events.items():
        for source, target in arcs:
            inner[source][f"human_{event}"] = target
    return {
        **state,
        "initial": kind.sub_states[0],
        "states": {name: {"on": events} if events else {} for name, events in inner.items()},
    }


def entry(arrow: Arrow) -> JsonObject:
    """The transition into a task, with one guard where something must hold. A JSON object."""
    target = arrow.target
    guards: list[JsonObject] = []
    if target.required:
        guards.append({"type": "hasVariables", "params": {"required": list(target.required)}})
    if target.channels is not None:
        guards.append({"type": "channelIs", "params": {"channels": list(target.channels)}})
    for when in (arrow.when, target.when):
        if when is not None:
            guards.append({"type": "conditionHolds", "params": {"when": when}})
    transition: JsonObject = {"target": _key("task", target.task_id)}
    if arrow.advance is not None:
        transition["meta"] = {"advance": arrow.advance}
    if len(guards) > 1:
        transition["guard"] = {"type": "and", "params": {"guards": guards}}
    elif guards:
        transition["guard"] = guards[0]
    return transition


def _key(kind: str, name: str) -> str:
    """XState reads `.`, `#` and `*` in keys and targets, and JavaScript reads `__proto__`."""
    return f"{kind}:{quote(name, safe='').replace('.', '%2E')}"
