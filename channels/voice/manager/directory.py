"""The directory that belongs to one manager.

    configs/<id>.json   what the agents run, written before they start
    state.json          {"version": 1, "ports": {"<id>": 5050, ...}}: ports are kept for good
    status.json         what runs, for people and monitors
    manager.lock        held by the manager, and by each process of its own until that is gone

All of them are for their owner only, and none holds a secret.
"""

import fcntl
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flow_engine.errors import CallTheOperator

LOOK_AGAIN_S = 0.1

log: Any = structlog.get_logger("flow_engine.voice.manager")


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    ports: dict[str, Annotated[int, Field(ge=1, le=65_535)]] = {}


@dataclass(frozen=True, slots=True)
class Directory:
    """`lock` is a descriptor: the lock is free when every copy of it has been closed."""

    path: Path
    lock: int

    @property
    def configs(self) -> Path:
        return self.path / "configs"

    def read_ports(self) -> dict[str, int]:
        """Raises CallTheOperator `manager_state_invalid`: giving out other ports would send callers to the
        wrong agent."""
        path = self.path / "state.json"
        if not path.exists():
            return {}
        try:
            ports = _State.model_validate_json(path.read_bytes()).ports
        except (OSError, ValidationError) as error:
            raise _invalid(path) from error
        if len(set(ports.values())) < len(ports):
            raise _invalid(path)
        return ports

    def write_ports(self, ports: Mapping[str, int]) -> None:
        """Raises OSError."""
        _write_json(self.path / "state.json", _State(ports=dict(ports)).model_dump())

    def write_status(self, status: Mapping[str, object]) -> None:
        """Raises OSError."""
        _write_json(self.path / "status.json", status)


@contextmanager
def locked_directory(path: Path, wait_s: float) -> Generator[Directory]:
    """The directory, made if it is not there. Waits up to `wait_s` seconds for another manager's last
    processes to end. Raises CallTheOperator `manager_runs_already`, `manager_directory_unusable`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "configs").mkdir(mode=0o700, exist_ok=True)
        lock = os.open(path / "manager.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CallTheOperator(
            "manager_directory_unusable", f"{path} cannot be used: {error.strerror}"
        ) from error
    try:
        until = time.monotonic() + wait_s
        waiting = False
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            if time.monotonic() >= until:
                raise CallTheOperator(
                    "manager_runs_already",
                    f"the manager with process id {holder}, or what it started, uses {path}; "
                    "end it, or name another directory",
                )
            if not waiting:
                waiting = True
                log.warning("directory_in_use", directory=str(path), by=holder, wait_s=wait_s)
            time.sleep(LOOK_AGAIN_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        yield Directory(path, lock)
    finally:
        os.close(lock)


def write_private(path: Path, content: bytes) -> None:
    """All of it or nothing, also if the power fails: a draft `.part` comes before it. Readable by the owner
    only. Raises OSError."""
    draft = path.with_suffix(".part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    write_private(path, orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _invalid(path: Path) -> CallTheOperator:
    return CallTheOperator(
        "manager_state_invalid", f"{path} is damaged; mend it, or remove it to give out the ports anew"
    )
