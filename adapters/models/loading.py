"""The one place where slow libraries are imported: when a model is really to be asked.

pydantic-ai with OpenAI's client takes most of a second and tens of megabytes; a service without a
model pays neither.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from flow_engine.ports.models import ModelFailed


def pydantic_ai_layer() -> ModuleType:
    return import_module("adapters.models.pydantic_ai_model")


def google_backend() -> ModuleType:
    """Raises ModelFailed `not_configured` where the extra is not installed."""
    try:
        return import_module("adapters.models.google_backend")
    except ImportError as error:
        raise ModelFailed(
            "not_configured", "models of Google need the extra: pip install 'flow-engine[google]'"
        ) from error
