"""`flow-engine workspace`: an assistant that works in one directory, and asks before it changes anything."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from service import late

SESSION = re.compile(r"[0-9a-f]{12}")


class _Commands(TyperGroup):
    """Without a command: chat."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        chatting = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["chat", *args] if chatting else args)


class _Resuming(TyperCommand):
    """`--resume` may stand without a session: before another option, at the end, and before the task."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--resume") + 1 if "--resume" in args else 0
        newest = [*args[:at], "", *args[at:]]
        if at and (at == len(args) or args[at].startswith("-")):
            args = newest
        elif at and SESSION.fullmatch(args[at]) is None:
            # `run --resume "task"` has no task if that is a session.
            try:
                return super().parse_args(ctx, list(args))
            except typer.TyperException:
                ctx.params.clear()
                args = newest
        return super().parse_args(ctx, args)


commands = typer.Typer(
    cls=_Commands, help="An assistant that works in one directory, and asks before it changes anything."
)
rules = typer.Typer(no_args_is_help=True, help="The operator's rules about tools.")
commands.add_typer(rules, name="rules")

DIRECTORY = Annotated[Path, typer.Option("--dir", help="Where the search for the workspace begins.")]
MODEL = Annotated[str | None, typer.Option(help="The model, as the gateway knows it.")]
GATEWAY = Annotated[str | None, typer.Option(help="An OpenAI-compatible base; else FLOW_ENGINE_GATEWAY_URL.")]
CONFIG = Annotated[Path | None, typer.Option(help="The file of the gateway in this process.")]
RESUME = Annotated[
    str | None,
    typer.Option(metavar="[ID]", help="Go on with a session; without an id with the newest."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


@commands.command("chat", cls=_Resuming)
def chat(
    directory: DIRECTORY = Path(),
    model: MODEL = None,
    gateway: GATEWAY = None,
    config: CONFIG = None,
    resume: RESUME = None,
) -> None:
    """Talk to the assistant in the terminal. Ctrl-C stops a run, Ctrl-D ends the program."""
    options = late.workspace.Options(directory, model, gateway, config)
    raise typer.Exit(late.workspace_terminal.chat(options, resume=resume))


@commands.command("run", cls=_Resuming)
def run(  # noqa: PLR0917 - the options of a command
    task: Annotated[str, typer.Argument(help="What is to be done.")],
    directory: DIRECTORY = Path(),
    model: MODEL = None,
    gateway: GATEWAY = None,
    config: CONFIG = None,
    yes_to: Annotated[
        list[str] | None,
        typer.Option(
            help="What is answered with yes: all, write_file, write_file:docs/**, shell_exec:git commit."
        ),
    ] = None,
    resume: RESUME = None,
    max_iterations: Annotated[int, typer.Option(min=1, max=1000, help="How often the model is asked.")] = 10,
    as_json: JSON = False,
) -> None:
    """Do one task with nobody there: what would ask is denied. Ends with 0 only when it is completed."""
    options = late.workspace.Options(directory, model, gateway, config)
    status = late.workspace_run.run_task(
        options,
        task,
        yes_to=yes_to or [],
        as_json=as_json,
        resume=resume,
        max_iterations=max_iterations,
    )
    raise typer.Exit(status)


@commands.command("sessions")
def sessions(
    session: Annotated[str | None, typer.Argument(help="A session to write out.")] = None,
    directory: DIRECTORY = Path(),
    export: Annotated[Literal["markdown", "json"] | None, typer.Option(help="Write it out so.")] = None,
    as_json: JSON = False,
) -> None:
    """List the sessions of the workspace, the newest first, or write one out."""
    options = late.workspace.Options(directory)
    raise typer.Exit(late.workspace.sessions(options, session, export, as_json=as_json))


@commands.command("undo")
def undo(
    name: Annotated[
        str | None, typer.Argument(help="A session, a turn or a step; else the last turn.")
    ] = None,
    directory: DIRECTORY = Path(),
    force: Annotated[bool, typer.Option("--force", help="Also what has changed since.")] = False,
) -> None:
    """Take back what the tools wrote and deleted. Ends with 1 where a file has changed since."""
    raise typer.Exit(late.workspace.undo_changes(late.workspace.Options(directory), name, force=force))


@commands.command("index")
def index(
    directory: DIRECTORY = Path(),
    gateway: GATEWAY = None,
    config: CONFIG = None,
    watch: Annotated[bool, typer.Option("--watch", help="Index every change until Ctrl-C.")] = False,
) -> None:
    """Index the workspace for search_semantic."""
    options = late.workspace.Options(directory, None, gateway, config)
    raise typer.Exit(late.workspace_run.index(options, watch=watch))


@commands.command("demo")
def demo(as_json: JSON = False) -> None:
    """A failing check is mended and the mending undone, offline, on a scripted model."""
    raise typer.Exit(late.workspace_run.demo(as_json=as_json))


@rules.command("explain")
def explain(
    subject: Annotated[str, typer.Argument(help="A command line, or a path for a tool of files.")],
    tool: Annotated[str, typer.Option(help="The tool.")] = "shell_exec",
    as_json: JSON = False,
) -> None:
    """Print what the rules say, and which of them decide."""
    raise typer.Exit(late.workspace.explain(late.workspace.Options(), subject, tool, as_json=as_json))
