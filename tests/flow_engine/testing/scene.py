"""Scenarios written in a test, played as the command plays them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

from flow_engine.testing.report import RunReport, ScenarioReport
from flow_engine.testing.yaml_text import Mistake
from service.scenarios import RunOptions, run_files

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "flows" / "samples"
ORDER, CLAIM, BOOKING = (
    SAMPLES / name for name in ("order.en.json", "claim.es.json", "health-booking.it.json")
)
FILE_NAME = "story.yaml"


def run_text(directory: Path, text: str, *, flow: Path = ORDER) -> RunReport:
    """A whole file, without its `flow`."""
    file = directory / FILE_NAME
    file.write_text(dedent(text), encoding="utf-8")
    return run_files([file], RunOptions(flow=flow))


def play_steps(
    directory: Path, steps: str, *, flow: Path = ORDER, head: str = "channel: phone"
) -> ScenarioReport:
    """One scenario of these steps; the first is in line 5."""
    text = f"scenarios:\n  - name: a story\n    {head}\n    steps:\n" + indent(dedent(steps).strip(), " " * 6)
    [file] = run_text(directory, text, flow=flow).files
    assert not file.mistakes, file.mistakes
    return file.scenarios[0]


def complaints(directory: Path, steps: str, *, flow: Path = ORDER, head: str = "channel: phone") -> list[str]:
    """What is said about the step that fails, after its line and kind; nothing when all pass."""
    report = play_steps(directory, steps, flow=flow, head=head)
    failure = report.played.failure
    return [] if failure is None else [f"{report.failed_at} {failure.kind}", *failure.messages]


def mistakes(directory: Path, text: str, *, flow: Path = ORDER) -> list[Mistake]:
    [file] = run_text(directory, text, flow=flow).files
    assert not file.scenarios
    return list(file.mistakes)
