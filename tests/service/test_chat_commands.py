"""`flow-engine chat`: the demonstration, the terminal client, and a server as its users run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from service.cli import app

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "service.cli", "chat")


def test_the_demonstration_plays_offline() -> None:  # C6
    played = subprocess.run(
        [*COMMAND, "demo", "--json"], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    frames = [orjson.loads(line) for line in played.stdout.splitlines()]
    finals = [(frame.get("agent"), frame["state"]) for frame in frames if frame["final"]]
    assert finals == [
        ("smalltalk_agent", "done"),
        ("pizza_agent", "clarifying"),
        ("pizza_agent", "done"),
        ("hours_agent", "done"),
        (None, "refused"),
    ]
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))


def test_a_server_is_talked_to_and_ends_in_order(tmp_path: Path) -> None:  # C12
    env = {**os.environ, "FLOW_ENGINE_DATA_DIR": str(tmp_path), "FLOW_ENGINE_LLM_MODEL": ""}
    server = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0"],
        cwd=ROOT,
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert server.stderr is not None
        line = server.stderr.readline().decode()
        url = re.findall(r"http://[0-9.:]+", line)[0]
        with urllib.request.urlopen(f"{url}/health/ready", timeout=10) as answer:
            assert orjson.loads(answer.read())["status"] == "ok"
        going_on: list[str] = []
        for _ in range(2):  # then in the same session
            talked = subprocess.run(
                [*COMMAND, "talk", "--url", url, *going_on],
                cwd=ROOT,
                input=b"Xylophon\n\n",
                capture_output=True,
                timeout=60,
                check=True,
            )
            assert b"I have nobody here" in talked.stdout
            going_on = ["--session", re.findall(r"Session (s-\w+)", talked.stderr.decode())[0]]
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        if server.stderr is not None:
            server.stderr.close()


def test_a_chat_that_is_not_there_is_said_so() -> None:  # C12
    talked = subprocess.run(
        [*COMMAND, "talk", "--url", "http://127.0.0.1:9"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (talked.returncode, talked.stdout) == (2, b"")
    assert b"no chat at http://127.0.0.1:9" in talked.stderr


@pytest.mark.parametrize(
    "url", ["chat.example:8090", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://a..b"]
)
def test_what_is_no_address_of_a_chat_is_refused_by_its_name(url: str) -> None:  # C12
    done = CliRunner().invoke(app, ["chat", "talk", "--url", url])
    assert (done.exit_code, done.stdout) == (2, "")
    assert url in done.stderr
