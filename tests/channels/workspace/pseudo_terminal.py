"""A program on a pseudo-terminal, and somebody who reads its screen and presses keys."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CTRL_C = "\x03"
CTRL_D = "\x04"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>()][AB012]?")


@dataclass
class Terminal:
    """`screen` is all text since the last `until`, `colours` the same with its escape sequences; `shown` what
    the last `until` saw, with them."""

    pid: int
    handle: int
    colours: str = ""
    shown: str = ""
    ended: int | None = None
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @property
    def screen(self) -> str:
        return _ESCAPES.sub("", self.colours).replace("\r", "")

    def press(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def press_until(self, keys: str, *texts: str) -> None:
        """As a person does: again when nothing comes of it."""
        for _ in range(9):
            self.press(keys)
            deadline = time.monotonic() + 2
            while not _in_order(texts, self.screen) and (left := deadline - time.monotonic()) > 0:
                if not self._read(left) and time.monotonic() < deadline:
                    break
            if _in_order(texts, self.screen):
                break
        self.until(*texts)

    def type(self, line: str) -> None:
        self.press(line + "\r")

    def until(self, *texts: str, within_s: float = 40) -> str:
        """What stands on the screen when the last of `texts`, one after the other, is there."""
        deadline = time.monotonic() + within_s
        while not _in_order(texts, self.screen):
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self.ended = os.waitstatus_to_exitcode(status) if done else None
                state = "still running" if self.ended is None else f"ended with {self.ended}"
                raise AssertionError(f"{texts!r} did not come; {state}; the screen: {self.screen!r}")
        seen, self.shown, self.colours = self.screen, self.colours, ""
        return seen

    def _read(self, within_s: float) -> bool:
        ready, _, _ = select.select([self.handle], [], [], within_s)
        if not ready:
            return False
        try:
            piece = os.read(self.handle, 65_536)
        except OSError:  # the program has closed its side
            return False
        self.colours += self.decoder.decode(piece)
        return bool(piece)

    def wait(self, within_s: float = 30) -> int:
        """The exit status of the program."""
        deadline = time.monotonic() + within_s
        while self.ended is None and time.monotonic() < deadline:
            self._read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.ended = os.waitstatus_to_exitcode(status)
        assert self.ended is not None, f"still running; the screen: {self.screen!r}"
        return self.ended


def _in_order(texts: Sequence[str], screen: str) -> bool:
    at = 0
    for text in texts:
        at = screen.find(text, at)
        if at < 0:
            return False
        at += len(text)
    return True


@contextmanager
def started(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """The program has the terminal for its own, as below a shell: wide enough that no path, wherever the
    checkout lies, wraps a line."""
    pid, handle = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        # A size that somebody exported would count more than the terminal's.
        inherited = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
        os.execvpe(command[0], list(command), {**inherited, "TERM": "xterm-256color", **environment})
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 400, 0, 0))
    terminal = Terminal(pid, handle)
    try:
        yield terminal
    finally:
        if terminal.ended is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(handle)
