"""The official Python client, unchanged, against both kinds of backend; its JavaScript sister is in
`tests/clients`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.stand_ins import GREETING, KEY, MODELS, WEATHER, client_world

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("model", MODELS)]

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


class Reading(BaseModel):
    city: str
    degrees: int


def user(content: str) -> Any:
    return [{"role": "user", "content": content}]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with (
        client_world(tmp_path) as world,
        openai.AsyncOpenAI(base_url=f"{world.origin}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client


async def test_it_answers_and_streams(client: openai.AsyncOpenAI, model: str) -> None:  # W9
    whole = await client.chat.completions.create(model=model, messages=user("Hi"))
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (GREETING, "stop")
    async with client.chat.completions.stream(
        model=model, messages=user("Hi"), stream_options={"include_usage": True}
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == GREETING
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


async def test_it_calls_tools_and_answers_with_their_results(
    client: openai.AsyncOpenAI, model: str
) -> None:  # W5
    first = await client.chat.completions.create(model=model, messages=user("Rome?"), tools=TOOLS)
    [call] = first.choices[0].message.tool_calls or []
    assert (call.type, call.function.name) == ("function", "weather")
    messages = [
        *user("Rome?"),
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "20"},
    ]
    second = await client.chat.completions.create(model=model, messages=messages)
    assert second.choices[0].message.content == WEATHER
    async with client.chat.completions.stream(model=model, messages=user("Rome?"), tools=TOOLS) as stream:
        [streamed] = (await stream.get_final_completion()).choices[0].message.tool_calls or []
    assert (streamed.id, streamed.function.arguments) == (call.id, call.function.arguments)


async def test_it_gets_the_shape_that_it_asks_for(client: openai.AsyncOpenAI, model: str) -> None:  # W6
    whole = await client.chat.completions.parse(model=model, messages=user("Read"), response_format=Reading)
    assert whole.choices[0].message.parsed == Reading(city="Rome", degrees=20)
    async with client.chat.completions.stream(
        model=model, messages=user("Read"), response_format=Reading
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Reading(city="Rome", degrees=20)


async def test_errors_are_the_client_s_own(client: openai.AsyncOpenAI, model: str) -> None:  # W9
    for content, error in (
        ("limit", openai.RateLimitError),
        ("refuse", openai.BadRequestError),
        ("break", openai.InternalServerError),
    ):
        with pytest.raises(error):
            await client.chat.completions.create(model=model, messages=user(content))
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nobody", messages=user("Hi"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="key-of-nobody-here").models.list()
    stream = await client.chat.completions.create(model=model, messages=user("cut"), stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_it_embeds_and_lists(client: openai.AsyncOpenAI, model: str) -> None:  # W9
    made = await client.embeddings.create(model=model, input=["one two", "two three"])
    assert [(each.index, len(each.embedding), sum(each.embedding)) for each in made.data] == [
        (0, 64, 2.0),
        (1, 64, 2.0),
    ]
    assert model in [each.id async for each in client.models.list()]
    assert (await client.models.retrieve(model)).id == model
