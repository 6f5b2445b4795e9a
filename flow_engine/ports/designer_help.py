"""The port that helps designers (F27)."""

from typing import Protocol


class DiagramRenderer(Protocol):
    """Draws a graph in Graphviz's DOT language.

    Raises CallTheOperator `graphviz_missing` or `graphviz_failed`, CorrectTheInput `diagram_too_large`.
    """

    async def svg(self, source: str) -> bytes: ...
