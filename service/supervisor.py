"""`serve --workers N`: N processes that answer on one port, and this one, which looks after them.

The supervisor loads everything and opens nothing; each worker is forked from it. Every worker has a listening
socket of its own on the same port (SO_REUSEPORT), which stays open here: connections that wait for a worker
outlive it. A channel joins each worker to the supervisor; when either of them ends, the other notices.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import orjson
import structlog
from prometheus_client import CollectorRegistry

from flow_engine.errors import CallTheOperator, RetryLater
from service.merged_metrics import Families, exposition, families_of, merged_families

GRACE_S = 25.0
"""So long may a worker finish its requests; what is left then is killed."""
BACKOFF_S = (0.1, 0.5, 2.0, 5.0, 10.0, 30.0)
"""Before a worker is started again, by how many in a row have failed early."""
STEADY_AFTER_S = 60.0
"""A worker that has lived so long has not failed early."""
COLLECTED_WITHIN_S = 3.0
"""A worker that is later counts with what it had counted before."""
ANSWERED_WITHIN_S = 8.0
"""A supervisor that is later fails the scrape."""
LOOKS_EVERY_S = 5.0
HANGS_AFTER_LOOKS = 6
"""A worker that answers none of so many in a row is killed. They are counted, not the seconds: a pause of the
whole machine is one look."""

READY, ASK, SAMPLES, ALIVE = b"r", b"a", b"s", b"v"
"""First bytes of a worker's messages: it serves; it asks for everybody's metrics; here are its own (JSON); it
has been looked at."""
COLLECT, MERGED, LEAVE, LOOK = b"c", b"m", b"l", b"k"
"""First bytes of messages to it: send yours; here are everybody's (text); another one has taken over; answer
that you live."""

log: Any = structlog.get_logger("flow_engine.service")


@dataclass(slots=True, eq=False)
class _Worker:
    """`channel` is None once it is closed. Times are of the monotonic clock, in seconds."""

    slot: int
    process: ForkProcess
    channel: Connection | None
    started: float
    ready: bool = False
    leaving: bool = False
    killed_at: float = float("inf")
    unanswered: int = 0
    counted: Families = field(default_factory=Families)


class Supervisor:
    """`listening` opens one more socket on the port. `serve` runs in a worker, on its socket and its end of
    the channel, until its requests are finished; SystemExit is its exit status."""

    def __init__(
        self,
        workers: int,
        listening: Callable[[], socket.socket],
        serve: Callable[[socket.socket, Connection], None],
        *,
        all_ready: Callable[[], None],
        looks_every_s: float = LOOKS_EVERY_S,
    ) -> None:
        self._listening = listening
        self._serve = serve
        self._all_ready = all_ready
        self._looks_every_s = looks_every_s
        self._looks_at = 0.0
        self._sockets: list[socket.socket | None] = [listening() for _ in range(workers)]
        self._workers: list[_Worker] = []
        self._failed_early = [0] * workers
        self._starts_at: dict[int, float] = {0: 0.0}
        """By slot. The first worker starts alone: what forbids it to start is reported once."""
        self._renewed_next: set[int] = set()
        """Slots whose worker was starting when all were renewed: it may have read what was changed."""
        self._signals: list[int] = []
        self._served = False
        self._stopping = False
        self._status = 0
        self._counted_before: Families = []
        self._asking: list[_Worker] = []
        self._asked: set[_Worker] = set()
        self._collect_until = float("inf")

    def run(self) -> int:
        """Until SIGINT or SIGTERM, or until the first worker refuses to start. The exit status: 0, or that of
        the worker. SIGHUP has new workers take over. A second SIGINT or SIGTERM waits for nobody."""
        try:
            with _signals_into(self._signals) as woken:
                while self._workers or self._starts_at:
                    for slot in [slot for slot, at in self._starts_at.items() if at <= time.monotonic()]:
                        del self._starts_at[slot]
                        try:
                            self._start(slot)
                        except (OSError, CallTheOperator) as error:  # no room for one at the moment
                            if not self._served:
                                raise
                            log.error("worker_not_started", worker=slot, reason=str(error))
                            self._close_socket(slot)
                            self._starts_at[slot] = time.monotonic() + BACKOFF_S[-1]
                    self._look_at_all()
                    channels = (worker.channel for worker in self._workers if worker.channel is not None)
                    killed_at = (worker.killed_at for worker in self._workers)
                    until = min([*self._starts_at.values(), self._collect_until, self._looks_at, *killed_at])
                    left_s = max(0.0, until - time.monotonic())
                    wait([woken, *channels, *(worker.process.sentinel for worker in self._workers)], left_s)
                    with suppress(BlockingIOError):
                        woken.recv(4096)
                    while self._signals:
                        if self._signals.pop(0) != signal.SIGHUP:
                            self._stop()
                        elif not self._stopping:
                            self._renew()
                    for worker in tuple(self._workers):
                        status = worker.process.exitcode
                        self._hear(worker)  # its last messages too
                        if status is not None:
                            self._ended(worker, status)
                    self._answer_if_collected()
                    for worker in self._workers:
                        if worker.killed_at <= time.monotonic():
                            worker.killed_at = float("inf")
                            worker.process.kill()
        finally:
            for worker in self._workers:  # none, unless something here is wrong
                worker.process.kill()
        return self._status

    # Workers come and go -----------------------------------------------------------------------------

    def _start(self, slot: int) -> None:
        self._renewed_next.discard(slot)
        listening = self._sockets[slot] = self._sockets[slot] or self._listening()
        ours, theirs = multiprocessing.Pipe()

        def work() -> None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor hears it too
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            # Else nobody would notice the supervisor's end, and the sockets of others would never close.
            others = (each for each in self._sockets if each is not listening)
            for inherited in (ours, *(worker.channel for worker in self._workers), *others):
                if inherited is not None:
                    inherited.close()
            self._serve(listening, theirs)

        process = multiprocessing.get_context("fork").Process(target=work, name=f"worker-{slot}")
        process.start()
        theirs.close()
        self._workers.append(_Worker(slot, process, ours, time.monotonic()))

    def _ended(self, worker: _Worker, status: int) -> None:
        self._workers.remove(worker)
        self._close(worker)
        worker.process.close()
        details = {"worker": worker.slot, "status": status}
        if self._stopping or worker.leaving:
            log.info("worker_left", **details)
        elif not self._served:
            self._status = status if status > 0 else 1
            self._stop()
        elif any(other.slot == worker.slot for other in self._workers):
            log.error("worker_not_replaced", **details)
            self._renew_next(worker.slot)
        else:
            lived_s = time.monotonic() - worker.started
            failed = 0 if lived_s >= STEADY_AFTER_S else self._failed_early[worker.slot]
            again_in_s = BACKOFF_S[min(failed, len(BACKOFF_S) - 1)]
            self._failed_early[worker.slot] = failed + 1
            self._starts_at[worker.slot] = time.monotonic() + again_in_s
            log.warning("worker_ended", **details, again_in_s=again_in_s)
            if failed:  # connections go to the others meanwhile
                self._close_socket(worker.slot)

    def _renew(self) -> None:
        self._renewed_next |= {worker.slot for worker in self._workers if not worker.ready}
        if self._served:
            others = set(range(len(self._sockets))) - self._renewed_next
            self._starts_at |= dict.fromkeys(others, 0.0)

    def _renew_next(self, slot: int) -> None:
        """After its worker has started, or could not."""
        if slot in self._renewed_next:
            self._starts_at[slot] = 0.0

    def _took_over(self, worker: _Worker) -> None:
        for other in self._workers:
            if other is not worker and other.slot == worker.slot and not other.leaving:
                other.leaving, other.killed_at = True, time.monotonic() + GRACE_S
                _send(other, LEAVE)
        if not self._served:
            self._served = True
            self._starts_at |= dict.fromkeys(range(1, len(self._sockets)), 0.0)
        self._renew_next(worker.slot)
        if len({each.slot for each in self._workers if each.ready}) == len(self._sockets):
            self._all_ready()
            self._all_ready = lambda: None

    def _look_at_all(self) -> None:
        """One that lives and answers nobody would keep its connections, and get its share of new ones."""
        if time.monotonic() < self._looks_at:
            return
        self._looks_at = time.monotonic() + self._looks_every_s
        for worker in self._workers:
            if worker.ready and worker.killed_at == float("inf"):
                if worker.unanswered == HANGS_AFTER_LOOKS:
                    log.error("worker_hangs", pid=worker.process.pid, worker=worker.slot)
                    worker.process.kill()
                worker.unanswered += 1
                _send(worker, LOOK)

    def _stop(self) -> None:
        left_s = 0.0 if self._stopping else GRACE_S
        self._stopping = True
        self._starts_at.clear()
        for slot in range(len(self._sockets)):
            self._close_socket(slot)
        for worker in self._workers:
            worker.killed_at = time.monotonic() + left_s
            worker.process.terminate()

    def _close_socket(self, slot: int) -> None:
        listening, self._sockets[slot] = self._sockets[slot], None
        if listening is not None:
            listening.close()

    # What they tell ----------------------------------------------------------------------------------

    def _hear(self, worker: _Worker) -> None:
        try:
            while worker.channel is not None and worker.channel.poll():
                message = worker.channel.recv_bytes()
                worker.unanswered = 0
                match message[:1]:
                    case b"r":
                        worker.ready = True
                        log.info("worker_ready", pid=worker.process.pid, worker=worker.slot)
                        if not self._stopping:
                            self._took_over(worker)
                    case b"a":
                        self._asking.append(worker)
                    case b"v":
                        pass
                    case _:
                        worker.counted = orjson.loads(message[1:])
                        self._asked.discard(worker)
        except (EOFError, OSError):
            self._close(worker)

    def _close(self, worker: _Worker) -> None:
        """What it has counted stays: a sum that falls would be taken for one that began anew."""
        if worker.channel is not None:
            worker.channel.close()
            kept = [family for family in worker.counted if family[2] != "gauge"]
            self._counted_before = merged_families([self._counted_before, kept])
            worker.channel, worker.counted = None, []
            self._asked.discard(worker)

    def _answer_if_collected(self) -> None:
        """Asks every worker for its metrics, and answers once all have sent them, or are late."""
        if self._asking and self._collect_until == float("inf"):
            self._collect_until = time.monotonic() + COLLECTED_WITHIN_S
            for worker in self._workers:
                if worker.ready and worker not in self._asked and _send(worker, COLLECT):
                    self._asked.add(worker)
        elif self._asking and (not self._asked or time.monotonic() >= self._collect_until):
            # Who is late does not read either: it would hold this process up.
            asking = [worker for worker in self._asking if worker not in self._asked]
            self._asking, self._collect_until = [], float("inf")
            counted = [self._counted_before, *(each.counted for each in self._workers)]
            text = exposition(merged_families(counted))
            for worker in asking:
                _send(worker, MERGED + text)


class ChannelEnd:
    """A worker's end, on the loop that serves. After the supervisor's end the worker stops by itself."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._scrapes: list[asyncio.Future[bytes]] = []

    def open(
        self, registry: CollectorRegistry, *, leave: Callable[[], None], stop: Callable[[], None]
    ) -> None:
        """The worker serves from now on. `leave` is called when another one has taken over, `stop` when
        nobody looks after this one any more."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            try:
                message = self._channel.recv_bytes()
                match message[:1]:
                    case b"c":
                        self._tell(registry)
                    case b"k":
                        self._channel.send_bytes(ALIVE)
                    case b"m":
                        scrapes, self._scrapes = self._scrapes, []
                        for scrape in scrapes:
                            if not scrape.done():
                                scrape.set_result(message[1:])
                    case _:
                        leave()
            except (EOFError, OSError):
                loop.remove_reader(self._channel.fileno())
                stop()

        loop.add_reader(self._channel.fileno(), hear)
        os.set_blocking(self._channel.fileno(), True)  # uvloop has changed it; a message is written whole
        with suppress(OSError):  # nobody looks after it already, which `hear` finds out
            self._channel.send_bytes(READY)

    async def merged(self) -> bytes:
        """Every worker's metrics, in Prometheus's text format. Raises RetryLater `metrics_unavailable`."""
        scrape: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._scrapes.append(scrape)
        try:
            self._channel.send_bytes(ASK)
            return await asyncio.wait_for(scrape, ANSWERED_WITHIN_S)
        except (OSError, TimeoutError):
            raise RetryLater("metrics_unavailable", "the supervisor of the workers does not answer") from None

    def close(self, registry: CollectorRegistry) -> None:
        """Nothing is served any more: what was counted until now stays with the supervisor."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        with suppress(OSError):
            self._tell(registry)

    def _tell(self, registry: CollectorRegistry) -> None:
        self._channel.send_bytes(SAMPLES + orjson.dumps(families_of(registry)))


def _send(worker: _Worker, message: bytes) -> bool:
    with suppress(OSError):  # it has just ended
        if worker.channel is not None:
            worker.channel.send_bytes(message)
            return True
    return False


@contextmanager
def _signals_into(received: list[int]) -> Generator[socket.socket]:
    """A socket that can be read when a signal has come."""
    woken, waking = socket.socketpair()
    with woken, waking:
        woken.setblocking(False)
        waking.setblocking(False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, lambda got, _: received.append(got)) for number in numbers}
        wakeup_before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
