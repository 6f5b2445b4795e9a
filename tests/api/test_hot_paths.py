"""The table that finds a conversation's calls before the router is asked."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter
from starlette.responses import Response

from api.app import HotEndpoints
from api.endpoints import Call, Endpoint
from tests.api.harness import open_scene

pytestmark = pytest.mark.anyio


async def _nothing(call: Call) -> Response:
    raise NotImplementedError


def hot(path: str) -> Endpoint:
    return Endpoint(f"GET {path}", _nothing, "", TypeAdapter(str), audience="agents", scopes=(), hot=True)


@pytest.mark.parametrize("path", ["/prompt/{id}", "/a/b/{conversation_id:id}", "/{conversation_id:id}/x"])
def test_a_path_that_the_table_would_miss_is_refused_at_the_start(path: str) -> None:
    with pytest.raises(ValueError, match="no fixed path"):
        HotEndpoints().add(hot(path), _nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    ["/v1/prompt/", "/v1prompt/c", "/v1-prompt/c", "/v1/v1/prompt/c", "/v12/prompt/c", "/prompt", "/v1//c"],
)
async def test_what_is_nearly_a_hot_path_is_no_path(path: str) -> None:
    async with open_scene() as scene:
        assert (await scene.http.get(path)).status_code == 404
