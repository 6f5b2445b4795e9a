"""`flow-engine flow test | replay | simulate`: conversations played on version documents, without a service.

`replay --from` reads the stores that the settings name; `simulate` asks a model, unless runs were recorded.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import orjson
import typer
from rich.console import Console
from rich.text import Text

from flow_engine.ports.models import ModelFailed
from service import late
from service.cli.output import AS_JSON, FOUND_WRONG, UNREADABLE, console, unreadable, write
from service.settings import Settings, read_settings

JUNIT = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML to this file.")
]

_MARKS = {"✓": "green", "✗": "bold red"}


def play(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files of scenarios.")],
    flow: Annotated[
        Path | None,
        typer.Option(metavar="VERSION.json", help="Play on this version document instead of the files' own."),
    ] = None,
    name_part: Annotated[
        str, typer.Option("-k", metavar="TEXT", help="Only scenarios with TEXT in their names.")
    ] = "",
    min_tasks: Annotated[
        float, typer.Option("--min-task-coverage", min=0, max=100, help="Percent of tasks to be entered.")
    ] = 0.0,
    min_transitions: Annotated[
        float,
        typer.Option("--min-transition-coverage", min=0, max=100, help="Percent of transitions to be taken."),
    ] = 0.0,
    as_json: AS_JSON = False,
    junit: JUNIT = None,
) -> None:
    """Play scenarios: exit code 0 all passed, 1 failures or too little coverage, 2 unreadable."""
    limits = read_settings(Settings).document_limits
    scenarios, results = late.scenarios, late.scenario_results
    minimum = results.Minimum(min_tasks, min_transitions)
    report = scenarios.run_files(files, scenarios.RunOptions(flow, name_part, minimum, limits))
    if as_json:
        typer.echo(results.as_json(report))
    else:
        _print_marked(results.lines(report), console())
        _print_marked(results.mistake_lines(report), console(stderr=True))
    if junit is not None:
        write(junit, results.as_junit(report))
    if not report.scenarios and not report.unreadable:
        raise unreadable(f"no scenario has {name_part!r} in its name")
    if report.unreadable:
        raise typer.Exit(UNREADABLE)
    if report.failed or report.shortfalls:
        raise typer.Exit(FOUND_WRONG)


def replay(
    version: Annotated[Path, typer.Argument(metavar="VERSION", help="A version document, a draft too.")],
    *,
    conversations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recordings, one JSON object a line.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--from", metavar="TAG", help="Stored conversations begun by this tag.")
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=20_000, help="How many of them, the newest.")] = 100,
    tenant: Annotated[str, typer.Option(help="Whose stored conversations.")] = "default",
    as_json: AS_JSON = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print an HTML page instead of lines.")] = False,
    fail_over: Annotated[
        float | None, typer.Option(metavar="PERCENT", min=0, max=100, help="Most that may take another path.")
    ] = None,
    as_test: Annotated[
        str | None, typer.Option(metavar="CONVERSATION_ID", help="Print a flow test of this conversation.")
    ] = None,
) -> None:
    """Replay recorded conversations: exit code 0 done, 1 more than PERCENT on another path, 2 unreadable."""
    if conversations is not None and tag is not None:
        raise typer.BadParameter("give either --conversations or --from")
    if conversations is None and tag is None and as_test is None:
        raise typer.BadParameter("give --conversations FILE, or --from TAG")
    if as_json and as_html:
        raise typer.BadParameter("give either --json or --html")
    settings, replaying = read_settings(Settings), late.replaying
    source = replaying.Source(settings, conversations, tag, last, tenant)
    try:
        target = replaying.candidate(version, settings)
        if as_test is not None:
            recording = replaying.recording_of(source, as_test)
            typer.echo(late.recorded_tests.test_of(recording, target.flow, replaying.platform()), nl=False)
            return
        done = replaying.replay_on(target, source)
    except replaying.Unreadable as wrong:
        raise unreadable(*wrong.lines) from None
    report, reports = done.report(), late.replay_reports
    if as_json:
        typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    elif as_html:
        changes = done.prompt_changes.values()
        typer.echo(reports.replay_page(report, changes, target.flow.version_id), nl=False)
    else:
        typer.echo("\n".join(reports.replay_lines(report)))
    if fail_over is not None and reports.percent(report["summary"]) > fail_over:
        raise typer.Exit(FOUND_WRONG)


def simulate(
    version: Annotated[Path, typer.Argument(metavar="VERSION", help="A version document, or a sample file.")],
    *,
    persona: Annotated[Path, typer.Option(metavar="FILE", help="YAML of who talks to the flow.")],
    runs: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Conversations; left out: as many as recorded, or 1.")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play these runs; no model is asked.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the runs here, for --recorded.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Who plays persona and agent; left out: FLOW_ENGINE_LLM_MODEL.")
    ] = None,
    channel: Annotated[
        Literal["text", "voice"],
        typer.Option(help="In text, or by the voice agent on a line that needs no phone."),
    ] = "text",
    as_json: AS_JSON = False,
    junit: JUNIT = None,
) -> None:
    """Let a persona talk to a version: exit code 0 all runs passed, 1 not, 2 unreadable or no model."""
    by_voice = channel == "voice"
    order = late.simulating.Order(version, persona, runs, recorded, record, model, by_voice)
    try:
        done = late.simulating.simulate(order, read_settings(Settings))
    except OSError as error:
        raise unreadable(f"{error.filename}: {error.strerror}") from None
    except late.replaying.Unreadable as wrong:
        raise unreadable(*wrong.lines) from None
    except ModelFailed as failed:
        raise unreadable(f"the model failed: {failed}") from None
    found, results = (done.persona, done.verdicts), late.simulation_results
    if as_json:
        typer.echo(orjson.dumps(results.as_json(*found), option=orjson.OPT_INDENT_2))
    else:
        _print_marked(results.lines(*found), console())
    if junit is not None:
        write(junit, results.as_junit(*found))
    if done.failed is not None:
        raise unreadable(f"the model failed: {done.failed}")
    if not all(verdict.passed for verdict in done.verdicts):
        raise typer.Exit(FOUND_WRONG)


def _print_marked(every: Iterable[str], to: Console) -> None:
    """A line's mark has a colour where it has one."""
    for line in every:
        at = len(line) - len(line.lstrip())
        to.print(
            Text.assemble(line[:at], (line[at : at + 1], _MARKS.get(line[at : at + 1], "")), line[at + 1 :])
        )
