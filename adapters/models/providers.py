"""Providers of models: every accepted spelling of a model's name, and where each provider answers.

The first `:` or `/` ends the provider, so that `ollama:llama3.1:8b`, `ollama/llama3.1:8b` and
`vllm:Qwen/Qwen3-8B` all read as meant.

Addresses and keys come from the providers' own environment variables. A key is only ever sent to the
address that it belongs to: both come from the same pair.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from pydantic_core import PydanticCustomError

from flow_engine.ports.models import ModelFailed

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
    """No model can be meant by this; the message lists what is accepted. Raised before anything is sent."""


def parse_model_name(named: object) -> ModelName:
    """Read a string, or a mapping with `provider` and `model`, such as a flow's `llm`.

    Other keys are ignored. Raises UnknownModelName.
    """
    if isinstance(named, Mapping):
        fields = cast("Mapping[object, object]", named)
        return _named(fields.get("provider"), fields.get("model"), fields)
    if isinstance(named, str):
        parts = re.split(r"[:/]", named.strip(), maxsplit=1)
        if len(parts) == 2:
            return _named(parts[0], parts[1], named)
    raise _unknown(named)


def parse_model_names(listed: str) -> tuple[ModelName, ...]:
    """A comma-separated list: the model to ask first, then those to fall back on. Raises UnknownModelName."""
    return tuple(parse_model_name(part) for part in listed.split(","))


def _named(provider: object, model: object, written: object) -> ModelName:
    known = PROVIDERS.get(provider.strip().lower()) if isinstance(provider, str) else None
    name = model.strip() if isinstance(model, str) else ""
    if known is None or not name or len(name) > _LONGEST or not name.isprintable():
        raise _unknown(written)
    return ModelName(known, name)


def model_names(text: str) -> str:
    """The validator of a property that holds such a list: the text as it is, or the error `unknown_model`."""
    try:
        parse_model_names(text)
    except UnknownModelName as unknown:
        raise PydanticCustomError("unknown_model", "{reason}", {"reason": str(unknown)}) from unknown
    return text


def _unknown(written: object) -> UnknownModelName:
    return UnknownModelName(f"{str(written)[:_LONGEST]!r} names no model; accepted: {ACCEPTED_FORMS}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base_url` is an http or https URL, None where the provider's library knows its own address; `api_key`
    None where none is set."""

    base_url: str | None
    api_key: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Source:
    url_variable: str
    key_variable: str
    default_url: str | None = None
    key_required: bool = False


_OPENAI: Final = _Source("OPENAI_BASE_URL", "OPENAI_API_KEY", "https://api.openai.com/v1")
_SOURCES: Final[Mapping[Provider, tuple[_Source, ...]]] = {
    "openai": (_OPENAI,),
    "local": (_Source("OPENAI_BASE_URL", "OPENAI_API_KEY"),),
    "vllm": (_Source("VLLM_BASE_URL", "VLLM_API_KEY"), _Source("OPENAI_BASE_URL", "OPENAI_API_KEY")),
    "ollama": (_Source("OLLAMA_BASE_URL", "OLLAMA_API_KEY", "http://127.0.0.1:11434/v1"),),
    "groq": (_Source("GROQ_BASE_URL", "GROQ_API_KEY", "https://api.groq.com/openai/v1", key_required=True),),
    "azure": (_Source("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", key_required=True),),
}


def endpoint_of(provider: Provider, environ: Mapping[str, str]) -> Endpoint:
    """Where the provider is reached, by environment variables. Raises ModelFailed `not_configured`, naming
    the variables to set, where the URL or the key of one is missing."""
    if provider == "google":
        key = environ.get("GOOGLE_API_KEY") or environ.get("GEMINI_API_KEY")
        if not key:
            raise ModelFailed("not_configured", "set GOOGLE_API_KEY or GEMINI_API_KEY")
        return Endpoint(environ.get("GOOGLE_BASE_URL") or None, key)
    sources = _SOURCES[provider]
    source = next((s for s in sources if environ.get(s.url_variable)), sources[0])
    url, key = environ.get(source.url_variable) or source.default_url, environ.get(source.key_variable)
    if url is None:
        names = " or ".join(s.url_variable for s in sources)
        raise ModelFailed("not_configured", f"set {names} to the address of the {provider} server")
    to_the_vendor = source is _OPENAI and url == _OPENAI.default_url
    if not key and (source.key_required or to_the_vendor):
        raise ModelFailed("not_configured", f"set {source.key_variable}")
    return Endpoint(url, key or None)


def configured_name(provider: str | None, model: str | None, environ: Mapping[str, str]) -> str | None:
    """`provider:model` where a variable tells how that provider is reached, which a default address of its
    own does not; else None."""
    try:
        name = parse_model_name({"provider": provider, "model": model})
        endpoint_of(name.provider, environ)
    except (UnknownModelName, ModelFailed):
        return None
    sources = _SOURCES.get(name.provider, ())
    told = any(environ.get(v) for source in sources for v in (source.url_variable, source.key_variable))
    return str(name) if told or not sources else None
