"""The installation's model: what is configured, with everything around it that every call gets."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

from adapters.models import wrappers
from adapters.models.audit import AuditedModel, CallLog, LoggedCalls
from adapters.models.providers import UnknownModelName, parse_model_names
from flow_engine.errors import CallTheOperator
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import LanguageModel, LLMRequest, ModelEvent, ModelFailed, NoModel


class LlmSettings(Protocol):
    """What the service's settings say of models. `llm_model`: one name, or several to fall back on; None for
    none. `llm_timeout_s` is in seconds."""

    @property
    def llm_model(self) -> str | None: ...

    @property
    def llm_timeout_s(self) -> float: ...

    @property
    def llm_at_once(self) -> int: ...

    @property
    def llm_calls_per_minute(self) -> int: ...


class ConnectedModel(LanguageModel, Protocol):
    """A model that holds connections."""

    async def aclose(self) -> None: ...


class InstalledModel:
    """Implements `LanguageModel`: the configured models with limits, audit, retries and fallback."""

    def __init__(self, model: LanguageModel, connected: Sequence[ConnectedModel]) -> None:
        self._model = model
        self._connected = connected

    def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        return self._model.stream(request)

    async def aclose(self) -> None:
        for model in self._connected:
            await model.aclose()


class NamedModels(NoModel):
    """Implements `LanguageModel` where no model is configured for the installation: requests that name one of
    their own have it. `build` makes the model of a name, once, as `build_model` does; one that cannot be made
    fails with ModelFailed `not_configured`."""

    def __init__(self, build: Callable[[str], ConnectedModel]) -> None:
        self._build = build
        self._models: dict[str, ConnectedModel] = {}

    def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        if request.model is None:
            return super().stream(request)
        known = self._models.get(request.model)
        if known is None:
            try:
                known = self._models[request.model] = self._build(request.model)
            except UnknownModelName as unknown:
                raise ModelFailed("not_configured", str(unknown)) from unknown
        return known.stream(request)

    async def aclose(self) -> None:
        for model in self._models.values():
            await model.aclose()


def build_model(
    settings: LlmSettings,
    clock: Clock,
    *,
    named: str | None = None,
    budget: wrappers.CallBudget | None = None,
    log: CallLog | None = None,
    environ: Mapping[str, str] = os.environ,
    retries: int = wrappers.RETRIES,
    retry_unusable: bool = False,
) -> ConnectedModel:
    """The model of that name, or several after commas to fall back on; without one that of the setting,
    NoModel where none is set. Without `budget`, this process counts its own calls a minute. Each call is
    tried again up to `retries` times within 1.5 times `llm_timeout_s` seconds; `retry_unusable` has an answer
    that cannot be used asked for again too.

    Raises for a name that names no model, a key or an extra missing: CallTheOperator `llm_not_configured`
    where it is the setting's, else UnknownModelName, ModelFailed `not_configured`.
    """
    source = named or settings.llm_model
    if not source:
        return NoModel()
    # The one place that imports pydantic-ai, with OpenAI's client most of a second and tens of megabytes:
    # only a service with a model pays for it.
    from adapters.models.pydantic_ai_model import PydanticAiModel  # noqa: PLC0415

    budget = budget or wrappers.ProcessCallBudget(settings.llm_calls_per_minute)
    log = log or LoggedCalls()
    limits = wrappers.Limits(budget, at_once=settings.llm_at_once)
    try:
        names = parse_model_names(source)
        vendors = [PydanticAiModel(name, environ, settings.llm_timeout_s) for name in names]
    except (UnknownModelName, ModelFailed) as error:
        if named is not None:
            raise
        raise CallTheOperator("llm_not_configured", f"FLOW_ENGINE_LLM_MODEL: {error}") from error
    models = [
        wrappers.RetryingModel(
            AuditedModel(wrappers.LimitedModel(vendor, limits), log, clock, name=str(name)),
            wrappers.RetryBudget(),
            retries=retries,
            reasons=wrappers.ALSO_UNUSABLE if retry_unusable else wrappers.PASSING,
            within_s=1.5 * settings.llm_timeout_s,
        )
        for vendor, name in zip(vendors, names, strict=True)
    ]
    return InstalledModel(wrappers.FallbackModel(models), vendors)
