"""The fake business: it answers from its table, and keeps what it was asked."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from channels.voice.testing.fake_business import FakeBusiness, Reply

pytestmark = pytest.mark.anyio


async def test_it_answers_by_method_and_path_and_keeps_what_it_was_asked() -> None:  # V15
    async with FakeBusiness({"POST /orders": {"id": "o-1"}, "GET /orders": []}) as business:
        async with httpx.AsyncClient(base_url=business.url) as http:
            assert (await http.post("/orders", json={"n": 1})).json() == {"id": "o-1"}
            assert (await http.get("/orders", params={"phone": "+33 1"})).json() == []
        posted, fetched = business.calls
        assert (posted.method, posted.path, posted.body) == ("POST", "/orders", {"n": 1})
        assert (fetched.method, fetched.query, fetched.body) == ("GET", {"phone": "+33 1"}, None)
        assert posted.at < fetched.at


async def test_what_is_not_in_the_table_is_not_found_unless_it_is_said_otherwise() -> None:  # V15
    async with (
        FakeBusiness() as strict,
        FakeBusiness(otherwise={"id": "x"}) as lax,
        httpx.AsyncClient() as http,
    ):
        assert (await http.get(f"{strict.url}/orders")).status_code == 404
        assert (await http.get(f"{lax.url}/orders")).json() == {"id": "x"}


async def test_an_answer_may_be_an_error_and_take_its_time() -> None:  # V15
    async with (
        FakeBusiness({"GET /slow": Reply(None, 503, after_s=0.1)}) as business,
        httpx.AsyncClient() as http,
    ):
        began = asyncio.get_running_loop().time()
        assert (await http.get(f"{business.url}/slow")).status_code == 503
        assert asyncio.get_running_loop().time() - began >= 0.1
