"""Commands: in a process group of their own, killed whole, bounded, without a terminal and without secrets.

A process that leaves the group (`setsid`) outlives its command without a sandbox, and ends with it in one.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from channels.workspace.confinement import Refused, Root

Sandbox = Literal["off", "no-network", "strict"]

MOST_OUTPUT: Final = 32_000
"""Characters of each stream that are kept: half from its head, half from its tail."""

MOST_S: Final = 600
LINGER_S: Final = 0.5
POLL_S: Final = 0.005

_SECRET: Final = re.compile(r"^FLOW_ENGINE_|KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_READABLE: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc")


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of commands: variables whose names hold KEY, TOKEN and the like fail to pass."""
    return {name: value for name, value in environ.items() if not _SECRET.search(name)}


class _Output:
    """The head and the tail of a stream of bytes."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._left_out = 0

    async def collect(self, stream: asyncio.StreamReader) -> None:
        half = MOST_OUTPUT // 2
        while piece := await stream.read(65_536):
            room = half - len(self._head)
            self._head += piece[:room]
            tail = self._tail + piece[room:] if room > 0 else self._tail + piece
            self._left_out += max(0, len(tail) - half)
            self._tail = tail[-half:]

    def text(self) -> str:
        gap = f"\n[{self._left_out} bytes left out]\n".encode() if self._left_out else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")


class Shell:
    """Runs command lines in the workspace, each stream of output cut at 32,000 bytes. `environ` is what
    commands get, secrets apart."""

    def __init__(self, root: Root, sandbox: Sandbox = "off", environ: Mapping[str, str] = os.environ) -> None:
        self._root = root
        self._sandbox: Sandbox = sandbox
        self._environ = without_secrets(environ)
        self._usable: bool | None = None

    async def run(self, command: str, cwd: str = ".", timeout_s: float = 30) -> dict[str, Any]:
        """`{exit_code, stdout, stderr, duration_ms, timed_out}`; a command that a signal ended has the
        signal's number below 0 as exit code. Raises Outside, Refused `SANDBOX_UNAVAILABLE`, OSError."""
        folder = self._root.open(cwd, os.O_RDONLY | os.O_DIRECTORY)
        try:
            at = "/".join(part for part in (str(self._root.path), self._root.name_of(folder)) if part != ".")
            wrapper = await self._wrapped(at)
            shell = shutil.which("bash") or "/bin/sh"
            # Below a sandbox the directory is entered by its name, in the sandbox's own file system.
            where = "/" if wrapper else f"/proc/{os.getpid()}/fd/{folder}"
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *wrapper,
                shell,
                "-c",
                command,
                cwd=where,
                env={**self._environ, "PWD": at},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            os.close(folder)
        return await _finished(process, began, min(timeout_s, MOST_S))

    async def _wrapped(self, at: str) -> Sequence[str]:
        if self._sandbox == "off":
            return ()
        command = [*self._bubblewrap(), "--chdir", at]
        if self._usable is None:
            self._usable = await _starts([*command, "true"], self._environ)
        if not self._usable:
            raise Refused(
                "SANDBOX_UNAVAILABLE", "bubblewrap (bwrap) is not installed or cannot start; nothing was run"
            )
        return command

    def _bubblewrap(self) -> list[str]:
        root = str(self._root.path)
        # Its first process takes all others along, however they are detached.
        common = ["bwrap", "--unshare-net", "--unshare-pid", "--die-with-parent"]
        if self._sandbox == "no-network":
            return [*common, "--dev-bind", "/", "/", "--proc", "/proc"]
        readable = [*_READABLE, sys.prefix, sys.base_prefix]
        binds = [part for place in readable if Path(place).exists() for part in ("--ro-bind", place, place)]
        home = self._environ.get("HOME", "/root")
        return [
            *(*common, "--unshare-ipc", "--proc", "/proc", "--dev", "/dev"),
            *("--tmpfs", "/tmp", "--tmpfs", home, *binds, "--bind", root, root),  # noqa: S108 - a place, not a file
        ]


async def _starts(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    null = asyncio.subprocess.DEVNULL
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, stdin=null, stdout=null, stderr=null
        )
        async with asyncio.timeout(10):
            return await process.wait() == 0
    return False


async def _exited(process: asyncio.subprocess.Process) -> None:
    """`process.wait` also waits for whoever else holds its pipes, as a process in the background does."""
    while process.returncode is None:  # noqa: ASYNC110 - the transport tells nobody else
        await asyncio.sleep(POLL_S)


async def _finished(process: asyncio.subprocess.Process, began: float, timeout_s: float) -> dict[str, Any]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Output(), _Output()
    reading = asyncio.gather(out.collect(process.stdout), err.collect(process.stderr))
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            await _exited(process)
            await asyncio.wait([reading], timeout=LINGER_S)
    except TimeoutError:
        timed_out = True
    finally:
        # The whole group: what a command left running in the background ends with it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await _exited(process)
        transport: Any = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()
    code = process.returncode
    result: dict[str, Any] = {
        "success": code == 0 and not timed_out,
        "exit_code": code,
        "stdout": out.text(),
        "stderr": err.text(),
        "duration_ms": round((time.monotonic() - began) * 1000),
        "timed_out": timed_out,
    }
    if timed_out:
        result |= {"error": "TIMED_OUT", "message": f"killed after {timeout_s:g} s"}
    elif code != 0:
        result |= {"error": "COMMAND_FAILED", "message": f"the command ended with {code}"}
    return result
