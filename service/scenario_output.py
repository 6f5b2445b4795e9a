"""What `flow-engine flow test` prints and writes, and how it exits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from flow_engine.documents import DocumentLimits
from flow_engine.testing.report import (
    FAILED,
    PASSED,
    Minimum,
    RunReport,
    as_json,
    as_junit,
    lines,
    mistake_lines,
)
from service.scenario_runs import RunOptions, run_files

ALL_PASSED, SOME_FAILED, UNREADABLE = 0, 1, 2

_COLOURS = {PASSED: "green", FAILED: "bold red"}


def options(
    flow: Path | None, name_part: str, min_tasks: float, min_transitions: float, limits: DocumentLimits
) -> RunOptions:
    return RunOptions(flow, name_part, Minimum(min_tasks, min_transitions), limits)


def play_and_tell(files: Sequence[Path], chosen: RunOptions, *, json: bool, junit: Path | None) -> int:
    """The exit code. Results go to standard output, what could not be used to standard error."""
    report = run_files(files, chosen)
    if json:
        typer.echo(as_json(report))
    else:
        _print(lines(report), Console(highlight=False, soft_wrap=True))
        _print(mistake_lines(report), Console(stderr=True, highlight=False, soft_wrap=True))
    if junit is not None:
        try:
            junit.write_bytes(as_junit(report))
        except OSError as error:
            typer.echo(f"{junit}: {error.strerror}", err=True)
            return UNREADABLE
    if not report.scenarios and not report.unreadable:
        typer.echo(f"no scenario has {chosen.name_part!r} in its name", err=True)
        return UNREADABLE
    return _exit_code(report)


def _exit_code(report: RunReport) -> int:
    if report.unreadable:
        return UNREADABLE
    return SOME_FAILED if report.failed or report.shortfalls else ALL_PASSED


def _print(every: Iterable[str], console: Console) -> None:
    """A line's mark has a colour where it has one."""
    for line in every:
        at = len(line) - len(line.lstrip())
        console.print(
            Text.assemble(line[:at], (line[at : at + 1], _COLOURS.get(line[at : at + 1], "")), line[at + 1 :])
        )
