"""Several workers on one port: the real supervisor, processes and signals, over workers that load nothing."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from service.merged_metrics import exposition, merged_families

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not spread connections")


@dataclass
class Workers:
    process: subprocess.Popen[bytes]
    log: Path
    pool: ThreadPoolExecutor

    @property
    def port(self) -> int:
        return next(int(line) for line in self.log.read_text().splitlines() if line.isdigit())

    def ask(self, line: str) -> str:
        """Empty where a worker ended without an answer."""
        with (
            suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as connection,
        ):
            connection.sendall(line.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        return ""

    def ask_meanwhile(self, line: str) -> Future[str]:
        return self.pool.submit(self.ask, line)

    def pids(self, number: int) -> set[int]:
        """Ask until so many have answered."""
        found: set[int] = set()

        def enough() -> bool:
            found.update(int(pid) for pid in [self.ask("pid")] if pid)
            return len(found) == number

        until(enough)
        return found

    def events(self, name: str) -> list[dict[str, object]]:
        lines = (orjson.loads(line) for line in self.log.read_bytes().splitlines() if line.startswith(b"{"))
        return [line for line in lines if line["event"] == name]

    def scraped(self, sample: str) -> float:
        return float(
            next(t for t in self.ask("scrape").splitlines() if t.startswith(f"{sample} ")).split()[1]
        )


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@contextmanager
def running(folder: Path, number: int = 2, *, ready: bool = True, **environment: str) -> Iterator[Workers]:
    log = folder / "log"
    with log.open("wb") as output, ThreadPoolExecutor(2) as pool:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.small_workers", str(number)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
        )
        try:
            workers = Workers(process, log, pool)
            if ready:
                until(lambda: any(line.isdigit() for line in log.read_text().splitlines()))
            yield workers
        finally:
            process.kill()
            process.wait()


def test_connections_reach_every_worker_and_a_scrape_of_any_counts_for_all(tmp_path: Path) -> None:
    with running(tmp_path, 3) as workers:
        pids = workers.pids(3)
        asked = workers.scraped("served_total")
        assert workers.scraped("served_total") == asked + 1
        assert workers.scraped("started") == 1
        os.kill(min(pids), signal.SIGKILL)
        workers.pids(3)
        assert workers.scraped("served_total") > asked + 3, "what a dead worker had counted stays"


def test_a_worker_that_dies_is_started_again_ever_later_and_the_log_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as workers:
        for failures in (1, 2):
            victim = min(workers.pids(2))
            os.kill(victim, signal.SIGKILL)
            until(lambda n=failures: len(workers.events("worker_ended")) == n)
            assert len(workers.pids(2) - {victim}) == 2
        ended = workers.events("worker_ended")
        assert {(event["status"], event["level"]) for event in ended} == {(-9, "warning")}
        if ended[0]["worker"] == ended[1]["worker"]:
            assert [event["again_in_s"] for event in ended] == [0.1, 0.5]


def test_a_worker_that_lives_and_answers_nobody_is_killed_and_started_again(tmp_path: Path) -> None:  # F42
    """Whoever was connected to it waited for ever, as did its share of all who connected later."""
    with running(tmp_path, LOOKS_EVERY_S="0.3") as workers:
        victim = min(workers.pids(2))
        os.kill(victim, signal.SIGSTOP)
        waiting = [workers.ask_meanwhile("pid") for _ in range(2)]
        until(lambda: any(event["pid"] == victim for event in workers.events("worker_hangs")))
        assert all(each.result(WITHIN_S) != str(victim) for each in waiting)
        assert victim not in workers.pids(2)


def test_a_worker_that_cannot_be_started_again_leaves_the_others_serving(tmp_path: Path) -> None:
    """As where the machine has no room for another process: all were killed at once."""
    with running(tmp_path) as workers:
        victim, other = sorted(workers.pids(2))
        files = len(os.listdir(f"/proc/{workers.process.pid}/fd"))
        resource.prlimit(workers.process.pid, resource.RLIMIT_NOFILE, (files - 1, files + 50))
        os.kill(victim, signal.SIGKILL)
        until(lambda: workers.events("worker_not_started") != [])
        assert is_alive(other)
        assert workers.pids(1) == {other}


def test_a_hangup_signal_renews_all_workers_and_those_before_finish_their_requests(tmp_path: Path) -> None:
    with running(tmp_path) as workers:
        before = workers.pids(2)
        counted = workers.scraped("served_total")
        waiting = workers.ask_meanwhile("wait 0.5")
        until(lambda: workers.scraped("served_total") > counted + 1)
        workers.process.send_signal(signal.SIGHUP)
        until(lambda: len(workers.events("worker_left")) == 2)
        assert waiting.result(WITHIN_S) == "waited"
        assert not workers.pids(2) & before
        assert workers.scraped("served_total") > counted
        assert not workers.events("worker_ended")


@contextmanager
def held(folder: Path) -> Iterator[Callable[[], int]]:
    """Within, no worker gets ready; gives how many have begun to start."""
    folder.mkdir()
    try:
        yield lambda: len(list(folder.iterdir()))
    finally:
        folder.rename(folder.with_name("let go of"))


def test_who_was_starting_at_a_hangup_signal_is_renewed_too(tmp_path: Path) -> None:  # F43
    """It may have read the keys before they were changed."""
    holds = tmp_path / "holds"
    with running(tmp_path, HOLDS=str(holds)) as workers:
        with held(holds) as starting:
            workers.process.send_signal(signal.SIGHUP)
            until(lambda: starting() == 2)
            had_read = {int(path.name) for path in holds.iterdir()}
            workers.process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        until(lambda: len(workers.events("worker_left")) == 4)
        assert not workers.pids(2) & had_read


def test_at_the_end_no_worker_is_started_for_one_that_has_just_got_ready(tmp_path: Path) -> None:
    holds = tmp_path / "holds"
    with held(holds) as starting, running(tmp_path, 3, ready=False, HOLDS=str(holds)) as workers:
        until(lambda: starting() == 1)
        workers.process.terminate()
        time.sleep(0.1)
        holds.rename(tmp_path / "those before")
        holds.mkdir()
        assert workers.process.wait(WITHIN_S) == 0
        assert starting() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_the_end_requests_are_finished_and_no_process_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as workers:
        pids = workers.pids(2)
        counted = workers.scraped("served_total")
        waiting = workers.ask_meanwhile("wait 0.3")
        until(lambda: workers.scraped("served_total") > counted + 1)
        workers.process.send_signal(number)
        assert waiting.result(WITHIN_S) == "waited"
        assert workers.process.wait(WITHIN_S) == 0
        assert not any(is_alive(pid) for pid in pids)


def test_a_second_signal_waits_for_nobody(tmp_path: Path) -> None:
    with running(tmp_path, 1) as workers:
        waiting = workers.ask_meanwhile("wait 600")
        until(lambda: workers.scraped("served_total") > 1)
        workers.process.terminate()
        time.sleep(0.1)
        workers.process.terminate()
        assert workers.process.wait(WITHIN_S) == 0
        assert waiting.result(WITHIN_S) == ""


def test_workers_end_when_nobody_looks_after_them(tmp_path: Path) -> None:
    with running(tmp_path) as workers:
        pids = workers.pids(2)
        workers.process.kill()
        until(lambda: not any(is_alive(pid) for pid in pids))


def test_what_forbids_to_start_ends_everything_after_the_first_worker(tmp_path: Path) -> None:
    with running(tmp_path, 3, ready=False, REFUSES="3") as workers:
        assert workers.process.wait(WITHIN_S) == 3
        assert not workers.events("worker_ready")


def test_what_each_has_is_added_up_and_of_what_all_share_the_highest_counts() -> None:
    shared = "jobs_waiting", "jobs_oldest_seconds", "dead_letters"
    own = "compiled_versions", "streams_open", "conversations_held"

    def gauge(name: str, amount: float) -> tuple[str, str, str, list[tuple[str, dict[str, str], float]]]:
        return f"flow_engine_{name}", "G.", "gauge", [(f"flow_engine_{name}", {}, amount)]

    def process(amount: float) -> list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]:
        return [
            (
                "a",
                "A.",
                "counter",
                [("a_total", {"x": "1"}, amount), ("a_created", {"x": "1"}, 100 - amount)],
            ),
            *(gauge(name, amount) for name in (*shared, *own)),
        ]

    other = [("a", "A.", "counter", [("a_total", {"x": "2"}, 5.0)])]
    text = exposition(merged_families([process(1), process(2), other])).decode()
    samples = {line for line in text.splitlines() if not line.startswith("#")}
    assert samples == {
        'a_total{x="1"} 3.0',
        'a_total{x="2"} 5.0',
        'a_created{x="1"} 98.0',
        *(f"flow_engine_{name} 2.0" for name in shared),
        *(f"flow_engine_{name} 3.0" for name in own),
    }
