"""The README's walkthrough, run as it is written against a service started with its own command."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service_process import ROOT, running_service

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    with running_service(tmp_path) as base:
        yield base


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
