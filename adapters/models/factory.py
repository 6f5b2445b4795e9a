"""The installation's model: what is configured, with everything around it that every call gets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from adapters.models.audit import AuditedModel, CallLog, LoggedCalls
from adapters.models.chat import LanguageModel, LLMAnswer, LLMRequest, NoLanguageModel
from adapters.models.limits import CallBudget, LimitedModel, Limits, ProcessCallBudget
from adapters.models.loading import pydantic_ai_layer
from adapters.models.names import ModelName, UnknownModelName, parse_model_names
from adapters.models.retrying import FallbackModel, RetryBudget, RetryingModel
from flow_engine.errors import CallTheOperator
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import ModelAnswer, ModelCall, ModelFailed


class LlmSettings(Protocol):
    """What the service's settings tell of models. `llm_model`: one name, or several to fall back on."""

    @property
    def llm_model(self) -> str | None: ...

    @property
    def llm_timeout_s(self) -> float: ...

    @property
    def llm_at_once(self) -> int: ...

    @property
    def llm_calls_per_minute(self) -> int: ...


class VendorModel(LanguageModel, Protocol):
    """A model that holds connections."""

    async def aclose(self) -> None: ...


class InstalledModel:
    """Implements `LanguageModel`: the configured models with limits, audit, retries and fallback."""

    def __init__(self, model: LanguageModel, vendors: Sequence[VendorModel]) -> None:
        self._model = model
        self._vendors = vendors

    async def ask(self, call: ModelCall) -> ModelAnswer:
        return await self._model.ask(call)

    async def chat(self, request: LLMRequest) -> LLMAnswer:
        return await self._model.chat(request)

    async def aclose(self) -> None:
        for vendor in self._vendors:
            await vendor.aclose()


def build_model(
    settings: LlmSettings,
    clock: Clock,
    *,
    budget: CallBudget | None = None,
    log: CallLog | None = None,
    environ: Mapping[str, str] = os.environ,
) -> VendorModel:
    """NoLanguageModel where no model is set. Without `budget`, this process counts its own calls.

    Raises CallTheOperator `llm_not_configured`: a name that names no model, a key or an extra missing.
    """
    if not settings.llm_model:
        return NoLanguageModel()
    budget = budget or ProcessCallBudget(settings.llm_calls_per_minute)
    log = log or LoggedCalls()
    limits = Limits(budget, at_once=settings.llm_at_once)
    try:
        names = parse_model_names(settings.llm_model)
        vendors = [_vendor(name, environ, settings.llm_timeout_s) for name in names]
    except (UnknownModelName, ModelFailed) as error:
        raise CallTheOperator("llm_not_configured", f"FLOW_ENGINE_LLM_MODEL: {error}") from error
    models = [
        RetryingModel(
            AuditedModel(LimitedModel(vendor, limits), log, clock, new_id=_new_id, name=str(name)),
            RetryBudget(),
            within_s=1.5 * settings.llm_timeout_s,
        )
        for vendor, name in zip(vendors, names, strict=True)
    ]
    return InstalledModel(FallbackModel(models), vendors)


def _vendor(name: ModelName, environ: Mapping[str, str], timeout_s: float) -> VendorModel:
    return cast("VendorModel", pydantic_ai_layer().PydanticAiModel(name, environ, timeout_s=timeout_s))


def _new_id() -> str:
    return uuid.uuid4().hex
