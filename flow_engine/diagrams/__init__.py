"""Flow versions as diagrams: Mermaid and Graphviz for people, XState for tools."""

from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.diagrams.xstate import xstate

__all__ = ["dot", "mermaid", "xstate"]
