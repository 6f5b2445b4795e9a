"""Model names: every accepted spelling, read in one place.

The first `:` or `/` ends the provider, so that `ollama:llama3.1:8b`, `ollama/llama3.1:8b` and
`vllm:Qwen/Qwen3-8B` all read as meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

Provider = Literal["openai", "azure", "google", "groq", "vllm", "ollama", "local"]

PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": "openai",
    "azure": "azure",
    "google": "google",
    "gemini": "google",
    "groq": "groq",
    "vllm": "vllm",
    "ollama": "ollama",
    "local": "local",
}
"""Providers by the names they go by. `local` is an OpenAI-compatible server of one's own."""

ACCEPTED_FORMS: Final = (
    "'<provider>:<model>', '<provider>/<model>' or {\"provider\": ..., \"model\": ...}, the provider one of "
    + ", ".join(PROVIDERS)
)
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model at a provider. As text: `provider:model`."""

    provider: Provider
    model: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


class UnknownModelName(ValueError):
    """No model can be meant by this; the message lists what is accepted."""


def parse_model_name(given: object) -> ModelName:
    """Read a string, or a mapping with `provider` and `model`, such as a flow's `llm`.

    Other keys are ignored. Raises UnknownModelName.
    """
    if isinstance(given, Mapping):
        fields = cast("Mapping[object, object]", given)
        return _named(fields.get("provider"), fields.get("model"), fields)
    if isinstance(given, str):
        parts = re.split(r"[:/]", given.strip(), maxsplit=1)
        if len(parts) == 2:
            return _named(parts[0], parts[1], given)
    raise _unknown(given)


def parse_model_names(given: str) -> tuple[ModelName, ...]:
    """A comma-separated list: the model to ask first, then those to fall back on. Raises UnknownModelName."""
    return tuple(parse_model_name(part) for part in given.split(","))


def _named(provider: object, model: object, given: object) -> ModelName:
    known = PROVIDERS.get(provider.strip().lower()) if isinstance(provider, str) else None
    name = model.strip() if isinstance(model, str) else ""
    if known is None or not name or len(name) > _LONGEST or not name.isprintable():
        raise _unknown(given)
    return ModelName(known, name)


def _unknown(given: object) -> UnknownModelName:
    return UnknownModelName(f"{str(given)[:_LONGEST]!r} names no model; accepted: {ACCEPTED_FORMS}")
