"""The README's walkthrough, run as it is written against a service started with its own command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve", "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "FLOW_ENGINE_DATA_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(base, process)
        yield base
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0, "SIGINT ends the service cleanly"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_until_ready(base: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/health/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the service did not become ready")


def test_the_walkthrough_answers_what_the_readme_shows(service: str) -> None:  # F28-F34, F42
    blocks = BLOCK.findall(README)
    reply: Any = None
    ran = compared = 0
    for kind, text in blocks:
        if kind == "sh" and text.startswith("curl "):
            command = text.replace("http://127.0.0.1:8080", service)
            done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=30)
            reply = json.loads(done.stdout)
            ran += 1
        elif kind == "json":
            assert_shows(json.loads(text), reply, "")
            compared += 1
    assert ran >= 13
    assert compared >= 12


def assert_shows(shown: Any, actual: Any, where: str) -> None:
    """Everything shown is there; a text may leave out what `…` stands for."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert key in actual, f"{where}/{key} is not in the reply: {actual}"
            assert_shows(value, actual[key], f"{where}/{key}")
    elif isinstance(shown, str) and "…" in shown:
        pattern = ".*".join(map(re.escape, shown.split("…")))
        assert re.fullmatch(pattern, actual, re.DOTALL), f"{where}: {actual!r} does not show {shown!r}"
    else:
        assert shown == actual, where


def test_the_comparison_notices_a_difference() -> None:
    with pytest.raises(AssertionError):
        assert_shows({"a": {"b": "x…"}}, {"a": {"b": "yx"}}, "")


def test_commands_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
