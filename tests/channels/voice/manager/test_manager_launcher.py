"""The launcher: a command leaves nothing behind, however it or whoever started it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from channels.voice.manager.processes import LAUNCHER
from tests.channels.voice.manager.manager_processes import (
    alive,
    family_of,
    gone,
    note_pid,
    read_pid,
    script,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")

SLEEP = "while True: time.sleep(1)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@dataclass
class Launched:
    process: subprocess.Popen[bytes]
    control: socket.socket
    descendants: Callable[[], list[int]]

    def command_pid(self) -> int:
        said = b""
        while not said.endswith(b"\n"):
            said += self.control.recv(64)
        return int(said.removeprefix(b"pid "))

    def wait(self) -> int:
        return self.process.wait(timeout=60)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    with ExitStack() as stack:

        def run(command: Sequence[str], stop_s: float = 20) -> Launched:
            ours, theirs = socket.socketpair()
            ours.settimeout(20)
            held = os.open(tmp_path, os.O_RDONLY)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(LAUNCHER)),
                    *(str(theirs.fileno()), str(held), str(stop_s)),
                    *command,
                ],
                pass_fds=(theirs.fileno(), held),
                start_new_session=True,
            )
            theirs.close()
            os.close(held)
            stack.callback(ours.close)
            return Launched(process, ours, stack.enter_context(family_of(process)))

        yield run


def test_it_exits_with_the_command_s_status(launch: Callable[..., Launched], tmp_path: Path) -> None:  # V13
    assert launch(script(tmp_path / "a.py", "sys.exit(7)")).wait() == 7
    assert launch(script(tmp_path / "b.py", "os.kill(os.getpid(), 9)")).wait() == 128 + 9


def test_a_command_that_is_not_there_is_127(launch: Callable[..., Launched], tmp_path: Path) -> None:  # V13
    assert launch([str(tmp_path / "nothing")]).wait() == 127


def test_the_command_has_its_own_arguments_and_none_of_the_launcher_s_descriptors(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    told = tmp_path / "told"
    look = "there = sorted(map(int, os.listdir('/proc/self/fd')))[:-1]"  # the last one lists them
    tell = f"open({str(told)!r}, 'w').write(repr((sys.argv[1:], there)))"
    command = [*script(tmp_path / "a.py", look, tell), "--config", "x y"]
    assert launch(command).wait() == 0
    assert told.read_text() == repr((["--config", "x y"], [0, 1, 2]))


def test_asked_to_end_the_command_gets_one_sigterm(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    """A second one would mean to some programs not to end in order any more."""
    counted, ready = tmp_path / "counted", tmp_path / "ready"
    command = script(
        tmp_path / "a.py",
        "got = []",
        "signal.signal(signal.SIGTERM, lambda *_: got.append(1))",
        note_pid(ready),
        "while not got: time.sleep(0.01)",
        "time.sleep(0.3)",
        f"open({str(counted)!r}, 'w').write(str(len(got)))",
    )
    launched = launch(command)
    read_pid(ready)
    launched.control.send(b"t")
    assert launched.wait() == 0
    assert counted.read_text() == "1"


def test_the_pid_it_tells_is_the_command_s(launch: Callable[..., Launched], tmp_path: Path) -> None:  # V13
    launched = launch(script(tmp_path / "a.py", note_pid(tmp_path / "pid"), SLEEP))
    assert launched.command_pid() == read_pid(tmp_path / "pid")


def test_a_deaf_command_is_killed_on_demand(launch: Callable[..., Launched], tmp_path: Path) -> None:  # V13
    launched = launch(script(tmp_path / "a.py", DEAF, note_pid(tmp_path / "pid"), SLEEP))
    pid = read_pid(tmp_path / "pid")
    launched.control.send(b"t")
    launched.control.send(b"k")
    assert launched.wait() == 128 + 9
    assert gone(pid)


def test_nothing_is_left_when_the_other_side_disappears(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    launched = launch(script(tmp_path / "a.py", note_pid(tmp_path / "pid"), SLEEP))
    pid = read_pid(tmp_path / "pid")
    launched.control.close()
    assert launched.wait() == 128 + 15
    assert gone(pid)


def test_a_deaf_command_is_killed_some_time_after_the_other_side_has_disappeared(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    launched = launch(script(tmp_path / "a.py", DEAF, note_pid(tmp_path / "pid"), SLEEP), stop_s=0.3)
    pid = read_pid(tmp_path / "pid")
    launched.control.close()
    assert launched.wait() == 128 + 9
    assert gone(pid)


def _daemons(tmp_path: Path, *deeds: str) -> list[str]:
    """A command with a deaf child in its group, and a deaf daemon: another session, its parent gone."""
    child = script(tmp_path / "child.py", DEAF, note_pid(tmp_path / "child"), SLEEP)
    daemon = script(tmp_path / "daemon.py", DEAF, "os.setsid()", note_pid(tmp_path / "daemon"), SLEEP)
    between = script(tmp_path / "between.py", f"subprocess.Popen({daemon!r})")
    return script(
        tmp_path / "main.py",
        f"subprocess.Popen({child!r})",
        f"subprocess.run({between!r})",
        f"while not os.path.exists({str(tmp_path / 'daemon')!r}): time.sleep(0.01)",
        f"while not os.path.exists({str(tmp_path / 'child')!r}): time.sleep(0.01)",
        note_pid(tmp_path / "main"),
        *deeds,
    )


@pytest.mark.parametrize("end", ["exits", "killed", "disappears"])
def test_children_and_daemons_of_the_command_go_with_it(
    launch: Callable[..., Launched], tmp_path: Path, end: str
) -> None:  # V13
    deed = "sys.exit(0)" if end == "exits" else SLEEP
    launched = launch(_daemons(tmp_path, deed), stop_s=0.3)
    read_pid(tmp_path / "main")
    child, daemon = read_pid(tmp_path / "child"), read_pid(tmp_path / "daemon")
    if end == "killed":
        launched.control.send(b"k")
    elif end == "disappears":
        launched.control.close()
    launched.wait()
    assert gone(child)
    assert gone(daemon)


def test_without_the_launcher_a_daemon_would_stay(tmp_path: Path) -> None:  # V13
    """The control for the test above: what it ends does not end by itself."""
    process = subprocess.Popen(_daemons(tmp_path, "sys.exit(0)"), start_new_session=True)
    process.wait(timeout=60)
    left = [read_pid(tmp_path / "child"), read_pid(tmp_path / "daemon")]
    try:
        assert all(map(alive, left))
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def test_the_command_ends_with_a_launcher_that_is_killed(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    launched = launch(script(tmp_path / "a.py", DEAF, note_pid(tmp_path / "pid"), SLEEP))
    pid = read_pid(tmp_path / "pid")
    launched.process.kill()
    launched.wait()
    wait_until(lambda: gone(pid), "the command has ended")


def test_signals_that_a_service_manager_sends_to_everybody_do_not_end_the_launcher(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    """The launcher ends with the command, which may take its time for its calls."""
    ready, done = tmp_path / "ready", tmp_path / "done"
    command = script(
        tmp_path / "a.py",
        "got = []",
        "signal.signal(signal.SIGTERM, lambda *_: got.append(1))",
        note_pid(ready),
        "while not got: time.sleep(0.01)",
        "time.sleep(0.3)",
        f"open({str(done)!r}, 'w').write('in order')",
    )
    launched = launch(command)
    for pid in (launched.process.pid, read_pid(ready)):
        os.kill(pid, signal.SIGTERM)
    assert launched.wait() == 0
    assert done.read_text() == "in order"


def test_what_the_launcher_ignores_its_command_does_not(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:  # V13
    told = tmp_path / "told"
    command = ["/bin/sh", "-c", f"grep SigIgn /proc/self/status > {told}"]
    assert launch(command).wait() == 0
    ignored = int(told.read_text().split()[1], 16)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE"):
        assert not ignored >> (signal.Signals[name] - 1) & 1, name
