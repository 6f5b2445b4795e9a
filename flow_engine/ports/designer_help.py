"""The ports that help designers (F27)."""

from dataclasses import dataclass
from typing import Protocol

from flow_engine.errors import CallTheOperator


class DiagramRenderer(Protocol):
    """Draws a graph in Graphviz's DOT language.

    Raises CallTheOperator `graphviz_missing` or `graphviz_failed`, CorrectTheInput `diagram_too_large`.
    """

    async def svg(self, source: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DescriptionDraft:
    """A task's description as its designer wrote it. `language` is a BCP 47 tag, None for the text's own."""

    description: str
    task_name: str | None
    language: str | None


class TextRewriter(Protocol):
    """Rewrites a description into a rule that says when the task is to be entered.

    Raises CallTheOperator `model_not_configured` where there is no model, RetryLater where it is away.
    """

    async def entry_rule(self, draft: DescriptionDraft) -> str: ...


class UnconfiguredRewriter:
    """Implements `TextRewriter` by saying what is missing: no rule could do what is asked for. Raises
    CallTheOperator `model_not_configured`."""

    async def entry_rule(self, draft: DescriptionDraft) -> str:
        raise CallTheOperator(
            "model_not_configured",
            "descriptions are rewritten by a model, and none is configured: set FLOW_ENGINE_LLM_MODEL",
        )
