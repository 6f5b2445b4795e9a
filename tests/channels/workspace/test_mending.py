"""A failing test in a git repository is mended end to end, and the mending undone; also by a person at a
terminal (W8, W10)."""

import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Event

import orjson
import pytest

from adapters.models.fake_http import Received
from adapters.models.fake_openai import WireStep
from adapters.models.scripted import Says, Stalls
from channels.workspace.assistant import Frame, run_turn
from channels.workspace.toolbox import Choice, Question
from channels.workspace.undo import undo
from service.assistant import Base, assistant_model
from tests.channels.workspace.pseudo_terminal import CTRL_C, CTRL_D, Terminal, started
from tests.channels.workspace.repository import (
    BROKEN,
    MENDED,
    MENDING,
    TESTS,
    called,
    model_server,
    repository,
    scripted,
)
from tests.channels.workspace.workspace_world import git, opened

ROOT = Path(__file__).parents[3]


def passes(folder: Path) -> bool:
    return subprocess.run(TESTS.split(), cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.anyio
async def test_the_test_is_mended_and_the_mending_undone(tmp_path: Path) -> None:  # W8
    repository(tmp_path / "ws")
    assert not passes(tmp_path / "ws")
    shown: list[Frame] = []
    refused = False

    def decide(question: Question) -> Choice:
        nonlocal refused
        if question.name == "write_file" and not refused:
            refused = True
            return "no"
        return "once"

    async def emit(frame: Frame) -> None:
        shown.append(frame)

    with model_server(scripted(MENDING, "Mended.")) as server, opened(tmp_path) as world:
        world.person.answer = decide
        model = assistant_model(Base(server.base_url, None), "m")
        try:
            done = await run_turn(world.workspace, model, world.session, "Mend the test.", world.person, emit)
        finally:
            await model.aclose()
        assert done.content == "Mended."
        assert [(each["name"], each["status"]) for each in done.tools] == [
            ("list_files", "done"),
            ("read_file", "done"),
            ("search_text", "done"),
            ("shell_exec", "failed"),
            ("write_file", "rejected"),
            ("write_file", "done"),
            ("shell_exec", "done"),
            ("shell_exec", "done"),
        ]
        writes = [each for each in world.person.asked if each.name == "write_file"]
        assert ["+    return " in (each.diff or "") for each in writes] == [True, True]
        assert "-    return max(prices)\n+    return sum(prices)\n" in (writes[1].diff or "")
        told = orjson.loads(server.requests[5].body["messages"][-1]["content"])
        assert told["error"] == "USER_REJECTED"
        assert passes(world.root)
        assert git(world.root, "log", "--format=%s").splitlines() == ["Add the prices up", "Begin"]
        assert git(world.root, "status", "--short", "--untracked-files=no") == ""
        assert {next(iter(frame)) for frame in shown} == {"content", "tool"}

        [restored] = undo(world.workspace.root, world.workspace.store, None)
        assert (restored.path, (world.root / "prices.py").read_text("utf-8")) == ("prices.py", BROKEN)
        assert not passes(world.root)
        assert git(world.root, "log", "--format=%s").count("\n") == 2, "commits are not undone"
        (world.root / "prices.py").write_text(MENDED, "utf-8")


def _answer(terminal: Terminal, key: str, *shown: str) -> None:
    terminal.until(*shown, "allow? (", "n no) ")
    terminal.type(key)


def test_a_person_at_a_terminal_mends_it(tmp_path: Path) -> None:  # W8, W10
    folder, home = tmp_path / "ws", tmp_path / "home"
    repository(folder)
    home.mkdir()
    mending = scripted(MENDING, "# Mended\n\nThe test **passes**.")
    waiting = scripted([called("shell_exec", command="echo $$ | tee pid; sleep 60")], "")
    writing = scripted([called("write_file", path="note.txt", content="x\n")], "Written.")

    thinking = Event()

    def answer(got: Received) -> WireStep:
        # Prompts that were never answered go out together.
        prompt = str([each["content"] for each in got.body["messages"] if each["role"] == "user"][-1])
        if "Write." in prompt:
            return writing(got)
        if "Think long." in prompt:
            thinking.set()
            return Stalls(30)
        return (waiting if "Wait." in prompt else mending)(got)

    with model_server(answer) as server:
        environment = {
            **{"HOME": str(home), "PYTHONPATH": str(ROOT), "FLOW_ENGINE_WORKSPACE_MODEL": "m"},
            "FLOW_ENGINE_GATEWAY_URL": server.origin,
        }
        command = [sys.executable, "-m", "service.cli", "workspace", "--dir", str(folder)]
        with started(command, tmp_path, environment) as terminal:
            terminal.until("session", "> ")
            terminal.type("Mend\\")
            terminal.until("… ")
            terminal.type("the test.")
            looked = ("list_files .: done", "read_file prices.py: done", "search_text total(: done")
            _answer(terminal, "y", *looked, "shell_exec")
            _answer(terminal, "n", ": failed", "write_file prices.py", "+    return prices[0] + prices[1]")
            change = ("-    return max(prices)", "+    return sum(prices)")
            _answer(terminal, "y", "write_file prices.py: rejected", *change)
            assert re.search(r"\x1b\[[0-9;]*m-    return max", terminal.shown), "the change is in colours"
            _answer(terminal, "y", "write_file prices.py: done", "shell_exec")
            _answer(terminal, "y", ": done", "shell_exec git -c user.name=Ann")
            terminal.until("Mended", "The test passes.", "> ")
            assert passes(folder)
            assert git(folder, "log", "-1", "--format=%s").strip() == "Add the prices up"

            terminal.type("Wait.")  # Ctrl-C ends what runs, and its processes, and not the program
            _answer(terminal, "y")
            terminal.until("shell_exec", "running")
            _wait_for(folder / "pid")
            terminal.press(CTRL_C)
            terminal.until("stopped", "> ")
            assert not Path(f"/proc/{(folder / 'pid').read_text('utf-8').strip()}").exists()
            terminal.type("Think long.")
            terminal.until("Think long.")
            assert thinking.wait(40)
            terminal.press(CTRL_C)
            terminal.until("stopped", "> ")
            terminal.type("Write.")
            terminal.until("note.txt", "n no) ")
            terminal.press_until(CTRL_C, "stopped", "> ")  # and what asks
            assert not (folder / "note.txt").exists()

            terminal.type("Write.")
            terminal.until("allow? (", "a always: note.txt", "n no) ")
            terminal.type("a")
            terminal.until("rules.toml", "Written.", "> ")
            assert (folder / "note.txt").read_text("utf-8") == "x\n"
            terminal.press("\x1b[A")  # the history
            terminal.until("Write.")
            terminal.press_until(CTRL_C, "> ")
            terminal.press(CTRL_D)
            assert terminal.wait() == 0
    rules = (home / ".agentichat" / "rules.toml").read_text("utf-8")
    assert rules == '[[rules]]\ndecision = "allow"\ntool = "write_file"\npath = "note.txt"\n'
    with closing(sqlite3.connect(folder / ".agentichat" / "workspace.db")) as database:
        typed = [row[0] for row in database.execute("SELECT command FROM command_history ORDER BY id")]
        interrupted = database.execute("SELECT count(*) FROM messages WHERE content LIKE '%INTERRUPTED%'")
        assert typed == ["Mend\nthe test.", "Wait.", "Think long.", "Write.", "Write."]
        assert interrupted.fetchone() == (2,)


def _wait_for(path: Path) -> None:
    for _ in range(500):
        if path.exists() and path.read_text("utf-8").strip():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


def test_words_beyond_ascii_are_asked_where_the_locale_is_not_installed(tmp_path: Path) -> None:  # W10
    (tmp_path / "home").mkdir()
    asked: list[str] = []

    def answer(got: Received) -> Says:
        asked.append(got.body["messages"][-1]["content"])
        return Says("Yes.")

    with model_server(answer) as server:
        environment = {
            **{"HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "LC_ALL": "xx_XX.UTF-8"},
            **{"FLOW_ENGINE_WORKSPACE_MODEL": "m", "FLOW_ENGINE_GATEWAY_URL": server.origin},
        }
        command = [sys.executable, "-m", "service.cli", "workspace", "--dir", str(tmp_path)]
        for more in ((), ("--resume",)):  # then with the line among those typed before
            with started([*command, *more], tmp_path, environment) as terminal:
                terminal.until("session", "> ")
                terminal.type("Is this a café?")
                terminal.until("Yes.", "> ")
    assert asked == ["Is this a café?"] * 2
