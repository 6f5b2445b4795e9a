"""Which backend answers, which one instead, and what a key may spend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from channels.gateway.config import read_gateway_file
from channels.gateway.routing import OPEN_S, Breaker
from flow_engine.errors import CallTheOperator
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.gateway_world import CHUNKS, completion, either, gateway, plain, stream
from tests.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("first", "falls"),
    [
        (Reply([b'{"choices": [{"mess']), True),
        (plain({}, status=500), True),
        (plain({}, status=503), True),
        (plain({}, status=429), True),
        (None, True),
        (Reply([], content_type="text/event-stream"), True),
        (plain({}, status=400), False),
        (plain({}, status=401), False),
        (plain({}, status=404), False),
        (plain({}, status=422), False),
    ],
)
async def test_a_passing_failure_goes_on_to_the_fallbacks(
    first: Reply | None, falls: bool, streams: bool, tmp_path: Path
) -> None:  # W9
    async with (
        ExactServer(lambda _: first).running() as one,
        ExactServer(lambda _: plain({}, status=500)).running() as two,
        ExactServer(either()).running() as three,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "fallbacks": ["b1", "b2"], "aliases": {"x": "m"}},
            {"url": f"{two.origin}/v1", "weight": 0},
            {"url": f"{three.origin}/v1", "weight": 0, "models": ["else"]},
        ) as world,
    ):
        reply = await world.chat(model="x", stream=streams)
        assert (reply.status_code == 200) == falls
        assert (len(one.requests), len(two.requests), len(three.requests)) == (1, falls, falls)
        if falls:
            assert three.requests[0].body["model"] == "m"


async def test_nobody_there_and_silence_fall_back_too(tmp_path: Path) -> None:  # W9
    silent = Reply([b"", b"x"], pause_s=2)
    async with (
        ExactServer(lambda _: silent).running() as slow,
        ExactServer(either()).running() as other,
        gateway(
            tmp_path,
            {"url": f"http://127.0.0.1:{free_port()}/v1", "fallbacks": ["b2"]},
            {"url": f"{slow.origin}/v1", "models": ["s"], "fallbacks": ["b2"], "timeout_s": 0.1},
            {"url": f"{other.origin}/v1", "weight": 0},
            {"url": f"{slow.origin}/v1", "models": ["alone"], "timeout_s": 0.1},
        ) as world,
    ):
        for model in ("m", "s"):
            for streams in (False, True):
                assert (await world.chat(model=model, stream=streams)).status_code == 200
                assert (await world.chat(model="alone", stream=streams)).status_code == 504


async def test_after_the_first_event_nothing_is_tried_again(tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(lambda _: stream(*CHUNKS[:2], done=False)).running() as one,
        ExactServer(either()).running() as two,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "fallbacks": ["b1"]},
            {"url": f"{two.origin}/v1", "weight": 0},
        ) as world,
    ):
        assert b"error" in (await world.streamed())[-1]
        assert two.requests == []


async def test_a_backend_that_keeps_failing_is_left_alone(tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(lambda _: plain({}, status=500)).running() as one,
        gateway(tmp_path, {"url": f"{one.origin}/v1"}, gateway_breaker_failures=2) as world,
    ):
        replies = [await world.chat() for _ in range(3)]
        assert [reply.status_code for reply in replies] == [502, 502, 503]
        assert int(replies[2].headers["retry-after"]) >= 1
        assert len(one.requests) == 2


def test_a_breaker_lets_one_request_try_after_its_time() -> None:
    now = 0.0
    breaker = Breaker(2, lambda: now)
    breaker.failed()
    assert breaker.wait_s() == 0
    breaker.failed()
    assert breaker.wait_s() == OPEN_S
    now = OPEN_S
    assert [breaker.wait_s(), breaker.wait_s()] == [0, OPEN_S]
    breaker.failed()
    assert breaker.wait_s() == OPEN_S
    now = 3 * OPEN_S  # a trial that never ended keeps nobody out for longer
    assert breaker.wait_s() == 0
    breaker.worked()
    assert [breaker.wait_s(), breaker.wait_s()] == [0, 0]


async def test_a_breaker_is_of_one_backend_and_its_fallback_answers(tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(lambda _: plain({}, status=500)).running() as one,
        ExactServer(either()).running() as two,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "fallbacks": ["b1"]},
            {"url": f"{two.origin}/v1", "models": ["n"]},
            gateway_breaker_failures=2,
        ) as world,
    ):
        assert [(await world.chat()).status_code for _ in range(4)] == [200] * 4
        assert (len(one.requests), len(two.requests)) == (2, 4)


async def test_weights_share_the_requests(tmp_path: Path) -> None:
    async with (
        ExactServer(either()).running() as one,
        ExactServer(either()).running() as two,
        gateway(
            tmp_path, {"url": f"{one.origin}/v1", "weight": 9}, {"url": f"{two.origin}/v1", "weight": 9}
        ) as world,
    ):
        for _ in range(24):
            await world.quick()
        assert min(len(one.requests), len(two.requests)) > 0


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        ({"requests_per_minute": 1}, "rate_limit_exceeded"),
        ({"tokens_per_minute": 5}, "rate_limit_exceeded"),
        ({"usd_per_day": 0.000001}, "insufficient_quota"),
    ],
)
async def test_a_budget_that_is_used_up_is_a_429(budget: Any, code: str, tmp_path: Path) -> None:
    answer = completion()
    answer["usage"] = {"prompt_tokens": 3000, "completion_tokens": 2000, "total_tokens": 5000}
    async with (
        ExactServer(lambda _: plain({**answer, "model": "gpt-4o"})).running() as server,
        gateway(
            tmp_path,
            {"url": f"{server.origin}/v1", "models": ["gpt-4o"]},
            budgets=[{"key": "local", **budget}],
        ) as world,
    ):
        assert (await world.chat(model="gpt-4o")).status_code == 200
        refused = await world.chat(model="gpt-4o")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, code)
        assert 0 < int(refused.headers["retry-after"]) <= 86_400
        assert len(server.requests) == 1
        metrics = {
            sample.name: sample.value
            for family in text_string_to_metric_families((await world.http.get("/metrics")).text)
            for sample in family.samples
        }
        assert metrics["flow_engine_gateway_calls_total"] == 1
        assert metrics["flow_engine_gateway_tokens_total"] == 2000
        assert metrics["flow_engine_gateway_usd_total"] > 0


GOOD = '[[backends]]\nname = "a"\nkind = "openai"\nurl = "http://h/v1"\nmodels = ["m"]\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[backends", "expected"),
        ("", "/backends"),
        (GOOD.replace("openai", "claude"), "/backends/0/kind"),
        (GOOD.replace("http://h", "ftp://h"), "/backends/0/url"),
        (GOOD.replace("http://h", "http://name:word@h"), "/backends/0/url"),
        (GOOD.replace("/v1", "/v1?key=x"), "/backends/0/url"),
        (GOOD.replace("http://h", "http://h\\r\\nX: y"), "/backends/0/url"),
        (GOOD + "colour = 1", "/backends/0/colour"),
        (GOOD + "weight = -1", "/backends/0/weight"),
        (GOOD + 'fallbacks = ["b"]', "'b'"),
        (GOOD + GOOD, "two backends"),
        (GOOD + "num_ctx = 3", "num_ctx"),
        (GOOD.replace('models = ["m"]', ""), "at least one model"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_place(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(CallTheOperator, match="gateway_config_invalid") as refused:
        read_gateway_file(file)
    assert named.lower() in refused.value.detail.lower()


def test_workspaces_are_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(GOOD + '[[workspaces]]\nname = "w"\npath = "site"\n[assistant]\nmodel = "m"\n', "utf-8")
    read = read_gateway_file(file)
    assert (read.workspaces[0].path, read.assistant.model) == (tmp_path / "site", "m")
