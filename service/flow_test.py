"""`flow-engine flow test`: plays scenarios on flow versions, in this process and without a model."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from flow_testing.report import (
    FAILED,
    PASSED,
    Minimum,
    RunReport,
    as_json,
    as_junit,
    lines,
    mistake_lines,
)
from service.settings import Settings

ALL_PASSED, SOME_FAILED, UNREADABLE = 0, 1, 2

_COLOURS = {PASSED: "green", FAILED: "bold red"}

FILES = Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files of scenarios.")]
FLOW = Annotated[
    Path | None,
    typer.Option(metavar="VERSION.json", help="Play on this version document instead of the files' own."),
]
NAME_PART = Annotated[
    str, typer.Option("-k", metavar="TEXT", help="Only scenarios with TEXT in their names.")
]
TASKS = Annotated[
    float, typer.Option("--min-task-coverage", min=0, max=100, help="Percent of tasks to be entered.")
]
TRANSITIONS = Annotated[
    float,
    typer.Option("--min-transition-coverage", min=0, max=100, help="Percent of transitions to be taken."),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
JUNIT = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML to this file.")
]


def play(
    files: FILES,
    flow: FLOW = None,
    name_part: NAME_PART = "",
    min_tasks: TASKS = 0.0,
    min_transitions: TRANSITIONS = 0.0,
    json: AS_JSON = False,
    junit: JUNIT = None,
) -> None:
    """Play scenarios: exit code 0 all passed, 1 failures or too little coverage, 2 unreadable."""
    try:
        limits = Settings().document_limits
    except ValidationError as error:
        names = ", ".join(f"FLOW_ENGINE_{'_'.join(map(str, e['loc'])).upper()}" for e in error.errors())
        raise _unreadable(f"wrong settings: {names}") from None
    # Only this command needs stores; loading them would make every other one start slowly.
    runs = import_module("service.scenario_runs")
    options = runs.RunOptions(flow, name_part, Minimum(min_tasks, min_transitions), limits)
    report: RunReport = runs.run_files(files, options)
    if json:
        typer.echo(as_json(report))
    else:
        _print(lines(report), Console(highlight=False, soft_wrap=True))
        _print(mistake_lines(report), Console(stderr=True, highlight=False, soft_wrap=True))
    if junit is not None:
        try:
            junit.write_bytes(as_junit(report))
        except OSError as error:
            raise _unreadable(f"{junit}: {error.strerror}") from None
    if not report.scenarios and not report.unreadable:
        raise _unreadable(f"no scenario has {name_part!r} in its name")
    raise typer.Exit(_exit_code(report))


def _exit_code(report: RunReport) -> int:
    if report.unreadable:
        return UNREADABLE
    return SOME_FAILED if report.failed or report.shortfalls else ALL_PASSED


def _print(every: Iterable[str], console: Console) -> None:
    for line in every:
        mark, rest = line[: len(line) - len(line.lstrip()) + 1], line.lstrip()[1:]
        console.print(Text.assemble((mark, _COLOURS.get(mark.strip(), "")), rest))


def _unreadable(reason: str) -> typer.Exit:
    typer.echo(reason, err=True)
    return typer.Exit(UNREADABLE)
