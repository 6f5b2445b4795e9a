"""`on_end` arrives at least once: again after errors and silence, under one key, across processes (V5)."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from channels.retries import GIVEN_UP_AFTER_S
from channels.voice.deliveries import KEY_HEADER, Deliveries
from channels.voice.replay import run_in_virtual_time
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply

FIELDS = {"agent_id": "a", "call_id": "c-1"}


class Business:
    """Implements OutboundSender: answers as `answers` say, the last one again and again."""

    def __init__(self, *answers: int | Exception, after_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.after_s = after_s
        self.keys: list[str] = []
        self.at: list[float] = []
        self.bodies: list[bytes] = []

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        self.keys.append((headers or {})[KEY_HEADER])
        self.at.append(asyncio.get_running_loop().time())
        self.bodies.append(content)
        await asyncio.sleep(self.after_s)
        answer = self.answers[min(len(self.keys), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return OutboundReply(answer, b"{}")


async def send(deliveries: Deliveries, business: Business) -> int | None:
    """The first try, as the end of a call makes it."""
    sender = deliveries.sender(business, FIELDS)
    try:
        reply = await sender.request("PATCH", "https://b.example/end", timeout_s=5, content=b"{}")
    except (OutboundFailed, OutboundRefused):
        return None
    return reply.status


def deliveries_of(business: Business, directory: Path | None = None) -> Deliveries:
    loop = asyncio.get_running_loop()
    return Deliveries(business, directory, now=loop.time)


@pytest.mark.parametrize("trouble", [500, 503, 429, OutboundFailed("nothing came")])
def test_what_is_not_answered_is_sent_again_under_the_same_key(
    trouble: int | Exception,
) -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(*[trouble] * 7, 200)
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await asyncio.sleep(150)
        assert len(set(business.keys)) == 1
        assert set(business.bodies) == {b"{}"}
        assert business.at == pytest.approx([0, 1, 3, 7, 15, 31, 63, 127])
        assert deliveries.waiting == 0

    run_in_virtual_time(run())


@pytest.mark.parametrize("answer", [200, 204, 400, 404, 409, OutboundRefused("no")])
def test_an_answer_is_an_answer_even_if_it_is_a_refusal(answer: int | Exception) -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(answer)
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await asyncio.sleep(600)
        assert len(business.keys) == 1
        assert deliveries.waiting == 0

    run_in_virtual_time(run())


def test_what_the_policy_comes_to_forbid_is_not_sent_again_and_the_log_says_why() -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(503, OutboundRefused("'b.example' leads to a private address"))
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await asyncio.sleep(600)
        assert len(business.keys) == 2
        assert deliveries.waiting == 0

    with capture_logs() as logged:
        run_in_virtual_time(run())
    assert [line["reason"] for line in logged] == ["'b.example' leads to a private address"]


def test_the_log_says_why_there_was_no_answer() -> None:  # V5, V14
    async def run() -> None:
        business = Business(503, OutboundFailed("'b.example' port 443 cannot be reached"), 200)
        await send(deliveries_of(business), business)
        await asyncio.sleep(600)

    with capture_logs() as logged:
        run_in_virtual_time(run())
    assert [line["reason"] for line in logged] == ["'b.example' port 443 cannot be reached", None]
    assert {line["url"] for line in logged} == {"https://b.example"}


def test_every_request_has_a_key_of_its_own() -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(200)
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await send(deliveries, business)
        assert len(set(business.keys)) == 2

    run_in_virtual_time(run())


def test_a_caller_that_waits_no_longer_leaves_the_request_to_be_sent_again() -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(200, after_s=20)
        deliveries = deliveries_of(business)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(14):
                await send(deliveries, business)
        business.after_s = 0
        await asyncio.sleep(2)
        assert business.at == pytest.approx([0, 15])
        assert deliveries.waiting == 0

    run_in_virtual_time(run())


def test_after_a_day_it_is_given_up_which_is_logged() -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(500)
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await asyncio.sleep(25 * 3600)
        assert deliveries.waiting == 0
        assert business.at[-1] <= 24 * 3600 + 300

    with capture_logs() as logged:
        run_in_virtual_time(run())
    assert logged[-1] == {"event": "delivery_given_up", "log_level": "error", "after_s": 86_400.0, **FIELDS}


def test_settled_is_what_has_been_answered_or_given_up() -> None:  # V5
    async def run(*answers: int) -> float:
        business = Business(*answers)
        deliveries = deliveries_of(business)
        await deliveries.settled()
        await send(deliveries, business)
        await deliveries.settled()
        assert deliveries.waiting == 0
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run(503, 503, 200)) == pytest.approx(3)
    assert run_in_virtual_time(run(503)) == pytest.approx(24 * 3600, abs=300)


class TestSpool:
    def test_what_a_process_leaves_behind_the_next_one_delivers(self, tmp_path: Path) -> None:  # 21, voice-2
        async def first() -> list[str]:
            business = Business(500)
            deliveries = deliveries_of(business, tmp_path)
            await send(deliveries, business)
            await deliveries.aclose()
            assert len(business.keys) == 2  # one last try
            return business.keys

        async def second() -> list[str]:
            business = Business(200)
            deliveries = deliveries_of(business, tmp_path)
            assert deliveries.resume() == 1
            await asyncio.sleep(2)
            assert deliveries.waiting == 0
            return business.keys

        keys = run_in_virtual_time(first())
        [file] = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert run_in_virtual_time(second()) == [keys[0]]
        assert list(tmp_path.iterdir()) == []

    def test_it_is_on_disk_before_the_first_try(self, tmp_path: Path) -> None:  # 21, voice-2
        class Looks(Business):
            async def request(self, *args: object, **given: object) -> OutboundReply:
                seen.extend(file.name for file in tmp_path.iterdir())
                return OutboundReply(200, b"")

        seen: list[str] = []

        async def run() -> None:
            business = Looks(200)
            await send(deliveries_of(business, tmp_path), business)

        run_in_virtual_time(run())
        assert len(seen) == 1
        assert list(tmp_path.iterdir()) == []

    def test_the_calls_go_on_while_it_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V12
        writes, went_on = threading.Event(), threading.Event()

        def slow_disk(descriptor: int) -> None:
            writes.set()
            assert went_on.wait(60)

        async def calls_go_on() -> None:
            while not writes.is_set():
                await asyncio.sleep(0.001)
            went_on.set()

        async def run() -> None:
            business = Business(200)
            await asyncio.gather(calls_go_on(), send(deliveries_of(business, tmp_path), business))
            assert len(business.keys) == 1

        monkeypatch.setattr(os, "fsync", slow_disk)
        asyncio.run(run())

    def test_a_file_that_is_none_of_these_and_a_directory_that_cannot_be_written_lose_nothing(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "x.json").write_text("{")
        (tmp_path / "taken").write_text("a file, no directory")

        async def run() -> None:
            business = Business(200)
            assert deliveries_of(business, tmp_path).resume() == 0
            assert await send(deliveries_of(business, tmp_path / "taken"), business) == 200

        with capture_logs() as logged:
            run_in_virtual_time(run())
        assert [entry["event"] for entry in logged] == [
            "delivery_unreadable",
            "delivery_not_kept",
            "delivery_not_removed",
        ]


def test_what_can_be_sent_by_nobody_is_removed_after_a_day(tmp_path: Path) -> None:  # V5, F46
    for name in ("broken.json", "cut-off.part", "new.json", "new.part"):
        (tmp_path / name).write_text('{"content": "a transcript')
    now = (tmp_path / "new.part").stat().st_mtime
    for name in ("broken.json", "cut-off.part"):
        os.utime(tmp_path / name, (now, now - GIVEN_UP_AFTER_S - 1))
    assert Deliveries(Business(200), tmp_path, now=lambda: now).resume() == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new.json", "new.part"]


def test_only_so_many_wait_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("channels.voice.deliveries.MOST_WAITING", 1)

    async def run(directory: Path | None) -> None:
        business = Business(500)
        deliveries = deliveries_of(business, directory)
        for _ in range(2):
            await send(deliveries, business)
        assert deliveries.waiting == 1
        await deliveries.aclose()

    with capture_logs() as logged:
        run_in_virtual_time(run(None))
        run_in_virtual_time(run(tmp_path))
    assert [e["event"] for e in logged if e["event"] != "http_call"] == [
        "delivery_lost",
        "delivery_lost",  # the one that waited, at the end
        "delivery_put_off",
    ]
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_directory_the_end_of_the_process_says_what_is_lost() -> None:  # 21, voice-2
    async def run() -> None:
        business = Business(500)
        deliveries = deliveries_of(business)
        await send(deliveries, business)
        await deliveries.aclose()

    with capture_logs() as logged:
        run_in_virtual_time(run())
    assert logged[-1] == {"event": "delivery_lost", "log_level": "error", **FIELDS}
