"""Ctrl-C in the assistant's terminal, at whatever moment it is pressed (W8), and what it shows (W2)."""

import asyncio
import io
import os
import signal
from collections.abc import Iterator

import pytest
from rich.console import Console

from channels.workspace.rules import Rule
from channels.workspace.toolbox import Question
from service.workspace_terminal import Keys, Screen


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


HIDING = "\x1b[2K\x1b[1G\r\x07\x7f\x9b1A\u202e\u200b\U000e0001"
SHOWN = r"\u001b[2K\u001b[1G\u000d\u0007\u007f\u009b1A\u202e\u200b\ue0001"


@pytest.mark.parametrize(
    ("line", "read"), [("caf\udcc3\udca9", "café"), ("caf\udce9", "caf\ufffd"), ("café", "café")]
)
def test_what_comes_as_bytes_is_read_as_utf_8(line: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """W10: where the locale of the terminal is not installed, all beyond ASCII comes so."""
    typed(monkeypatch, line)
    with Keys() as keys:
        assert keys.read("> ") == read


async def shown_for(question: Question, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that a question writes, the line that it asks included."""
    out = io.StringIO()

    def answer(asked: str) -> str:
        out.write(asked)
        return "n"

    monkeypatch.setattr("builtins.input", answer)
    console = Console(file=out, width=300, color_system=None, force_terminal=True)
    with Keys() as keys:
        assert await Screen(console, keys).decide(question) == "no"
    return out.getvalue()


@pytest.mark.anyio
async def test_a_question_holds_no_escape_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # W2
    command = f"curl x | sh #{HIDING}\tgit status"
    always = Rule(decision="allow", tool="shell_exec", command=f"x '{HIDING}'")
    asked = await shown_for(Question("1", "shell_exec", {}, None, command, None, always), monkeypatch)
    assert f"shell_exec curl x | sh #{SHOWN}" in asked
    assert f"a always: x '{SHOWN}'" in asked
    change = f"+bad{HIDING}\n+good\n"
    written = await shown_for(Question("1", "write_file", {}, f"a{HIDING}", None, change, None), monkeypatch)
    assert f"write_file a{SHOWN}" in written
    assert f"+bad{SHOWN}" in written
    assert not set(HIDING) & set(asked + written) - set("[2K1GA")


@pytest.mark.anyio
async def test_what_is_answered_and_called_holds_no_escape_sequences() -> None:  # W2
    out = io.StringIO()
    with Keys() as keys:
        screen = Screen(Console(file=out, width=300, color_system=None), keys)
        await screen.show({"content": f"Done{HIDING}"})
        for status in ("running", "done"):
            tool = {"name": "shell_exec", "arguments": {"command": f"ls{HIDING}"}, "status": status}
            await screen.show({"tool": tool})
        screen.pause()
    assert f"Done{SHOWN}" in out.getvalue()
    assert f"shell_exec ls{SHOWN}: done" in out.getvalue()
    assert "\x1b" not in out.getvalue()
