"""Rewriting texts of a designer where there is no model to do it (F27)."""

from __future__ import annotations

from flow_engine.errors import CallTheOperator
from flow_engine.ports.designer_help import DescriptionDraft


class UnconfiguredRewriter:
    """Implements `TextRewriter` by saying what is missing: no rule could do what is asked for."""

    async def entry_rule(self, draft: DescriptionDraft) -> str:
        raise CallTheOperator(
            "model_not_configured",
            "descriptions are rewritten by a model, and none is configured: set FLOW_ENGINE_LLM_MODEL",
        )
