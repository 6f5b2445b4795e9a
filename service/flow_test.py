"""`flow-engine flow test`: plays scenarios on flow versions, in this process and without a model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from service.settings import Settings

UNREADABLE = 2

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
        typer.echo(f"wrong settings: {names}", err=True)
        raise typer.Exit(UNREADABLE) from None
    # Only this command needs charts and stores; loading them would make every other one start slowly.
    scenarios = import_module("service.scenario_output")
    options = scenarios.options(flow, name_part, min_tasks, min_transitions, limits)
    raise typer.Exit(scenarios.play_and_tell(files, options, json=json, junit=junit))
