"""Text that comes faster than it may be written goes into fewer frames, and nothing else about it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.chat.frames import AT_ONCE_S, TEXT_FRAMES_A_SECOND, AnswerFrames, Pace
from channels.voice.replay import run_in_virtual_time
from flow_engine.errors import RetryLater
from flow_engine.ports.chat import LoggedFrame, SessionRef

MANY = 100
"""Answers at once, whose share is far above what is written at once."""


class Log:
    """Implements `ChatFrames`; every frame takes `latency_s`, and `at` says when it came."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.frames: dict[str, list[dict[str, Any]]] = {}
        self.at: dict[str, list[float]] = {}
        self.is_away = False

    async def append(self, ref: SessionRef, frame: bytes, holder: str | None) -> int:
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(self.latency_s)
        if self.is_away:
            raise RetryLater("memory_unavailable", "away")
        found = orjson.loads(frame)
        self.frames.setdefault(found["id"], []).append(found)
        self.at.setdefault(found["id"], []).append(at)
        return len(self.frames[found["id"]])

    async def after(self, ref: SessionRef, seq: int) -> Sequence[LoggedFrame]:
        raise NotImplementedError

    async def last(self, ref: SessionRef) -> int:
        raise NotImplementedError


def answer(log: Log, pace: Pace, name: str = "m-1") -> AnswerFrames:
    return AnswerFrames(log, SessionRef("t", name), name, None, pace=pace)


def text(frames: Sequence[dict[str, Any]]) -> list[str]:
    return [frame["content"] for frame in frames if frame["type"] == "dialogue"]


async def streamed(frames: AnswerFrames, pieces: int, every_s: float) -> None:
    for number in range(pieces):
        await frames.dialogue(f"{number} ")
        await asyncio.sleep(every_s)
    await frames.finish("done")


STEPS = st.one_of(
    st.tuples(st.just("text"), st.text(min_size=1, max_size=3)),
    st.tuples(st.just("note"), st.just("")),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.001, 0.01, 0.049, 0.05, 0.2])),
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=25),
    latency_s=st.sampled_from([0.0, 0.002, 0.03, 0.3]),
    others=st.sampled_from([0, 5, MANY]),
)
def test_however_text_is_gathered_it_is_whole_in_order_and_before_what_follows_it(
    steps: list[tuple[str, Any]], latency_s: float, others: int
) -> None:  # C13
    async def played() -> None:
        log, pace = Log(latency_s), Pace()
        busy = [answer(log, pace, f"other-{number}") for number in range(others)]
        pace.streaming.update(busy)
        frames = answer(log, pace)
        expected: list[str] = [""]
        for kind, value in steps:
            if kind == "text":
                await frames.dialogue(value)
                expected[-1] += value
            elif kind == "note":
                await frames.note({})
                expected.append("")
            else:
                await asyncio.sleep(value)
        await frames.finish("done")
        written = log.frames["m-1"]
        parts = [""]
        for frame in written:
            if frame["type"] == "dialogue":
                parts[-1] += frame["content"]
                assert frame["content"]
            elif not frame["final"]:
                parts.append("")
        assert parts == expected
        assert [frame["final"] for frame in written] == [False] * (len(written) - 1) + [True]
        assert frames not in pace.streaming
        await asyncio.sleep(10)
        assert log.frames["m-1"] is written
        assert len(written) == len(log.at["m-1"])

    run_in_virtual_time(played())


def test_few_answers_show_every_piece_when_it_comes() -> None:  # C13
    async def played() -> None:
        log, pace = Log(), Pace()
        few = int(TEXT_FRAMES_A_SECOND * AT_ONCE_S)
        names = [f"m-{number}" for number in range(few)]
        await asyncio.gather(*(streamed(answer(log, pace, name), 50, 0.003) for name in names))
        for name in names:
            assert text(log.frames[name]) == [f"{number} " for number in range(50)]

    run_in_virtual_time(played())


@pytest.mark.parametrize("answers", [MANY, 2 * MANY])
def test_many_answers_show_their_first_piece_at_once_and_share_what_a_process_writes(
    answers: int,
) -> None:  # C13
    async def played() -> None:
        log, pace = Log(), Pace()
        names = [f"m-{number}" for number in range(answers)]
        await asyncio.gather(*(streamed(answer(log, pace, name), 30, 0.04) for name in names))
        share_s = answers / TEXT_FRAMES_A_SECOND
        for name in names:
            shown, at = text(log.frames[name]), log.at[name]
            assert shown[0] == "0 "
            assert at[0] == 0.0
            assert "".join(shown) == "".join(f"{number} " for number in range(30))
            gaps = [later - earlier for earlier, later in pairwise(at[:-1])]
            assert min(gaps[:-1]) > share_s - 0.001  # the last text does not wait
            assert max(gaps) < share_s + 0.04 + 2 * AT_ONCE_S
        whole = sum(len(text(frames)) for frames in log.frames.values())
        assert whole < 1.2 * TEXT_FRAMES_A_SECOND + 2 * answers < 30 * answers

    run_in_virtual_time(played())


def test_a_paragraph_after_something_else_begins_at_once() -> None:  # C13
    async def played() -> None:
        log, pace = Log(), Pace()
        others = [answer(log, pace, f"other-{number}") for number in range(MANY)]
        pace.streaming.update(others)
        frames = answer(log, pace)
        for piece in ("Let me ", "look."):
            await frames.dialogue(piece)
        await frames.action("look", "c", "started")
        await frames.dialogue("Found", begins=True)
        await asyncio.sleep(0)
        assert text(log.frames["m-1"]) == ["Let me ", "look.", "\n\nFound"]
        assert log.at["m-1"] == [0.0] * 4

    run_in_virtual_time(played())


def test_answers_that_wait_for_a_tool_or_have_ended_leave_their_share_to_others() -> None:  # C13
    async def played() -> None:
        log, pace = Log(), Pace()
        waiting = [answer(log, pace, f"m-{number}") for number in range(MANY)]
        for frames in waiting:
            await frames.dialogue("Let me look.")
        assert len(pace.streaming) == MANY
        for frames in waiting[: MANY // 2]:
            await frames.action("look", "c", "waiting")
        for frames in waiting[MANY // 2 :]:
            await frames.finish("done")
        assert pace.after(1.0) == 1.0
        left = answer(log, pace)
        await left.dialogue("Bye")
        await left.aclose()
        del frames, left, waiting[:]
        assert len(pace.streaming) == 0

    run_in_virtual_time(played())


def test_pieces_of_an_answer_that_is_given_up_stay_out_of_the_log() -> None:  # C12
    async def played() -> None:
        log, pace = Log(), Pace()
        others = [answer(log, pace, f"other-{number}") for number in range(MANY)]
        pace.streaming.update(others)
        frames = answer(log, pace)
        await frames.dialogue("shown")
        await asyncio.sleep(0)
        await frames.dialogue("not shown")
        await frames.aclose()
        await asyncio.sleep(10)
        assert text(log.frames["m-1"]) == ["shown"]

    run_in_virtual_time(played())


def test_a_log_that_is_away_is_an_error_of_the_next_piece_or_frame() -> None:  # C12
    async def played() -> None:
        for follows_text in (True, False):
            log = Log(0.001)
            frames = answer(log, Pace())
            log.is_away = True
            await frames.dialogue("one")
            await asyncio.sleep(1)
            with pytest.raises(RetryLater):
                await (frames.dialogue("two") if follows_text else frames.finish("done"))
            assert log.frames == {}

    run_in_virtual_time(played())
