"""Runs one command, and leaves nothing of it behind. Stand-alone: it is run by its path.

    python -I -S launch.py CONTROL_FD HELD_FD STOP_SECONDS COMMAND [ARGUMENT ...]

CONTROL_FD is a stream socket to whoever started it. It says `pid N` once, then takes single bytes: `t` asks
the command to end (SIGTERM to its process group), `k` ends it and every descendant (SIGKILL). The other
side closing, which is what happens when that process is killed, means `t`, and `k` STOP_SECONDS later.
HELD_FD is kept open until nothing is left: a lock on it tells others that something still runs.

Why a process of its own, and not a death signal alone: that reaches neither grandchildren, which a shell
script has, nor programs that change their user. This process adopts orphaned descendants instead (Linux:
it is a "subreaper"). The death signal still ends the command when this process itself is killed.

It exits with the command's status, 128 + N for signal N, 127 when there is no such command, and takes no
notice of SIGTERM, SIGINT and SIGHUP: a service manager may send those to every process it finds.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFT_ALONE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.05
"""How often leftovers are looked for and killed: killing one may make orphans of others."""


def prctl(option: int, argument: int) -> None:
    """Does nothing where there is no such call: on other systems than Linux."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    if call is not None:
        call(option, argument, 0, 0, 0)


def spawn(command: Sequence[str]) -> int:
    """The process id of the command, in a session and group of its own. Returns when it is being run, or
    could not be: a signal before that would be lost."""
    launcher = os.getpid()
    begun, begin = os.pipe()  # closed by exec
    pid = os.fork()
    if pid:
        os.close(begin)
        os.read(begun, 1)
        os.close(begun)
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the death signal was set
            os._exit(1)
        # A program inherits what is ignored: by the above, and SIGPIPE by Python.
        for number in (*LEFT_ALONE, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], list(command))  # noqa: S606 - the command is the operator's
    except OSError as error:
        os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def children() -> Iterator[int]:
    """Direct children, adopted ones too, by Linux's /proc; none elsewhere."""
    own = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # The command's name comes before, in parentheses, and may hold anything.
            if entry.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                yield int(entry.parent.name)


class Family:
    """The command and what descends from it. `status` is the command's, None until it has ended."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.status: int | None = None

    def reap(self) -> bool:
        """Whether anything is left. Never raises for a child that is gone."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self.status is None:
                # The group's id cannot be another's: its leader has not been reaped.
                os.killpg(self.leader, number)
                return
        for pid in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def watch(family: Family, control: socket.socket, wakeups: int, stop_s: float) -> None:
    """Returns when nothing is left."""
    events = select.poll()  # unlike select.select without a limit on the number of a descriptor
    events.register(control, select.POLLIN)
    events.register(wakeups, select.POLLIN)
    kill_at: float | None = None
    while family.reap():
        if family.status is not None and kill_at is None:  # what it leaves behind is asked to end as well
            family.signal(signal.SIGTERM)
            kill_at = time.monotonic() + stop_s
        left = None if kill_at is None else kill_at - time.monotonic()
        if left is not None and left <= 0:
            family.signal(signal.SIGKILL)
            left = POLL_S
        ready = dict(events.poll(None if left is None else left * 1000))
        if wakeups in ready:
            os.read(wakeups, 4096)
        if control.fileno() in ready:
            try:
                message = control.recv(4096)
            except ConnectionError:
                message = b""
            if not message:
                events.unregister(control)
            if b"k" in message:
                kill_at = time.monotonic()
            elif kill_at is None:
                family.signal(signal.SIGTERM)
                kill_at = None if message else time.monotonic() + stop_s


def main(arguments: Sequence[str]) -> NoReturn:
    control_fd, held_fd, stop_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    for descriptor in (control_fd, held_fd):
        os.set_inheritable(descriptor, False)
    for number in LEFT_ALONE:
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only so that it wakes
    control = socket.socket(fileno=control_fd)
    family = Family(spawn(arguments[3:]))
    with suppress(OSError):  # gone already: the reading below sees it
        control.sendall(b"pid %d\n" % family.leader)
    watch(family, control, wakeups, stop_s)
    # At once, with the socket still open: its closing then says that this process has ended.
    os._exit(1 if family.status is None else family.status)


if __name__ == "__main__":
    main(sys.argv[1:])
