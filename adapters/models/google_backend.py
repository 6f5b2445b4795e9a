"""pydantic-ai models of Gemini. Needs the extra `google`; slow to import: see `loading`."""

from __future__ import annotations

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from adapters.models.endpoints import Endpoint
from adapters.models.names import ModelName


def connected_model(name: ModelName, endpoint: Endpoint, http: httpx2.AsyncClient) -> Model:
    provider = GoogleProvider(api_key=endpoint.api_key or "", base_url=endpoint.base_url, http_client=http)
    return GoogleModel(name.model, provider=provider)
