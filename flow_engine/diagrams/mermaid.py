"""A version as a Mermaid state diagram (`stateDiagram-v2`)."""

from __future__ import annotations

from collections.abc import Iterator

from flow_engine.diagrams.drawing import Box, Drawing, conditions, drawing_of
from flow_engine.documents import FlowVersion
from flow_engine.task_types import TASK_KINDS

# All that is neither letter nor digit goes as an entity, but for what no rule of the grammar begins with.
_UNQUOTED = frozenset(" ,.()·")

_CLASSES = {
    **{
        name: f"fill:{kind.mermaid.fill},stroke:{kind.mermaid.line},color:{kind.mermaid.text}"
        for name, kind in TASK_KINDS.items()
    },
    "missing": "fill:#ffffff,stroke:#999999,color:#777777,stroke-dasharray:4",
}


def mermaid(version: FlowVersion) -> str:
    """Text of the diagram, with a line break at its end. Raises what `drawing_of` raises."""
    return "\n".join(_lines(drawing_of(version))) + "\n"


def _lines(drawing: Drawing) -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    [*] --> active"
    yield "    state active {"
    if drawing.first is not None:
        yield f"        [*] --> {_id(drawing.first)}"
    for box in drawing.boxes:
        yield from (f"        {line}" for line in _state(box))
    for arrow in drawing.arrows:
        yield f"        {_id(arrow.source)} --> {_id(arrow.target)}{_label(arrow.target)}"
    yield "    }"
    if drawing.pausing:
        yield f"    active --> between_contacts : {quoted(drawing.end_of_contact)}"
        yield "    between_contacts --> active : contact resumed in the same task"
        yield "    between_contacts --> closed : conversation closed"
    yield "    active --> closed : conversation closed"
    yield "    closed --> [*]"
    for name, style in _CLASSES.items():
        members = [_id(box) for box in drawing.boxes if (box.type or "missing") == name]
        if members:
            yield f"    classDef {name} {style}"
            yield f"    class {','.join(members)} {name}"


def _state(box: Box) -> Iterator[str]:
    if box.type is None:
        yield f'state "{quoted(box.name)} · missing" as {_id(box)}'
        return
    heading = f'state "{quoted(box.name)} · {box.type}" as {_id(box)}'
    inner = TASK_KINDS[box.type].sub_states
    if not inner:
        yield heading
        return
    yield heading + " {"
    for name in inner:
        yield f'    state "{name}" as {_id(box)}_{name}'
    yield f"    [*] --> {_id(box)}_{inner[0]}"
    for event, arcs in TASK_KINDS[box.type].events.items():
        for source, target in arcs:
            yield f"    {_id(box)}_{source} --> {_id(box)}_{target} : {quoted(event.replace('_', ' '))}"
    yield "}"


def _id(box: Box) -> str:
    return f"t{box.number}"


def _label(target: Box) -> str:
    said = " · ".join(conditions(target))
    return f" : {quoted(said)}" if said else ""


def quoted(text: str) -> str:
    return "".join(char if char.isalnum() or char in _UNQUOTED else f"#{ord(char)};" for char in text)
