"""`flow-engine voice manage` as operators run it: a process of its own that gets signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import psutil
import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.channels.voice.manager.manager_bench import FAKE_AGENT, TEMPLATE, entry, sip_entry
from tests.channels.voice.manager.manager_processes import family_of, gone, note_pid, script, wait_until
from tests.ports import free_port
from tests.service_process import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only"),
]

TOKEN = "t0ken"


class Business:
    """The business API on loopback."""

    def __init__(self) -> None:
        self.agents: list[object] = []
        self.asked = 0
        business = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = (self.path, self.headers["Authorization"]) == (
                    "/app/api/sip/agents",
                    f"Bearer {TOKEN}",
                )
                body = orjson.dumps({"agents": business.agents})
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                business.asked += 1

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/app/"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class Site:
    """Templates, fakes, a bridge that leaves a deaf daemon behind, and the business API."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        self.first_port = free_port()
        self.business = Business()
        self._stack = stack
        for name in ("templates", "fakes"):
            (home / name).mkdir()
        (home / "templates" / "restaurant.json").write_bytes(orjson.dumps(TEMPLATE))
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        sleep = "while True: time.sleep(0.1)"
        daemon = script(home / "daemon.py", deaf, "os.setsid()", note_pid(home / "daemon"), sleep)
        between = script(home / "between.py", f"subprocess.Popen({daemon!r})")
        self.bridge = script(
            home / "bridge.py", f"subprocess.run({between!r})", note_pid(home / "bridge"), sleep
        )
        stack.enter_context(self.business.serving())

    def start(
        self,
        *options: str,
        stop_s: str = "2",
        agent: Sequence[str] = (sys.executable, "-I", "-S", str(FAKE_AGENT)),
    ) -> tuple[subprocess.Popen[bytes], Callable[[], list[int]]]:
        output = self._stack.enter_context((self.home / "output").open("ab"))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "service.cli", "voice", "manage"),
                *("--api", self.business.url, "--templates", str(self.home / "templates")),
                *("--directory", str(self.home / "state"), "--first-port", str(self.first_port)),
                *(("--agent-command", shlex.join(agent)) if agent else ()),
                *("--sip-bridge-command", shlex.join(self.bridge)),
                *("--health-s", "0.2", "--drain-s", "2", *options),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "FAKE_AGENTS": str(self.home / "fakes"),
                "FLOW_ENGINE_MANAGER_API_TOKEN": TOKEN,
                "FLOW_ENGINE_MANAGER_STOP_S": stop_s,
            },
            stdout=output,
            stderr=output,
        )
        return process, self._stack.enter_context(family_of(process))

    def status(self) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            return orjson.loads((self.home / "state" / "status.json").read_bytes())
        return {"agents": [], "pid": None}

    def running(self, manager: subprocess.Popen[bytes]) -> dict[str, int]:
        """The ports of those agents of this manager that run, each with its bridge if it has one."""
        status = self.status()
        return {
            each["id"]: each["port"]
            for each in status["agents"]
            if status["pid"] == manager.pid
            and each["state"] == "running"
            and (each["bridge"] is None or each["bridge"]["pid"] is not None)
        }

    def output(self) -> str:
        return (self.home / "output").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def runs(site: Site, manager: subprocess.Popen[bytes], *agent_ids: str) -> dict[str, int]:
    wait_until(
        lambda: set(site.running(manager)) == set(agent_ids) or manager.poll() is not None,
        f"{agent_ids} run; {site.status()}",
        60,
    )
    assert manager.poll() is None, site.output()
    return site.running(manager)


def test_nothing_is_left_of_a_manager_that_is_killed_and_its_successor_takes_over(site: Site) -> None:  # V13
    site.business.agents = [sip_entry("a"), entry("b")]
    manager, family = site.start()
    ports = runs(site, manager, "a", "b")
    wait_until((site.home / "daemon").exists, "the bridge's daemon runs")
    # Two launchers and a third for the bridge, two agents, a bridge and its daemon.
    wait_until(lambda: len(family()) == 7, "everything runs")
    (site.home / "fakes" / "b.mood").write_text("deaf")
    successor, _ = site.start()
    wait_until(lambda: "directory_in_use" in site.output(), "the successor waits")
    before = family()
    manager.kill()
    manager.wait()
    assert runs(site, successor, "a", "b") == ports
    assert all(map(gone, before))
    successor.terminate()
    assert successor.wait(timeout=30) == 0


def test_signals_refresh_and_stop(site: Site) -> None:  # V13
    site.business.agents = [entry("a")]
    manager, family = site.start()
    runs(site, manager, "a")
    site.business.agents = [entry("a"), sip_entry("b")]
    manager.send_signal(signal.SIGHUP)
    runs(site, manager, "a", "b")
    left = family()
    manager.terminate()
    assert manager.wait(timeout=30) == 0
    assert all(map(gone, left))
    assert site.status()["agents"] == []
    assert "s3cret-of-sip" not in site.output()
    assert TOKEN not in site.output()
    for line in filter(lambda line: line.startswith("{"), site.output().splitlines()):
        assert orjson.loads(line)["event"]


def healthz(port: int) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as reply:
        return orjson.loads(reply.read())


def test_without_a_command_the_agents_are_those_of_voice_serve(site: Site) -> None:  # V13
    site.business.agents = [entry("a")]
    manager, _ = site.start("--drain-s", "30", agent=())
    port = runs(site, manager, "a")["a"]
    before = healthz(port)
    assert before["draining"] is False
    agent = site.status()["agents"][0]["pid"]
    assert {"voice", "serve"} < set(psutil.Process(agent).cmdline())
    site.business.agents = [entry("a", name="Chez un autre")]
    manager.send_signal(signal.SIGHUP)
    wait_until(lambda: healthz(port)["config"] != before["config"], "the agent has the changed config", 30)
    assert runs(site, manager, "a") == {"a": port}
    assert site.status()["agents"][0]["pid"] == agent
    manager.terminate()
    assert manager.wait(timeout=30) == 0
    assert "process_crashed" not in site.output()


def test_a_second_manager_of_a_directory_gives_up(site: Site) -> None:  # V13
    site.business.agents = [entry("a")]
    manager, _ = site.start()
    runs(site, manager, "a")
    second, _ = site.start(stop_s="0.1")
    assert second.wait(timeout=60) == 2
    assert f"the manager with process id {manager.pid}" in site.output()
    assert list(site.running(manager)) == ["a"]
    manager.send_signal(signal.SIGINT)
    assert manager.wait(timeout=30) == 0


def test_no_launcher_is_ended_by_the_terminal_s_ctrl_c(site: Site) -> None:  # V13
    """It goes to the manager's process group, in which none of its processes is."""
    site.business.agents = [entry("a")]
    manager, family = site.start()
    runs(site, manager, "a")
    groups = {os.getpgid(pid) for pid in family()}
    assert os.getpgid(manager.pid) not in groups
    assert psutil.Process(manager.pid).terminal() == psutil.Process().terminal()
    manager.terminate()
    assert manager.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--api", "business.example"], "--api is http:// or https://"),
        (["--api", "https://"], "--api is"),
        (["--api", "https://user:pass@business.example"], "--api is"),
        (["--api", "https://business.example?x=1"], "--api is"),
        (["--api", "https://business.example:port"], "--api is"),
        (["--agent-command", "'"], "--agent-command cannot be read"),
        (["--agent-command", " "], "--agent-command is empty"),
        (["--templates", "nowhere"], "nowhere"),
        (["--first-port", "0"], "first-port"),
    ],
)
def test_options_that_cannot_be_used_are_told(tmp_path: Path, options: list[str], reason: str) -> None:  # V13
    usual = ["--api", "https://business.example", "--templates", str(tmp_path)]
    result = CliRunner().invoke(app, ["voice", "manage", *usual, *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert reason in result.output.replace("\n", " ")


def test_a_damaged_state_is_a_reason_not_to_start(site: Site) -> None:  # V13
    (site.home / "state").mkdir()
    (site.home / "state" / "state.json").write_text("{")
    manager, _ = site.start()
    assert manager.wait(timeout=60) == 2
    assert "is damaged" in site.output()
