"""One parser for every spelling of a model's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models.providers import (
    PROVIDERS,
    ModelName,
    UnknownModelName,
    parse_model_name,
    parse_model_names,
)


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("openai:gpt-4.1-mini", ModelName("openai", "gpt-4.1-mini")),
        ("openai/gpt-4.1", ModelName("openai", "gpt-4.1")),
        ("gemini/gemini-2.5-pro", ModelName("google", "gemini-2.5-pro")),  # M5
        ("google:gemini-2.5-flash", ModelName("google", "gemini-2.5-flash")),
        ("vllm:Qwen/Qwen3-8B", ModelName("vllm", "Qwen/Qwen3-8B")),
        ("ollama:llama3.1:8b", ModelName("ollama", "llama3.1:8b")),
        ("ollama/llama3.1:8b", ModelName("ollama", "llama3.1:8b")),
        ("groq/llama-3.3-70b-versatile", ModelName("groq", "llama-3.3-70b-versatile")),
        ("azure:my-deployment", ModelName("azure", "my-deployment")),
        ("  OpenAI : gpt-4.1 ", ModelName("openai", "gpt-4.1")),
        ({"provider": "local", "model": "mistral", "temperature": 0.2}, ModelName("local", "mistral")),
        ({"provider": "google", "model": "gemini-2.5-pro"}, ModelName("google", "gemini-2.5-pro")),
    ],
)
def test_every_accepted_form_reads_as_provider_and_model(given_name: object, expected: ModelName) -> None:
    assert parse_model_name(given_name) == expected


@pytest.mark.parametrize(
    "given_name",
    [
        *("", "gpt-4.1", "openai:", ":gpt", "acme:gpt", "openai:a\nb", "openai:" + "x" * 301),
        *({"provider": "openai"}, {"model": "x"}, None, 7),
    ],
)
def test_what_names_no_model_is_refused_with_what_is_accepted(given_name: object) -> None:
    with pytest.raises(UnknownModelName) as refused:
        parse_model_name(given_name)
    assert all(provider in str(refused.value) for provider in PROVIDERS)
    assert len(str(refused.value)) < 1000


@given(
    st.sampled_from(sorted(set(PROVIDERS.values()))),
    st.from_regex(r"[A-Za-z0-9][\w./:-]{0,60}", fullmatch=True),
)
def test_a_name_reads_back_from_its_text(provider: str, model: str) -> None:
    name = parse_model_name(f"{provider}:{model}")
    assert parse_model_name(str(name)) == name == parse_model_name({"provider": provider, "model": model})


def test_several_models_are_named_in_the_order_of_falling_back() -> None:
    names = parse_model_names("openai:gpt-4.1-mini, ollama:llama3.1")
    assert [str(name) for name in names] == ["openai:gpt-4.1-mini", "ollama:llama3.1"]
