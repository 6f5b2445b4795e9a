"""Runs a page of the documentation as its reader would, block by block.

A `sh` block is run; a `json` block after it shows a part of its reply, a `text` block lines that its
output holds. A block under `<!-- file: NAME -->` is what the reader writes into that file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = re.compile(r"\b[0-9]+\.[0-9] s\b")
ADDRESS = "http://127.0.0.1:8080"


def follow(page: str, base: str, directory: Path) -> tuple[int, int]:
    """Returns how many blocks were run, and how many were compared."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    output, ran, compared = "", 0, 0
    for file, kind, text in BLOCK.findall(page):
        if file:
            (directory / file).write_text(text, encoding="utf-8")
        elif kind == "sh" and not text.startswith(("make ", "docker ")):
            done = subprocess.run(
                ["bash", "-c", text.replace(ADDRESS, base)],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            output, ran = done.stdout + done.stderr, ran + 1
        elif kind == "json" and output:
            assert_shows(json.loads(text), json.loads(output), "")
            compared += 1
        elif kind == "text":
            looks_like(text, output)
            compared += 1
    return ran, compared


def looks_like(text: str, output: str) -> None:
    """Every line shown is in the output; how many seconds something took may differ, and a line may leave out
    what `…` stands for."""
    there = SECONDS.sub("# s", output)
    for line in SECONDS.sub("# s", text).splitlines():
        pattern = "[^\n]*".join(map(re.escape, line.strip().split("…")))
        assert re.search(pattern, there), f"{line!r} is not in the output:\n{output}"


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
