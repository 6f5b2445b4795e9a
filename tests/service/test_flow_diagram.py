"""`flow-engine flow diagram`, through the program itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.flow_engine.diagrams.drawn import SAMPLES, sample
from tests.flow_engine.documents.samples import minimal_version


def draw(*arguments: str, text: bytes = b"", path: str | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "service.cli", "flow", "diagram", *arguments],
        input=text,
        capture_output=True,
        timeout=60,
        check=False,
        env=None if path is None else {"PATH": path},
    )


CLAIM = str(SAMPLES / "claim.es.json")


def test_a_sample_is_drawn_as_mermaid() -> None:  # F27
    done = draw(CLAIM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"stateDiagram-v2\n")
    assert "documentación · AIO".encode() in done.stdout


def test_the_other_formats_go_to_a_file(tmp_path: Path) -> None:  # F27
    assert draw(CLAIM, "--format", "xstate", "-o", str(tmp_path / "a.json")).returncode == 0
    assert json.loads((tmp_path / "a.json").read_bytes())["initial"] == "active"
    assert draw(CLAIM, "--format", "dot", "-o", str(tmp_path / "a.dot")).returncode == 0
    assert (tmp_path / "a.dot").read_text().startswith("digraph flow {")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not on this machine")
def test_an_image_is_drawn_where_graphviz_is(tmp_path: Path) -> None:  # F27
    assert draw(CLAIM, "--format", "svg", "-o", str(tmp_path / "a.svg")).returncode == 0
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_a_document_as_it_is_posted_is_read_from_standard_input() -> None:
    set_by_server = {"_id", "conversationalFlowId", "createdAt", "createdBy"}
    posted = {key: value for key, value in sample("order.en.json").items() if key not in set_by_server}
    assert draw("-", text=json.dumps(posted).encode()).returncode == 0


def test_what_is_no_json_cannot_be_read_and_is_told_once() -> None:  # F27
    done = draw("-", text=b"{")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"not JSON") == 1


def test_a_place_leads_into_the_file_as_it_was_read() -> None:  # F9
    broken = {"flow": {"_id": "f"}, "version": minimal_version(firstTask="nowhere", tasks=5)}
    done = draw("-", text=json.dumps(broken).encode())
    assert done.returncode == 1
    assert b"-:/version/tasks: " in done.stderr


def test_what_the_document_breaks_is_told_with_its_place() -> None:  # F9
    done = draw("-", text=json.dumps(minimal_version(firstTask="nowhere")).encode())
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"-:/firstTask: unknown_task" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"), [(["missing.json"], b"No such file"), ([CLAIM, "-o", "/"], b"/: ")]
)
def test_files_that_cannot_be_used_are_told(arguments: list[str], said: bytes) -> None:
    done = draw(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_graphviz_the_program_is_named(tmp_path: Path) -> None:
    done = draw(CLAIM, "--format", "svg", path=str(tmp_path))
    assert done.returncode == 1
    assert b"'dot' is not installed" in done.stderr
