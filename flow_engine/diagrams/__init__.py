"""Flow versions as diagrams: Mermaid and Graphviz for people, XState for tools."""
