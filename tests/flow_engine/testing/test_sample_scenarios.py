"""The samples come with scenarios that walk through all of them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import pytest

from flow_engine.testing.report import Minimum, lines
from service.scenarios import RunOptions, run_files
from tests.flow_engine.testing.scene import SAMPLES

FILES = sorted((SAMPLES / "tests").glob("*.yaml"))
FULL = RunOptions(minimum=Minimum(tasks=100, transitions=90))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_scenarios_of_a_sample_pass_and_walk_through_all_of_it(file: Path) -> None:  # F10 F11 F42
    report = run_files([file], FULL)
    assert not report.unreadable, report.files
    assert not report.failed, "\n".join(lines(report))
    assert not report.shortfalls


def test_the_example_of_approval_is_played_through() -> None:  # F42
    report = run_files([SAMPLES.parents[1] / "examples" / "refunds" / "tests.yaml"], FULL)
    assert not report.unreadable, report.files
    assert not report.failed, "\n".join(lines(report))
    assert not report.shortfalls


def test_every_sample_has_scenarios() -> None:  # F42
    report = run_files(FILES, FULL)
    played_on = {Path(flow.flow).name for flow in report.flows}
    assert played_on == {path.name for path in SAMPLES.glob("*.json")}


def test_a_scenario_takes_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Told, and asserted as a ratio only: none is of another order than the others."""
    report = run_files(FILES, FULL)
    seconds = [scenario.played.seconds for scenario in report.scenarios]
    with capsys.disabled():
        each, most = 1000 * mean(seconds), 1000 * max(seconds)
        print(f"\n{len(seconds)} scenarios, {each:.1f} ms each, {most:.1f} ms at most")
    assert mean(seconds) < 10 * median(seconds)
