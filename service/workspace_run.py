"""The assistant's commands that ask a model: a gateway found or started, a task, the index, the demo."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import typer
from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - it names anyio loosely

from adapters.models import factory, fake_openai, scripted
from api.auth import LocalOnly
from channels.gateway.config import ADDRESSES, GatewayFile, GatewaySettings, is_address
from channels.workspace import assistant
from channels.workspace.confinement import is_text
from channels.workspace.index import EmbeddingFailed, GatewayEmbedder
from channels.workspace.rules import Rules, answers_to, said_yes
from channels.workspace.store import FOLDER
from channels.workspace.toolbox import Choice, Question
from channels.workspace.undo import undo
from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import ToolCall
from service.assistant import Base, assistant_model
from service.gateway import gateway_file, gateway_server, gateway_service
from service.logs import configure_logging
from service.serving import KeyDoor, served_here
from service.settings import Settings, read_settings
from service.workspace import Options, open_workspace, tell, visible


def base_url(text: str) -> str:
    """With `/v1` at its end, whether it was there or not."""
    return text.rstrip("/").removesuffix("/v1") + "/v1"


@asynccontextmanager
async def gateway_base(
    options: Options, file: GatewayFile | None = None, data_dir: Path | None = None
) -> AsyncGenerator[Base]:
    """The gateway that is named, else one in this process on a free port of loopback. Its cache lies in the
    home, unless `data_dir` or the setting says where. Raises CallTheOperator where neither can be had."""
    own = read_settings(assistant.WorkspaceSettings)
    url = options.gateway or own.gateway_url
    if url is not None and file is None:
        key = None if own.gateway_key is None else own.gateway_key.get_secret_value()
        if not is_address(url):
            raise CallTheOperator("gateway_config_invalid", f"the gateway {url!r}: {ADDRESSES}")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise CallTheOperator(
                "gateway_config_invalid", "the key in FLOW_ENGINE_GATEWAY_KEY cannot be sent in a header"
            )
        yield Base(base_url(url), key)
        return
    gateway = read_settings(GatewaySettings)
    if file is None and options.config is None and gateway.gateway_config is None:
        raise CallTheOperator(
            "gateway_config_missing",
            "name a gateway by --gateway or FLOW_ENGINE_GATEWAY_URL, or the file of one in this process by "
            "--config or FLOW_ENGINE_GATEWAY_CONFIG",
        )
    file = file or gateway_file(options.config, gateway)
    settings = read_settings(Settings)
    if data_dir or "data_dir" not in settings.model_fields_set:
        settings = settings.model_copy(update={"data_dir": data_dir or Path.home() / FOLDER})
    async with (
        gateway_service(settings, gateway, file, KeyDoor(LocalOnly())) as app,
        served_here(gateway_server(app, signals=False)) as address,
    ):
        yield Base(f"http://{address}/v1", None, file.assistant.model)


@dataclass(frozen=True, slots=True)
class Work:
    """A session in an open workspace, and the model that it talks to. `name` is the model's."""

    workspace: assistant.Workspace
    model: factory.ConnectedModel
    session: str
    name: str


@asynccontextmanager
async def at_work(options: Options, resume: str | None) -> AsyncGenerator[Work]:
    """`resume` is a session, empty for the newest, None for a new one. Raises CallTheOperator for what cannot
    be used, LookElsewhere `session_unknown`."""
    async with gateway_base(options) as base:
        name = options.model or read_settings(assistant.WorkspaceSettings).workspace_model or base.model
        if name is None:
            raise CallTheOperator("model_missing", "name a model by --model or FLOW_ENGINE_WORKSPACE_MODEL")
        model = assistant_model(base, name)
        try:
            with closing(open_workspace(options, _embedder(base))) as workspace:
                store = workspace.store
                session = store.begin(base.url, name) if resume is None else store.session(resume or None).id
                yield Work(workspace, model, session, name)
        finally:
            await model.aclose()


def _embedder(base: Base) -> GatewayEmbedder | None:
    name = read_settings(assistant.WorkspaceSettings).workspace_embedding_model
    return GatewayEmbedder(base.url, base.key, name) if name else None


# flow-engine workspace run ------------------------------------------------------------------------------


class _Nobody:
    """Answers what would be asked by `--yes-to` alone."""

    def __init__(self, answers: Rules) -> None:
        self._answers = answers

    async def decide(self, question: Question) -> Choice:
        yes = said_yes(self._answers, question.name, path=question.path, command=question.command)
        return "once" if yes else "no"


class _Output:
    """Frames as lines of JSON; or the answer on standard output, and what is done on standard error."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._in_a_line = False

    async def show(self, frame: assistant.Frame) -> None:
        if self._as_json:
            typer.echo(orjson.dumps(dict(frame)))
        elif "content" in frame:
            tell(frame["content"], nl=False)
            self._in_a_line = not frame["content"].endswith("\n")
        elif "error" in frame:
            self.note(frame["error"]["message"])
        elif frame["tool"]["status"] != "running":
            self.note(f"· {tool_line(frame['tool'])}")

    def note(self, text: str) -> None:
        """A line that is no part of the answer; one that has begun is ended first."""
        if self._in_a_line:
            typer.echo()
        self._in_a_line = False
        tell(text, err=True)

    def end(self, result: Mapping[str, Any]) -> None:
        if self._as_json:
            typer.echo(orjson.dumps({"result": result}))
        else:
            self.note(f"[{result['status']}] session {result['session']}, turn {result['turn']}")


def tool_line(tool: Mapping[str, Any]) -> str:
    """What a call is about and how it went, in one line."""
    arguments = tool["arguments"]
    subject = arguments.get("command", arguments.get("path", arguments.get("query", "")))
    return " ".join(visible(f"{tool['name']} {subject}: {tool['status']}").split())


def run_task(
    options: Options,
    task: str,
    *,
    yes_to: Sequence[str],
    as_json: bool,
    resume: str | None,
    max_iterations: int,
) -> int:
    """The exit status: 0 only when the task was completed. `resume` as in `at_work`. Raises CallTheOperator
    `yes_to_invalid`, `task_invalid` for what is no UTF-8, and as `at_work`."""
    configure_logging("critical")
    if not is_text(task):
        raise CallTheOperator("task_invalid", "the task is no UTF-8")
    answers = answers_to(yes_to)

    async def ran() -> int:
        async with at_work(options, resume) as work:
            return await _one_task(work, task, answers, as_json, max_iterations)

    try:
        return asyncio.run(ran())
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        return 130


async def _one_task(work: Work, task: str, answers: Rules, as_json: bool, max_iterations: int) -> int:
    output = _Output(as_json)
    try:
        done = await assistant.run_turn(
            work.workspace,
            work.model,
            work.session,
            task,
            _Nobody(answers),
            output.show,
            max_iterations=max_iterations,
        )
        status, content, turn, iterations = "completed", done.content, done.turn, done.iterations
    except assistant.TurnFailed as error:
        status = "max_iterations" if isinstance(error, assistant.MaxIterationsExceeded) else "error"
        content, turn, iterations = str(error), error.turn, error.iterations
        await output.show({"error": {"code": error.code, "message": content}})
    result = {"status": status, "content": content, "session": work.session, "turn": turn}
    output.end({**result, "iterations": iterations})
    return 0 if status == "completed" else 1


# flow-engine workspace index, demo ----------------------------------------------------------------------


def index(options: Options, *, watch: bool) -> int:
    """Index the workspace; with `watch` again after every change, until Ctrl-C. The exit status, 0. Raises
    CallTheOperator `embedding_failed`: what was indexed until then stays."""
    configure_logging("critical")

    async def opened() -> None:
        if read_settings(assistant.WorkspaceSettings).workspace_embedding_model:
            async with gateway_base(options) as base:
                await indexed(open_workspace(options, _embedder(base)), watch=watch)
        else:
            await indexed(open_workspace(options), watch=watch)

    with suppress(KeyboardInterrupt):
        asyncio.run(opened())
    return 0


async def indexed(workspace: assistant.Workspace, *, watch: bool) -> None:
    """Print what was done as a line of JSON, and close the workspace at the end. Raises CallTheOperator
    `embedding_failed`."""
    try:
        typer.echo(orjson.dumps(asdict(await workspace.index.update())))
        if watch:
            async for _ in awatch(workspace.root.path, recursive=True):
                done = await workspace.index.update()
                if done.changed or done.removed:
                    typer.echo(orjson.dumps(asdict(done)))
    except EmbeddingFailed as error:
        raise CallTheOperator("embedding_failed", f"the embedding model failed: {error}") from error
    finally:
        workspace.close()


def demo(*, as_json: bool) -> int:
    """A failing test is mended and the mending undone: offline, on a scripted model, in a temporary
    folder."""
    configure_logging("critical")
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_demonstrated(Path(folder), as_json))


def _call(number: int, name: str, **arguments: Any) -> scripted.CallsTools:
    return scripted.CallsTools([ToolCall(f"call_{number}", name, arguments)])


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
        scripted.Says("`total` took the highest price; it adds them up now, and the check passes."),
    ]
    async with fake_openai.FakeOpenAI(script).running() as server:
        backend = {"name": "demo", "kind": "openai", "url": server.base_url, "models": ["scripted"]}
        file = GatewayFile.model_validate({"backends": [backend]})
        async with gateway_base(Options(folder), file, folder / ".git") as base:
            model = assistant_model(base, "scripted")
            workspace = assistant.Workspace(
                folder, assistant.WorkspaceSettings(workspace_sandbox="off"), Rules()
            )
            try:
                work = Work(workspace, model, workspace.store.begin(base.url, "scripted"), "scripted")
                code = await _one_task(work, "Mend the check.", answers_to(["all"]), as_json, 10)
                restored = undo(workspace.root, workspace.store, None)
            finally:
                await model.aclose()
                workspace.close()
    for each in restored:
        typer.echo(orjson.dumps({"undone": asdict(each)}) if as_json else f"\nundone:\n{each.diff}")
    return code
