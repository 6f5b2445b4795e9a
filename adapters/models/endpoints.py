"""Where each provider answers and with which key, from the providers' own environment variables.

A key is only ever sent to the address that it belongs to: address and key come from the same pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from adapters.models.names import Provider
from flow_engine.ports.models import ModelFailed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base_url` is None where the provider's library knows its own address."""

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
    """Raises ModelFailed `not_configured`, naming the variables to set."""
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
