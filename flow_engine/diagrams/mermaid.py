"""A version as a Mermaid state diagram (`stateDiagram-v2`)."""

from collections.abc import Iterator

from flow_engine.diagrams.drawing import Box, conditions, drawing_of
from flow_engine.documents import FlowVersion
from flow_engine.errors import CorrectTheInput
from flow_engine.task_types import TASK_KINDS

# All that is neither letter nor digit goes as an entity, but for what no rule of the grammar begins with.
_UNQUOTED = frozenset(" ,.()·")

MOST_REPEATED = 5_000_000
"""Characters of what tasks need, on all arrows: it stands on every one that leads to the task."""

_CLASSES = {
    **{
        name: f"fill:{kind.mermaid.fill},stroke:{kind.mermaid.line},color:{kind.mermaid.text}"
        for name, kind in TASK_KINDS.items()
    },
    "missing": "fill:#ffffff,stroke:#999999,color:#777777,stroke-dasharray:4",
}


def mermaid(version: FlowVersion) -> str:
    """Text of the diagram, with a line break at its end. Raises what `drawing_of` raises, and CorrectTheInput
    `diagram_too_large`."""
    drawing = drawing_of(version)
    needs = {box.number: tuple(map(quoted, conditions(box))) for box in drawing.boxes}
    sizes = {number: sum(map(len, texts)) for number, texts in needs.items()}
    if sum(sizes[arrow.target.number] for arrow in drawing.arrows) > MOST_REPEATED:
        message = "what tasks need is too large here to be repeated on every arrow: ask for svg"
        raise CorrectTheInput.breach("diagram_too_large", message)
    lines = ["stateDiagram-v2", "    [*] --> active", "    state active {"]
    if drawing.first is not None:
        lines.append(f"        [*] --> t{drawing.first.number}")
    for box in drawing.boxes:
        lines += [f"        {line}" for line in state(box)]
    for arrow in drawing.arrows:
        label = " · ".join((*map(quoted, arrow.words), *needs[arrow.target.number]))
        line = f"        t{arrow.source.number} --> t{arrow.target.number}"
        lines.append(f"{line} : {label}" if label else line)
    lines.append("    }")
    if drawing.pausing:
        lines.append(f"    active --> between_contacts : {quoted(drawing.end_of_contact)}")
        lines.append("    between_contacts --> active : contact resumed in the same task")
        lines.append("    between_contacts --> closed : conversation closed")
    lines += ["    active --> closed : conversation closed", "    closed --> [*]"]
    for name, style in _CLASSES.items():
        members = [f"t{box.number}" for box in drawing.boxes if (box.type or "missing") == name]
        if members:
            lines += [f"    classDef {name} {style}", f"    class {','.join(members)} {name}"]
    return "\n".join(lines) + "\n"


def state(box: Box) -> Iterator[str]:
    """The lines of a task, with the states inside of it and the arrows between them."""
    this = f"t{box.number}"
    heading = f'state "{quoted(box.name)} · {box.heading}" as {this}'
    kind = box.kind
    if kind is None or not kind.sub_states:
        yield heading
        return
    yield heading + " {"
    for name in kind.sub_states:
        yield f'    state "{name}" as {this}_{name}'
    yield f"    [*] --> {this}_{kind.sub_states[0]}"
    for event, arcs in kind.events.items():
        for source, target in arcs:
            yield f"    {this}_{source} --> {this}_{target} : {quoted(event.replace('_', ' '))}"
    yield "}"


def quoted(text: str) -> str:
    """Letters and digits as they are, nearly all else as entities by decimal code point (`#35;`)."""
    return "".join(char if char.isalnum() or char in _UNQUOTED else f"#{ord(char)};" for char in text)
