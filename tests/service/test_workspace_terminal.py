"""Ctrl-C in the assistant's terminal, at whatever moment it is pressed (W8)."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from service.workspace_terminal import Keys


@pytest.fixture(autouse=True)
def ctrl_c_counts() -> Iterator[None]:
    """Also where the tests were started in the background, which begins them with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def typed(monkeypatch: pytest.MonkeyPatch, line: str | None) -> None:
    """What a person types at the next questions; None for Ctrl-C."""

    def answer(question: str) -> str:
        if line is None:
            press_ctrl_c()
        return line or ""

    monkeypatch.setattr("builtins.input", answer)


async def endless(seen: list[str]) -> None:
    seen.append("begun")
    try:
        await asyncio.sleep(60)
    finally:
        seen.append("ended")


def test_pressed_while_a_run_works_it_stops_the_run_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed(monkeypatch, "go on")
    seen: list[str] = []

    async def pressed_meanwhile() -> None:
        asyncio.get_running_loop().call_later(0.01, press_ctrl_c)
        await endless(seen)

    async def short() -> None:
        seen.append("worked")

    with Keys() as keys, asyncio.Runner() as runner:
        with pytest.raises(asyncio.CancelledError):
            runner.run(keys.stopping(pressed_meanwhile()))
        assert keys.read("> ") == "go on"
        runner.run(keys.stopping(short()))
    assert seen == ["begun", "ended", "worked"]


def test_pressed_between_the_line_and_its_run_it_stops_that_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed(monkeypatch, "go on")
    seen: list[str] = []
    with Keys() as keys, asyncio.Runner() as runner:
        keys.read("> ")
        press_ctrl_c()
        with pytest.raises(asyncio.CancelledError):
            runner.run(keys.stopping(endless(seen)))
    assert seen == []


def test_pressed_at_a_question_it_is_raised_there(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, None)
    with Keys() as keys, pytest.raises(KeyboardInterrupt):
        keys.read("allow? ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
