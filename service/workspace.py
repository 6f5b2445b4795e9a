"""The assistant's commands that need no model, and how each of them opens its workspace."""

import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from unicodedata import category

import orjson
import typer

from channels.workspace import assistant, confinement, files, index, store
from channels.workspace.rules import TOOLS, read_rules
from channels.workspace.undo import undo
from flow_engine.errors import CallTheOperator, ReloadAndDecide
from service.settings import read_settings


@dataclass(frozen=True, slots=True)
class Options:
    """What every command takes. `directory` is where the search for the workspace begins."""

    directory: Path = Path()
    model: str | None = None
    gateway: str | None = None
    config: Path | None = None


def open_workspace(options: Options, embedder: index.Embedder | None = None) -> assistant.Workspace:
    """Raises CallTheOperator: no such directory, rules that cannot be read, a database that cannot be
    used."""
    settings = read_settings(assistant.WorkspaceSettings)
    rules = read_rules(rules_file())
    path, by = store.detect(options.directory, Path.home())
    workspace = assistant.Workspace(path, settings, rules, embedder)
    with suppress(OSError, CallTheOperator):  # a home that cannot be written costs nobody his work
        store.remember_workspace(path, by, Path.home())
    return workspace


def rules_file() -> Path:
    """The operator's, whether it is there or not."""
    return read_settings(assistant.WorkspaceSettings).workspace_rules.expanduser()


def visible(text: str) -> str:
    """Without what moves the cursor, turns text round or hides it: such a character is shown as `\\u001b`."""
    return "".join(
        f"\\u{ord(each):04x}" if each not in "\n\t" and category(each) in ("Cc", "Cf") else each
        for each in text
    )


def tell(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print what models write and files hold: made `visible` on a terminal, elsewhere as it is."""
    is_seen = (sys.stderr if err else sys.stdout).isatty()
    typer.echo(visible(text) if is_seen else text, nl=nl, err=err)


def sessions(
    options: Options, session: str | None, export: Literal["markdown", "json"] | None, *, as_json: bool
) -> int:
    """List the sessions, or write one as Markdown or JSON."""
    with closing(open_workspace(options)) as workspace:
        if session is not None or export is not None:
            tell(_exported(workspace, workspace.store.session(session), export or "markdown"))
            return 0
        for each in workspace.store.sessions():
            if as_json:
                typer.echo(orjson.dumps(asdict(each)))
            else:
                tell(f"{each.id}  {each.model}  {each.metadata.get('title', '')}")
        return 0


def _exported(workspace: assistant.Workspace, session: store.Session, form: str) -> str:
    stored = workspace.store.messages(session.id)
    if form == "json":
        messages = [
            {**asdict(each.message), "turn": each.turn, "created_at": each.created_at} for each in stored
        ]
        return orjson.dumps({"session": asdict(session), "messages": messages}).decode()
    parts = [f"# {session.metadata.get('title') or session.id}"]
    for each in stored:
        message = each.message
        calls = [
            f"`{call.name}` {orjson.dumps(dict(call.arguments)).decode()}" for call in message.tool_calls
        ]
        content = f"```json\n{message.content}\n```" if message.role == "tool" else message.content
        name = f" ({each.tool_name})" if each.tool_name else ""
        parts += (f"## {message.role}{name}", *(part for part in (content, *calls) if part))
    return "\n\n".join(parts)


def undo_changes(options: Options, name: str | None, *, force: bool) -> int:
    """The exit status: 1 where a file has changed since, and nothing was restored."""
    with closing(open_workspace(options)) as workspace:
        try:
            restored = undo(workspace.root, workspace.store, name, force=force)
        except ReloadAndDecide as changed:
            tell(changed.detail, err=True)
            return 1
    for each in restored:
        tell(each.diff or f"{each.path}: as it was", nl=not each.diff)
    return 0


def _resolved(options: Options, path: str) -> str:
    with closing(confinement.Root(store.detect(options.directory, Path.home())[0])) as root:
        try:
            return root.resolved(path)
        except (confinement.Outside, confinement.Refused, OSError) as error:
            told = files.described(path, error)
            raise CallTheOperator(told["error"].lower(), told["message"]) from None


def explain(options: Options, subject: str, tool: str, *, as_json: bool) -> int:
    """What the rules say about a command, or for a tool of files about a path, without its links. Raises
    CallTheOperator for a path that the tool would refuse."""
    if tool not in TOOLS:
        raise CallTheOperator("tool_unknown", f"there is no tool {tool!r}; accepted are {', '.join(TOOLS)}")
    rules = read_rules(rules_file())
    if tool == "shell_exec":
        decision = rules.decide(tool, command=subject)
    else:
        decision = rules.decide(tool, path=_resolved(options, subject))
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
