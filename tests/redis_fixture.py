"""Redis servers of the tests' own: on a free loopback port, in a folder of their own, ended by their pid.

`redis-server` missing from the machine skips what needs it, except where `CI` is set: there it fails.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import RedisError

from memory.connection import RedisMemory
from memory.redis_py import RedisPyDriver
from tests.ports import free_port

START_TIMEOUT_S = 60.0
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
CLUSTER = (*DURABLE, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
LAST_SLOT = 16_383

# Set in the child before it becomes the server: however the tests end, none of their servers stays.
# Linux means the parent's *thread*: processes are to be started by the main thread only.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)


def client_of(memory: RedisMemory) -> Any:
    """A redis-py client of the same server, by which tests look at what is stored. Another driver has none of
    its own: for that one open it here."""
    assert isinstance(memory.driver, RedisPyDriver)
    return memory.driver.client


def spawn(
    command: Sequence[str], output: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one; what it prints is appended to `output`."""
    guard = (sys.executable, "-S", "-c", _DIE_WITH_PARENT) if sys.platform == "linux" else ()
    with output.open("ab") as sink:
        return subprocess.Popen([*guard, *command], stdout=sink, stderr=sink, cwd=cwd, env=env)


def end(process: subprocess.Popen[bytes], first: signal.Signals = signal.SIGTERM) -> None:
    """End this process and no other, also one that is stopped or does not listen."""
    if process.poll() is not None:
        return
    process.send_signal(first)
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)


@dataclass
class RedisServer:
    """A running server. `options` are those of the command line."""

    folder: Path
    port: int
    options: Sequence[str] = DURABLE
    owns_slots: bool = field(default=False, init=False)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()
        self.wait_until_ready()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        return Redis(port=self.port, socket_timeout=10)

    def start(self) -> None:
        """Start, or start again on the files of before."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self.process = spawn([*command, "--save", "", *self.options], self.folder / "redis.log")

    def wait_until_ready(self) -> None:
        """Returns when everything has been read back and, on a cluster, every slot is served."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.client() as client:
            while time.monotonic() < deadline and self.process.poll() is None:
                with contextlib.suppress(RedisError):
                    if client.ping() and (not self.owns_slots or _serves_every_slot(client)):
                        return
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"no Redis on port {self.port}: {(self.folder / 'redis.log').read_text()}")

    def own(self, first_slot: int, last_slot: int) -> None:
        with self.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first_slot, last_slot)
        self.owns_slots = True

    def kill(self) -> None:
        """As when the power goes: no shutdown, no last write."""
        end(self.process, signal.SIGKILL)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        end(self.process)


StartRedis = Callable[..., RedisServer]


def require_redis() -> None:
    if shutil.which("redis-server") is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed, and CI runs everything")
        pytest.skip("redis-server is not installed")


@contextlib.contextmanager
def starting_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRedis]:
    """Start servers within; they are ended with the block."""
    servers: list[RedisServer] = []

    def start(options: Sequence[str] = DURABLE, slots: tuple[int, int] = (0, LAST_SLOT)) -> RedisServer:
        require_redis()
        # A cluster's nodes talk to one another on the port that is higher by 10,000.
        server = RedisServer(tmp_path_factory.mktemp("redis"), free_port(), options)
        servers.append(server)
        if "--cluster-enabled" in options:
            server.own(*slots)
            if slots == (0, LAST_SLOT):
                server.wait_until_ready()
        return server

    try:
        yield start
    finally:
        for server in servers:
            server.stop()


def start_cluster(start: StartRedis, nodes: int) -> list[RedisServer]:
    """Masters that know of one another and serve equal shares of the slots."""
    edges = [number * (LAST_SLOT + 1) // nodes for number in range(nodes + 1)]
    servers = [start(CLUSTER, slots=(first, end - 1)) for first, end in itertools.pairwise(edges)]
    for number, server in enumerate(servers):
        with server.client() as client:
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
    for server in servers:
        server.wait_until_ready()
    return servers


def _serves_every_slot(client: Redis) -> bool:
    info = cast("Mapping[str, str]", client.execute_command("CLUSTER INFO"))
    return info["cluster_state"] == "ok"


@pytest.fixture
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRedis]:
    """Start servers that the test may kill, pause or fill."""
    with starting_redis(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One durable server for every test that keeps to its own tenant."""
    with starting_redis(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis Cluster of one node that owns every slot."""
    with starting_redis(tmp_path_factory) as start:
        yield start(CLUSTER)
