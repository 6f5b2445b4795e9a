"""pydantic-ai models of every provider that speaks OpenAI's protocol. Slow to import: see `loading`."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.providers.vllm import VLLMProvider

from adapters.models.endpoints import Endpoint
from adapters.models.names import ModelName

_NO_KEY = "none"
"""The client library insists on a key; servers of one's own ignore it."""


def connected_model(
    name: ModelName, endpoint: Endpoint, environ: Mapping[str, str], http: httpx2.AsyncClient
) -> Model:
    key, url = endpoint.api_key or _NO_KEY, endpoint.base_url or ""
    if name.provider == "openai":
        return OpenAIChatModel(name.model, provider=OpenAIProvider(url, key, http_client=http))
    if name.provider == "azure":
        versioned = not url.rstrip("/").endswith("/v1")  # the v1 API refuses the parameter
        version = (environ.get("OPENAI_API_VERSION") or None) if versioned else None
        azure = AzureProvider(azure_endpoint=url, api_version=version, api_key=key, http_client=http)
        return OpenAIChatModel(name.model, provider=azure)
    if name.provider == "ollama":
        return OllamaModel(name.model, provider=OllamaProvider(url, key, http_client=http))
    if name.provider == "vllm":
        vllm = VLLMProvider(base_url=url, api_key=key, http_client=http)
        return OpenAIChatModel(name.model, provider=vllm)
    compatible = OpenAICompatibleProvider(name.provider, base_url=url, api_key=key, http_client=http)
    return OpenAIChatModel(name.model, provider=compatible)
