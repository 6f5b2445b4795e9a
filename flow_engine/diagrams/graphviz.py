"""A version as a graph in Graphviz's DOT language.

What a task needs stands in its own box, not on the arrows that lead to it: it is the same for all of
them, and a flow has several times as many arrows as tasks.
"""

import textwrap
from collections.abc import Iterator

from flow_engine.diagrams.drawing import Arrow, Box, Drawing, conditions, drawing_of
from flow_engine.documents import FlowVersion
from flow_engine.task_types import Palette

_UNQUOTED = frozenset(" ,.()")

_WIDTH = 34
"""Characters of a line inside a box."""

_MANY = 60
"""Boxes from which on the layout is bounded: 300 tasks take a third of a second then, instead of 23."""

_MISSING = Palette("#ffffff", "#a8adb5", "#70757d")

_HEAD = """\
digraph flow {
  graph [rankdir=TB, compound=true, newrank=true, pad=0.3, nodesep=0.35, ranksep=0.6, bgcolor="#ffffff",
         fontname="Helvetica,Arial,sans-serif", fontsize=11, fontcolor="#5b6470"]
  node [shape=box, style="rounded,filled", penwidth=1.3, margin="0.13,0.08", fontsize=12,
        fontname="Helvetica,Arial,sans-serif"]
  edge [color="#8a94a3", arrowsize=0.7, penwidth=1.1, fontsize=10, fontcolor="#5b6470",
        fontname="Helvetica,Arial,sans-serif"]
  start [shape=circle, width=0.16, fixedsize=true, label="", fillcolor="#333a44", color="#333a44"]
  closed [label="closed", fillcolor="#eceef1", color="#5b6470", fontcolor="#333a44", peripheries=2]"""


def dot(version: FlowVersion) -> str:
    """DOT text of the graph, with a line break at its end. Raises what `drawing_of` raises."""
    drawing = drawing_of(version)
    lines = [_HEAD]
    if len(drawing.boxes) > _MANY:
        lines.append("  nslimit=2")
    lines.append(
        '  subgraph cluster_active {\n    graph [label="active", labeljust=l, style="rounded,filled",'
    )
    lines.append('           color="#d5dae1", fillcolor="#f9fafb", margin=14]')
    lines += ["    " + node(box) for box in drawing.boxes]
    lines.append("  }")
    if drawing.first is not None:
        lines.append(f'  start -> t{drawing.first.number} [color="#333a44"]')
    return "\n".join([*lines, *edges(drawing.arrows), *ends(drawing), "}"]) + "\n"


def node(box: Box) -> str:
    """A task as a table of its name, its sub-states and what must hold to enter it. One line of DOT."""
    kind = box.kind
    colours = _MISSING if kind is None else kind.graphviz
    rows = [f'<b>{_lines_of(box.name)}</b> <font point-size="9" color="{colours.line}"> {box.heading}</font>']
    small = [quoted(kind.diagram_path)] if kind is not None and kind.diagram_path else []
    small += [_lines_of(condition) for condition in conditions(box)]
    rows += [f'<font point-size="9">{markup}</font>' for markup in small]
    table = "".join(f"<tr><td>{row}</td></tr>" for row in rows)
    label = f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{table}</table>'
    colours_of = f'fillcolor="{colours.fill}", color="{colours.line}", fontcolor="{colours.text}"'
    dashed = "" if box.type else ', style="rounded,filled,dashed"'
    return f"t{box.number} [label=<{label}>, {colours_of}{dashed}]"


def _lines_of(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
    return "<br/>".join(map(quoted, lines))


def quoted(text: str) -> str:
    # Not only what XML reserves: Graphviz 2.43 stumbles over a `]` that stands alone as well.
    return "".join(char if char.isalnum() or char in _UNQUOTED else f"&#{ord(char)};" for char in text)


def edges(arrows: tuple[Arrow, ...]) -> Iterator[str]:
    """There and back is one line with two heads, drawn from whichever of the two comes first, unless one of
    the ways says something of itself. Lines of DOT."""
    ways = {(arrow.source.number, arrow.target.number): arrow.words for arrow in arrows}
    for (source, target), words in sorted(ways.items(), key=lambda way: way[0]):
        back = ways.get((target, source))
        if words:
            yield f"  t{source} -> t{target} [label={_label(' '.join(words))}]"
        elif back is None or back:
            yield f"  t{source} -> t{target}"
        elif source < target:
            yield f"  t{source} -> t{target} [dir=both]"


def ends(drawing: Drawing) -> Iterator[str]:
    """Edges that leave the frame need a box inside to hold on to: the last one stands lowest. Lines of
    DOT."""
    anchor = f"t{drawing.boxes[-1].number}"
    closing = _label("conversation closed")
    if drawing.pausing:
        ended, resumed = _label(drawing.end_of_contact), _label("contact resumed in the same task")
        yield '  between [label="between contacts", fillcolor="#eef7f1", color="#3f8f63"]'
        yield f"  {anchor} -> between [ltail=cluster_active, style=dashed, label={ended}]"
        yield f"  between -> {anchor} [lhead=cluster_active, style=dashed, label={resumed}]"
        yield f"  between -> closed [style=dashed, label={closing}]"
    yield f"  {anchor} -> closed [ltail=cluster_active, style=dashed, label={closing}]"


def _label(text: str) -> str:
    """Of an edge, kept off its line by a margin."""
    row = f'<tr><td width="8"></td><td>{_lines_of(text)}</td></tr>'
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{row}</table>>'
