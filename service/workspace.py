"""The assistant's commands: a workspace opened, a gateway found or started, and people at a terminal."""

import asyncio
import os
import readline
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.syntax import Syntax
from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - it names anyio loosely

from adapters.http_door import listen
from adapters.models.factory import ConnectedModel
from adapters.models.fake_openai import FakeOpenAI
from adapters.models.scripted import CallsTools, Says
from api.auth import LocalOnly
from channels.gateway.config import GatewayFile, GatewaySettings
from channels.workspace.assistant import (
    Frame,
    MaxIterationsExceeded,
    TurnFailed,
    Workspace,
    WorkspaceSettings,
    run_turn,
)
from channels.workspace.index import GatewayEmbedder
from channels.workspace.rules import TOOLS, Rules, answers_to, read_rules, said_yes
from channels.workspace.store import Session, detect, remember_workspace
from channels.workspace.toolbox import Choice, Question
from channels.workspace.undo import undo
from flow_engine.errors import CallTheOperator, ReloadAndDecide
from flow_engine.ports.models import Message, ToolCall
from service.assistant import Base, assistant_model
from service.gateway import KeyDoor, gateway_file, gateway_server, gateway_service
from service.logs import configure_logging
from service.settings import Settings, read_settings


@dataclass(frozen=True, slots=True)
class Options:
    """What every command takes. `directory` is where the search for the workspace begins."""

    directory: Path = Path()
    model: str | None = None
    gateway: str | None = None
    config: Path | None = None
    rules: Rules | None = None


def base_url(text: str) -> str:
    """With `/v1` at its end, whether it was there or not."""
    return text.rstrip("/").removesuffix("/v1") + "/v1"


@asynccontextmanager
async def gateway_base(options: Options, file: GatewayFile | None = None) -> AsyncGenerator[Base]:
    """The gateway that is named, else one in this process on a free port of loopback. Raises CallTheOperator
    where neither can be had."""
    own = read_settings(WorkspaceSettings)
    url = options.gateway or own.gateway_url
    if url is not None and file is None:
        yield Base(base_url(url), own.gateway_key)
        return
    gateway = read_settings(GatewaySettings)
    file = file or gateway_file(options.config, gateway)
    async with gateway_service(read_settings(Settings), gateway, file, KeyDoor(LocalOnly())) as service:
        listening = listen("127.0.0.1", 0)
        server = gateway_server(service.app, signals=False)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield Base(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", None, file.assistant.model)
        finally:
            server.should_exit = True
            await serving


def open_workspace(options: Options, base: Base | None = None) -> Workspace:
    """Raises CallTheOperator: no such directory, rules that cannot be read, a database that cannot be
    used."""
    settings = read_settings(WorkspaceSettings)
    rules = options.rules or operator_rules()
    path, by = detect(options.directory, Path.home())
    embedder = None
    if base is not None and settings.workspace_embedding_model:
        embedder = GatewayEmbedder(base.url, base.key, settings.workspace_embedding_model)
    workspace = Workspace(path, settings, rules, embedder)
    with suppress(OSError):  # a home that cannot be written costs nobody his work
        remember_workspace(path, by, Path.home())
    return workspace


def operator_rules() -> Rules:
    return read_rules(read_settings(WorkspaceSettings).workspace_rules.expanduser())


def _model_name(options: Options, base: Base) -> str:
    name = options.model or read_settings(WorkspaceSettings).workspace_model or base.model
    if name is None:
        raise CallTheOperator("model_missing", "name a model by --model or FLOW_ENGINE_WORKSPACE_MODEL")
    return name


class _Nobody:
    """Answers what would be asked by `--yes-to` alone."""

    def __init__(self, answers: Rules) -> None:
        self._answers = answers

    async def decide(self, question: Question) -> Choice:
        yes = said_yes(self._answers, question.name, path=question.path, command=question.command)
        return "once" if yes else "no"


# flow-engine workspace run ------------------------------------------------------------------------------


def run_task(
    options: Options,
    task: str,
    *,
    yes_to: Sequence[str],
    as_json: bool,
    resume: str | None,
    max_iterations: int,
) -> int:
    """The exit status: 0 only when the task was completed. `resume` is a session, empty for the newest."""
    configure_logging("critical")
    return asyncio.run(_ran(options, task, _Nobody(answers_to(yes_to)), as_json, resume, max_iterations))


async def _ran(
    options: Options, task: str, person: _Nobody, as_json: bool, resume: str | None, max_iterations: int
) -> int:
    async with gateway_base(options) as base:
        name = _model_name(options, base)
        workspace = open_workspace(options, base)
        model = assistant_model(base, name)
        try:
            session = _session(workspace, resume, base.url, name)
            return await _one_task(workspace, model, session, task, person, as_json, max_iterations)
        finally:
            await model.aclose()
            workspace.close()


async def _one_task(
    workspace: Workspace,
    model: ConnectedModel,
    session: str,
    task: str,
    person: _Nobody,
    as_json: bool,
    max_iterations: int,
) -> int:
    async def show(frame: Frame) -> None:
        _print_frame(frame, as_json)

    result: dict[str, Any] = {"session": session}
    try:
        done = await run_turn(
            workspace, model, None, session, task, person, show, max_iterations=max_iterations
        )
        result |= {
            "status": "completed",
            "content": done.content,
            "turn": done.turn,
            "iterations": done.iterations,
        }
    except (MaxIterationsExceeded, TurnFailed) as error:
        code = error.code if isinstance(error, TurnFailed) else "max_iterations_exceeded"
        status = "error" if isinstance(error, TurnFailed) else "max_iterations"
        _print_frame({"error": {"code": code, "message": str(error)}}, as_json)
        result |= {
            "status": status,
            "content": str(error),
            "turn": error.turn,
            "iterations": error.iterations,
        }
    if as_json:
        typer.echo(orjson.dumps({"result": result}))
    else:
        typer.echo(f"\n[{result['status']}] session {session}, turn {result['turn']}", err=True)
    return 0 if result["status"] == "completed" else 1


def _print_frame(frame: Frame, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(dict(frame)))
    elif "content" in frame:
        typer.echo(frame["content"], nl=False)
    elif "tool" in frame and frame["tool"]["status"] != "running":
        typer.echo(f"\n· {_tool_line(frame['tool'])}", err=True)
    elif "error" in frame:
        typer.echo(f"\n{frame['error']['message']}", err=True)


def _tool_line(tool: Any) -> str:
    arguments = tool["arguments"]
    subject = arguments.get("command", arguments.get("path", arguments.get("query", "")))
    return f"{tool['name']} {subject}: {tool['status']}"


def _session(workspace: Workspace, resume: str | None, backend: str, model: str) -> str:
    if resume is None:
        return workspace.store.begin(backend, model)
    return workspace.store.session(resume or None).id


# flow-engine workspace chat -----------------------------------------------------------------------------


def chat(options: Options, *, resume: str | None) -> int:
    """Lines from the terminal until its end. Ctrl-C stops a run, and not the program."""
    configure_logging("critical")
    with asyncio.Runner() as runner:
        console = Console()
        stack = gateway_base(options)
        base = runner.run(_entered(stack))
        name = _model_name(options, base)
        workspace = open_workspace(options, base)
        model = assistant_model(base, name)
        try:
            session = _session(workspace, resume, base.url, name)
            for line in workspace.store.history():
                readline.add_history(line)
            console.print(
                f"[dim]{workspace.root.path} · {name} · session {session}. Ctrl-D ends it; a line that "
                "ends in \\ goes on.[/dim]"
            )
            for prompt in _prompts(console):
                workspace.store.remember(session, prompt)
                try:
                    runner.run(_chatted(workspace, model, session, prompt, console))
                except KeyboardInterrupt:
                    console.print("[yellow]stopped[/yellow]")
                    workspace.resume(session)
        finally:
            runner.run(model.aclose())
            workspace.close()
            runner.run(_left(stack))
    return 0


async def _entered(stack: Any) -> Base:
    return await stack.__aenter__()


async def _left(stack: Any) -> None:
    await stack.__aexit__(None, None, None)


def _prompts(console: Console) -> Generator[str]:
    """What the user types, line by line or joined; ends with the input."""
    lines: list[str] = []
    while True:
        try:
            line = input("… " if lines else "> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            lines.clear()
            console.print()
            continue
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        text = "\n".join([*lines, line]).strip()
        lines.clear()
        if text in ("/quit", "/exit"):
            return
        if text:
            yield text


class _Terminal:
    """Asks whoever sits there, the change in colours first."""

    def __init__(self, console: Console, pause: Callable[[], None]) -> None:
        self._console = console
        self._pause = pause

    async def decide(self, question: Question) -> Choice:
        self._pause()
        self._console.print(f"[bold]{question.name}[/bold] {question.command or question.path or ''}")
        if question.diff:
            self._console.print(Syntax(question.diff, "diff", background_color="default"))
        once = question.command is not None
        choices = "y once, n no" if once else "y once, s for the session, n no"
        answer = _typed(f"allow? ({choices}) ")
        return (
            "session"
            if answer in ("s", "session") and not once
            else "once"
            if answer in ("y", "yes")
            else "no"
        )


def _typed(question: str) -> str:
    """Nothing else is to be done while a person is asked, so the loop waits too. Ctrl-C, which its own
    handler would keep until the answer, is one: no."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question).strip().lower()
    except (EOFError, KeyboardInterrupt):
        return "no"
    finally:
        signal.signal(signal.SIGINT, before)


async def _chatted(
    workspace: Workspace, model: ConnectedModel, session: str, prompt: str, console: Console
) -> None:
    text = ""
    live: Live | None = None

    def pause() -> None:
        nonlocal live, text
        if live is not None:
            live.stop()
        live, text = None, ""

    async def show(frame: Frame) -> None:
        nonlocal live, text
        if "content" in frame:
            text += frame["content"]
            if live is None:
                live = Live(console=console, refresh_per_second=8, vertical_overflow="visible")
                live.start()
            live.update(Markdown(text))
        elif "tool" in frame:
            pause()
            tool = frame["tool"]
            colour = {"running": "dim", "done": "green", "failed": "red"}.get(tool["status"], "yellow")
            console.print(f"[{colour}]· {_tool_line(tool)}[/{colour}]", highlight=False)

    try:
        await run_turn(workspace, model, None, session, prompt, _Terminal(console, pause), show)
    except (MaxIterationsExceeded, TurnFailed) as error:
        pause()
        console.print(f"[red]{error}[/red]")
    finally:
        pause()


# The rest -----------------------------------------------------------------------------------------------


def sessions(options: Options, session: str | None, export: str | None, *, as_json: bool) -> int:
    """List the sessions, or write one as Markdown or JSON."""
    workspace = open_workspace(options)
    try:
        if session is not None or export is not None:
            typer.echo(_exported(workspace, workspace.store.session(session), export or "markdown"))
            return 0
        for each in workspace.store.sessions():
            if as_json:
                typer.echo(orjson.dumps(asdict(each)))
            else:
                typer.echo(f"{each.id}  {each.model}  {each.metadata.get('title', '')}")
        return 0
    finally:
        workspace.close()


def _exported(workspace: Workspace, session: Session, form: str) -> str:
    stored = workspace.store.messages(session.id)
    if form == "json":
        messages = [
            {**asdict(each.message), "turn": each.turn, "created_at": each.created_at} for each in stored
        ]
        return orjson.dumps({"session": asdict(session), "messages": messages}).decode()
    parts = [f"# {session.metadata.get('title') or session.id}"]
    for each in stored:
        name = f" ({each.tool_name})" if each.tool_name else ""
        parts.append(f"## {each.message.role}{name}\n\n{_fenced(each.message)}")
    return "\n\n".join(parts)


def _fenced(message: Message) -> str:
    calls = [f"`{call.name}` {orjson.dumps(dict(call.arguments)).decode()}" for call in message.tool_calls]
    content = f"```json\n{message.content}\n```" if message.role == "tool" else message.content
    return "\n\n".join(part for part in (content, *calls) if part)


def undo_changes(options: Options, name: str | None, *, force: bool) -> int:
    """The exit status: 1 where a file has changed since, and nothing was restored."""
    workspace = open_workspace(options)
    try:
        restored = undo(workspace.root, workspace.store, name, force=force)
    except ReloadAndDecide as changed:
        typer.echo(changed.detail, err=True)
        return 1
    finally:
        workspace.close()
    for each in restored:
        typer.echo(each.diff or f"{each.path}: as it was", nl=not each.diff)
    return 0


def index(options: Options, *, watch: bool) -> int:
    """Index the workspace; with `watch` again after every change, until Ctrl-C."""
    configure_logging("critical")
    with suppress(KeyboardInterrupt):
        asyncio.run(_indexed(options, watch))
    return 0


async def _indexed(options: Options, watch: bool) -> None:
    if not read_settings(WorkspaceSettings).workspace_embedding_model:
        await _index(open_workspace(options), watch)
        return
    async with gateway_base(options) as base:
        await _index(open_workspace(options, base), watch)


async def _index(workspace: Workspace, watch: bool) -> None:
    try:
        typer.echo(orjson.dumps(asdict(await workspace.index.update())))
        if watch:
            async for _ in awatch(workspace.root.path, recursive=True):
                done = await workspace.index.update()
                if done.changed or done.removed:
                    typer.echo(orjson.dumps(asdict(done)))
    finally:
        workspace.close()


def explain(options: Options, subject: str, tool: str, *, as_json: bool) -> int:
    """What the rules say about a command, or about a path for a tool of files."""
    if tool not in TOOLS:
        raise CallTheOperator("tool_unknown", f"there is no tool {tool!r}; accepted are {', '.join(TOOLS)}")
    rules = options.rules or operator_rules()
    decision = rules.decide(
        tool,
        path=None if tool == "shell_exec" else subject,
        command=subject if tool == "shell_exec" else None,
    )
    found = [rule.model_dump(exclude_none=True) for rule in decision.rules]
    if as_json:
        typer.echo(orjson.dumps({"decision": decision.verdict, "rules": found}))
        return 0
    typer.echo(decision.verdict)
    for rule in found:
        typer.echo("  " + ", ".join(f"{name} = {value!r}" for name, value in rule.items()))
    if not found:
        typer.echo("  by the default table")
    return 0


def demo(*, as_json: bool) -> int:
    """A failing test is mended and the mending undone: offline, on a scripted model, in a temporary
    folder."""
    configure_logging("critical")
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_demonstrated(Path(folder), as_json))


def _call(number: int, name: str, **arguments: Any) -> CallsTools:
    return CallsTools([ToolCall(f"call_{number}", name, arguments)])


async def _demonstrated(folder: Path, as_json: bool) -> int:
    (folder / "prices.py").write_text("def total(prices):\n    return max(prices)\n", "utf-8")
    check = "from prices import total\n\nassert total([1, 2]) == 3, 'the total is wrong'\nprint('ok')\n"
    (folder / "check.py").write_text(check, "utf-8")
    (folder / ".git").mkdir()
    run = f"{sys.executable} check.py"
    fixed = "def total(prices):\n    return sum(prices)\n"
    script = [
        _call(1, "list_files", path="."),
        _call(2, "shell_exec", command=run),
        _call(3, "read_file", path="prices.py"),
        _call(4, "write_file", path="prices.py", content=fixed, mode="overwrite"),
        _call(5, "shell_exec", command=run),
        Says("`total` took the highest price; it adds them up now, and the check passes."),
    ]
    async with FakeOpenAI(script).running() as server:
        backend = {"name": "demo", "kind": "openai", "url": server.base_url, "models": ["scripted"]}
        file = GatewayFile.model_validate({"backends": [backend]})
        options = Options(folder, "scripted", rules=Rules())
        os.environ["FLOW_ENGINE_DATA_DIR"] = str(folder / ".git")
        async with gateway_base(options, file) as base:
            model = assistant_model(base, "scripted")
            workspace = Workspace(folder, WorkspaceSettings(workspace_sandbox="off"), Rules())
            try:
                session = workspace.store.begin(base.url, "scripted")
                everything = _Nobody(answers_to(["all"]))
                code = await _one_task(workspace, model, session, "Mend the check.", everything, as_json, 10)
                restored = undo(workspace.root, workspace.store, None)
            finally:
                await model.aclose()
                workspace.close()
    for each in restored:
        typer.echo(orjson.dumps({"undone": asdict(each)}) if as_json else f"undone:\n{each.diff}")
    return code
