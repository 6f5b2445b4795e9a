"""A version as a graph in Graphviz's DOT language.

What a task needs stands in its own box, not on the arrows that lead to it: it is the same for all of
them, and a flow has several times as many arrows as tasks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from html import escape

from flow_engine.diagrams.drawing import Arrow, Box, Drawing, conditions, drawing_of
from flow_engine.documents import FlowVersion, TaskType

_WIDTH = 34
"""Characters of a line inside a box."""

# fill, line, text
_COLOURS: Mapping[TaskType | None, tuple[str, str, str]] = {
    "AIO": ("#eaf2fe", "#2f6fd0", "#12305e"),
    "AIS": ("#f3edfe", "#7a4fd0", "#38206b"),
    "HUM": ("#fef2e3", "#cf7f1c", "#5f3806"),
    None: ("#ffffff", "#a8adb5", "#70757d"),
}
_INNER: Mapping[TaskType | None, str] = {
    "HUM": "routing → connected → completed | failed",
    "AIS": "ai ⇄ human",
}

_HEAD = """\
digraph flow {
  graph [rankdir=TB, compound=true, newrank=true, pad=0.3, nodesep=0.35, ranksep=0.75, bgcolor="#ffffff",
         fontname="Helvetica,Arial,sans-serif", fontsize=11, fontcolor="#5b6470"]
  node [shape=box, style="rounded,filled", penwidth=1.3, margin="0.13,0.08", fontsize=12,
        fontname="Helvetica,Arial,sans-serif"]
  edge [color="#8a94a3", arrowsize=0.7, penwidth=1.1, fontsize=10, fontcolor="#5b6470",
        fontname="Helvetica,Arial,sans-serif"]
  start [shape=circle, width=0.16, fixedsize=true, label="", fillcolor="#333a44", color="#333a44"]
  closed [label="closed", fillcolor="#eceef1", color="#5b6470", fontcolor="#333a44", peripheries=2]"""


def dot(version: FlowVersion) -> str:
    """Text of the graph, with a line break at its end. Raises what `drawing_of` raises."""
    return "\n".join(_lines(drawing_of(version))) + "\n"


def _lines(drawing: Drawing) -> Iterator[str]:
    yield _HEAD
    yield '  subgraph cluster_active {\n    graph [label="active", labeljust=l, style="rounded,filled",'
    yield '           color="#d5dae1", fillcolor="#f9fafb", margin=14]'
    for box in drawing.boxes:
        yield "    " + _node(box)
    yield "  }"
    if drawing.first is not None:
        yield f"  start -> {_id(drawing.first)} [color=\"#333a44\"]"
    yield from (f"  {line}" for line in _edges(drawing.arrows))
    yield from _ends(drawing)
    yield "}"


def _node(box: Box) -> str:
    fill, line, text = _COLOURS[box.type]
    kind = box.type or "missing"
    rows = [f'<b>{_lines_of(box.name)}</b> <font point-size="9" color="{line}"> {kind}</font>']
    rows += [_small(row) for row in (_INNER.get(box.type, ""), *conditions(box)) if row]
    table = "".join(f"<tr><td>{row}</td></tr>" for row in rows)
    label = f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{table}</table>'
    dashed = "" if box.type else ', style="rounded,filled,dashed"'
    return f'{_id(box)} [label=<{label}>, fillcolor="{fill}", color="{line}", fontcolor="{text}"{dashed}]'


def _small(text: str) -> str:
    return f'<font point-size="9">{_lines_of(text)}</font>'


def _lines_of(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
    return "<br/>".join(escape(line) for line in lines)


def _edges(arrows: tuple[Arrow, ...]) -> Iterator[str]:
    """There and back is one line with two heads, drawn from whichever of the two comes first."""
    ways = {(arrow.source.number, arrow.target.number) for arrow in arrows}
    for source, target in sorted(ways):
        if (target, source) not in ways:
            yield f"t{source} -> t{target}"
        elif source < target:
            yield f"t{source} -> t{target} [dir=both]"


def _ends(drawing: Drawing) -> Iterator[str]:
    """Edges that leave the frame need a box inside to hold on to: the last one stands lowest."""
    anchor = _id(drawing.boxes[-1])
    leaving = "[ltail=cluster_active, style=dashed, label={label}]"
    if drawing.pausing:
        label = "<" + _lines_of(drawing.end_of_contact) + ">"
        yield '  between [label="between contacts", fillcolor="#eef7f1", color="#3f8f63", fontcolor="#1f5237"]'
        yield f"  {anchor} -> between {leaving.format(label=label)}"
        yield (
            f"  between -> {anchor} [lhead=cluster_active, style=dashed, "
            'label="contact resumed,\\nback to the same task"]'
        )
        yield '  between -> closed [style=dashed, label="conversation closed"]'
    label = '"conversation closed"'
    yield f"  {anchor} -> closed {leaving.format(label=label)}"


def _id(box: Box) -> str:
    return f"t{box.number}"
