"""Every implementation of the model ports, each set up so that its model follows a script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime

from adapters.models.audit import AuditedModel, ModelCallRecord
from adapters.models.factory import InstalledModel
from adapters.models.fake_openai import FakeOpenAI
from adapters.models.providers import parse_model_name
from adapters.models.pydantic_ai_model import PydanticAiModel
from adapters.models.scripted import ScriptedModel, Step
from adapters.models.wrappers import (
    FallbackModel,
    LimitedModel,
    Limits,
    ProcessCallBudget,
    RetryBudget,
    RetryingModel,
)
from flow_engine.ports.models import (
    FailureReason,
    LanguageModel,
    LLMRequest,
    ModelEvent,
    ModelFailed,
    instruction,
)

TIMEOUT_S = 10.0
SHORT_S = 0.3
SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"values": {"type": "object", "properties": {"date": {"type": ["string", "null"]}}}},
    "required": ["values"],
}

World = Callable[[Sequence[Step], float], AbstractAsyncContextManager[LanguageModel]]
"""A model that follows the steps, and may take so many seconds a call."""


class FixedClock:
    def now(self) -> datetime:
        return datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


async def no_sleep(seconds: float) -> None:
    return


class RecentCalls:
    """Implements `CallLog`: keeps the records, oldest first."""

    def __init__(self) -> None:
        self.records: list[ModelCallRecord] = []

    async def write(self, record: ModelCallRecord) -> None:
        self.records.append(record)


def call(
    schema: Mapping[str, object] | None = None, *, max_tokens: int = 50, model: str | None = None
) -> LLMRequest:
    return LLMRequest(
        instruction("Find the date.", "user: on Monday"),
        output_schema=schema,
        model=model,
        max_tokens=max_tokens,
        temperature=0,
        purpose="mining",
    )


async def streamed(
    model: LanguageModel, request: LLMRequest
) -> tuple[list[ModelEvent], FailureReason | None]:
    """All events, and why there are no more."""
    events: list[ModelEvent] = []
    try:
        async with aclosing(model.stream(request)) as stream:
            async for event in stream:
                events.append(event)
    except ModelFailed as failure:
        return events, failure.reason
    return events, None


def environment(base_url: str) -> dict[str, str]:
    """Every provider's address and key, all leading to one server."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "sk-openai",
        "VLLM_BASE_URL": base_url,
        "VLLM_API_KEY": "sk-vllm",
        "OLLAMA_BASE_URL": base_url,
        "GROQ_BASE_URL": base_url,
        "GROQ_API_KEY": "sk-groq",
        "AZURE_OPENAI_ENDPOINT": base_url.removesuffix("/v1"),
        "AZURE_OPENAI_API_KEY": "sk-azure",
        "OPENAI_API_VERSION": "2025-01-01",
    }


@asynccontextmanager
async def vendor(
    server: FakeOpenAI, name: str, timeout_s: float = TIMEOUT_S
) -> AsyncGenerator[PydanticAiModel]:
    model = PydanticAiModel(parse_model_name(name), environment(server.base_url), timeout_s)
    try:
        yield model
    finally:
        await model.aclose()


def _over_the_wire(name: str) -> World:
    @asynccontextmanager
    async def world(steps: Sequence[Step], timeout_s: float) -> AsyncGenerator[LanguageModel]:
        async with FakeOpenAI(steps).running() as server, vendor(server, name, timeout_s) as model:
            yield model

    return world


def _around_scripted(wrap: Callable[[LanguageModel], LanguageModel]) -> World:
    @asynccontextmanager
    async def world(steps: Sequence[Step], timeout_s: float) -> AsyncGenerator[LanguageModel]:
        yield wrap(ScriptedModel(steps, timeout_s=timeout_s, sleep=no_sleep))

    return world


def retrying(model: LanguageModel) -> RetryingModel:
    return RetryingModel(model, RetryBudget(), sleep=no_sleep)


def limited(model: LanguageModel) -> LimitedModel:
    return LimitedModel(model, Limits(ProcessCallBudget()))


def audited(model: LanguageModel) -> AuditedModel:
    return AuditedModel(model, RecentCalls(), FixedClock(), lambda: "id", name="scripted:model")


WORLDS: Mapping[str, World] = {
    "scripted": _around_scripted(lambda model: model),
    "retrying": _around_scripted(retrying),
    "fallback": _around_scripted(lambda model: FallbackModel([model, model])),
    "limited": _around_scripted(limited),
    "audited": _around_scripted(audited),
    "installed": _around_scripted(lambda model: InstalledModel(retrying(audited(limited(model))), [])),
    "openai": _over_the_wire("openai:gpt-4.1-mini"),
    "openai, reasoning": _over_the_wire("openai:gpt-5"),
    "azure": _over_the_wire("azure:gpt-4.1"),
    "vllm": _over_the_wire("vllm:Qwen/Qwen3-8B"),
    "ollama": _over_the_wire("ollama:llama3.1"),
    "ollama, tool output": _over_the_wire("ollama:gpt-oss:120b-cloud"),
    "groq": _over_the_wire("groq:llama-3.3-70b-versatile"),
    "local": _over_the_wire("local:anything"),
}
