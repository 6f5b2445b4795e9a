"""The seven tools, and who decides on their calls (W1, W2).

Every result is an object with `success`; a failure has `error`, a code in capitals, and `message`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from adapters.models.tools import USER_REJECTED, Arguments, Tool, ToolRegistry
from channels.workspace.confinement import Content, Outside, Refused, Root
from channels.workspace.files import appended, described, failure, list_files, read_file, search_text
from channels.workspace.index import Index
from channels.workspace.rules import Rule, Rules, proposed_rule
from channels.workspace.shell import MOST_S, Shell
from channels.workspace.store import Store
from channels.workspace.undo import content_at, diff, keep_blob
from flow_engine.ports.models import ToolCall, ToolSpec
from flow_engine.values import JsonValue

MOST_COMMAND: Final = 10_000
"""Characters of a command line: to read one that is no shell syntax takes quadratic time."""

Choice = Literal["once", "session", "always", "no"]


def _text(description: str, **more: Any) -> Mapping[str, Any]:
    return {"type": "string", "description": description, **more}


def _spec(
    name: str, description: str, required: tuple[str, ...], **properties: Mapping[str, Any]
) -> ToolSpec:
    return ToolSpec(
        name, description, {"type": "object", "properties": properties, "required": list(required)}
    )


SPECS: Final = (
    _spec(
        "list_files",
        "List a directory of the workspace. Files that the ignore files name are left out.",
        ("path",),
        path=_text("Directory, relative to the workspace"),
        recursive={"type": "boolean", "default": False, "description": "Subdirectories too"},
        pattern=_text("Glob for names, such as *.py"),
    ),
    _spec(
        "read_file",
        "Read a text file, whole or some of its lines, counted from 1.",
        ("path",),
        path=_text("File, relative to the workspace"),
        start_line={"type": "integer", "description": "First line"},
        end_line={"type": "integer", "description": "Last line, included"},
    ),
    _spec(
        "write_file",
        "Write a text file. `create` refuses one that exists.",
        ("path", "content"),
        path=_text("File, relative to the workspace"),
        content=_text("The text"),
        mode=_text(
            "How; append keeps the encoding", enum=["create", "overwrite", "append"], default="create"
        ),
    ),
    _spec("delete_file", "Delete a file.", ("path",), path=_text("File, relative to the workspace")),
    _spec(
        "search_text",
        "Find lines that contain a text or match a regex (RE2).",
        ("query",),
        query=_text("Text or regex"),
        path=_text("Directory to search", default="."),
        regex={"type": "boolean", "default": False},
        case_sensitive={"type": "boolean", "default": False},
    ),
    _spec(
        "search_semantic",
        "Find passages by what they are about.",
        ("query",),
        query=_text("What to look for"),
        top_k={"type": "integer", "default": 5, "description": "How many results"},
    ),
    _spec(
        "shell_exec",
        "Run a shell command: git, tests, builds. No terminal, no input.",
        ("command",),
        command=_text("The command line"),
        cwd=_text("Directory, relative to the workspace; left out: the workspace itself"),
        timeout={"type": "integer", "default": 30, "description": "Seconds"},
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A call that somebody is to confirm. `call` is the id of the step; `diff` what a write would change;
    `always` the rule that the answer "always" stands for, None where no rule could allow the call."""

    call: str
    name: str
    arguments: Arguments
    path: str | None
    command: str | None
    diff: str | None
    always: Rule | None = None


class Person(Protocol):
    """Whoever is asked. `no` where nobody is there."""

    async def decide(self, question: Question) -> Choice: ...


class _Registry(ToolRegistry):
    """Asks the rules, then the person. Failures have the shape that those of a workspace's tools have."""

    def __init__(self, toolbox: Toolbox) -> None:
        super().__init__()
        self._toolbox = toolbox

    async def refusal(self, call: ToolCall) -> dict[str, JsonValue] | None:
        self._toolbox.next_step()
        refused = await super().refusal(call)
        if refused is None:
            return await self._toolbox.refusal_of(call)
        known = {spec.name for spec in self.specs()}
        code = "INVALID_ARGUMENTS" if call.name in known else "UNKNOWN_TOOL"
        return failure(code, str(refused["error"]))

    async def run(self, call: ToolCall) -> JsonValue:
        result = await super().run(call)
        if isinstance(result, dict) and "success" not in result:
            return failure("TOOL_FAILED", str(result.get("error")))
        return result


class Toolbox:
    """The tools of one session in one workspace, for one turn at a time. A call has an answer within 630
    seconds."""

    def __init__(
        self, root: Root, store: Store, shell: Shell, index: Index, rules: Rules, session: str
    ) -> None:
        self._root = root
        self._store = store
        self._shell = shell
        self._index = index
        self._rules = rules
        self._session = session
        self._turn = ""
        self._steps = 0
        self._person: Person | None = None
        self._read: dict[str, str] = {}
        self._granted: set[str] = set()
        self._shown: tuple[str, str | None] | None = None

    def begin(self, turn: str, person: Person) -> ToolRegistry:
        """The tools for one turn, in which `person` is asked."""
        self._turn, self._steps, self._person = turn, 0, person
        registry = _Registry(self)
        for spec in SPECS:
            registry.register(Tool(spec, partial(self._guarded, spec.name), timeout_s=MOST_S + 30))
        return registry

    @property
    def step(self) -> str:
        """The id of the step that is under way, unique in the workspace."""
        return f"{self._turn}-{self._steps}"

    def next_step(self) -> None:
        self._steps += 1
        self._shown = None

    async def _guarded(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        try:
            return await self._run(tool, arguments)
        except ValueError as error:
            return failure("INVALID_ARGUMENTS", str(error))
        except (Outside, Refused, OSError) as error:
            return described(str(arguments.get("path", arguments.get("cwd", "."))), error)

    # Who decides ------------------------------------------------------------------------------------

    async def refusal_of(self, call: ToolCall) -> dict[str, JsonValue] | None:
        """None for a call that may run. A path that leads out is refused before anybody is asked."""
        command = str(call.arguments["command"]) if call.name == "shell_exec" else None
        if command is not None and len(command) > MOST_COMMAND:
            told = f"command: at most {MOST_COMMAND:,} characters are accepted; write a longer one to a file"
            return failure("INVALID_ARGUMENTS", told)
        path = None
        if "path" in call.arguments or call.name == "search_text":
            named = str(call.arguments.get("path", "."))
            try:
                path = self._root.resolved(named)
            except (Outside, Refused, OSError) as error:
                return described(named, error)
        decision = self._rules.decide(call.name, path=path, command=command)
        if decision.verdict == "forbid":
            return failure("FORBIDDEN", f"a rule of the operator forbids this call of {call.name!r}")
        if decision.verdict == "allow" or call.name in self._granted:
            return None
        try:
            change = self._preview(call, path)
        except (Outside, Refused, OSError) as error:
            return described(path or ".", error)
        assert self._person is not None
        always = proposed_rule(call.name, path, command)
        if (
            always
            and self._rules.plus(always).decide(call.name, path=path, command=command).verdict != "allow"
        ):
            always = None  # a stricter rule stands
        choice = await self._person.decide(
            Question(self.step, call.name, call.arguments, path, command, change, always)
        )
        if choice == "session" and command is None:
            self._granted.add(call.name)
        if choice == "always" and always is not None:
            self._rules = self._rules.plus(always)
        if choice != "no":
            return None
        return failure(USER_REJECTED, f"{call.name!r} was not confirmed; ask what should be done instead")

    def _preview(self, call: ToolCall, path: str | None) -> str | None:
        """What a write or a delete would change; its state now is remembered, so that only this is done."""
        if path is None or call.name not in ("write_file", "delete_file"):
            return None
        before = content_at(self._root, path)
        self._shown = (path, before.digest if before else None)
        after = None
        if call.name == "write_file":
            after = self._after(call.arguments, before)
        return diff(path, before.data if before else None, after)

    def _shows(self, tool: str, path: str) -> bool:
        """Whether a result of the tool may be about this path: a rule may forbid less than the whole call."""
        return self._rules.decide(tool, path=path).verdict != "forbid"

    # The tools ---------------------------------------------------------------------------------------

    async def _run(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        path = str(arguments.get("path", "."))
        shown = partial(self._shows, tool)
        match tool:
            case "list_files":
                pattern = arguments.get("pattern")
                return await asyncio.to_thread(
                    list_files,
                    self._root,
                    path,
                    recursive=bool(arguments.get("recursive", False)),
                    pattern=str(pattern) if pattern is not None else None,
                    shown=shown,
                )
            case "read_file":
                start, end = (
                    int(line) if isinstance(line := arguments.get(name), int | float) else None
                    for name in ("start_line", "end_line")
                )
                result, content = await asyncio.to_thread(read_file, self._root, path, start, end)
                self._read[self._root.resolved(path)] = content.digest
                return result
            case "write_file":
                return await self._write(arguments)
            case "delete_file":
                return await self._delete(arguments)
            case "search_text":
                return await asyncio.to_thread(
                    search_text,
                    self._root,
                    str(arguments["query"]),
                    path,
                    regex=bool(arguments.get("regex", False)),
                    case_sensitive=bool(arguments.get("case_sensitive", False)),
                    shown=shown,
                )
            case "search_semantic":
                top_k = int(float(str(arguments.get("top_k", 5))))
                return await self._index.search(str(arguments["query"]), max(1, min(50, top_k)), shown)
            case _:
                seconds = float(str(arguments.get("timeout", 30)))
                cwd = str(arguments.get("cwd") or ".")
                with suppress(NotADirectoryError):
                    return await self._shell.run(str(arguments["command"]), cwd, max(1.0, seconds))
                raise Refused("NOT_A_DIRECTORY", f"{cwd!r} is no directory")

    @staticmethod
    def _after(arguments: Arguments, before: Content | None) -> bytes:
        text = str(arguments["content"])
        if arguments.get("mode") == "append" and before:
            return appended(before.data, text, str(arguments["path"]))
        return text.encode("utf-8")

    async def _write(self, arguments: Arguments) -> dict[str, Any]:
        path, mode = str(arguments["path"]), arguments.get("mode", "create")
        target = self._root.writable(path)
        before = content_at(self._root, target)
        if mode == "create" and before is not None:
            message = f"{path!r} is there already; accepted are the modes overwrite and append"
            return failure("ALREADY_EXISTS", message)
        self._unchanged(target, before)
        after = self._after(arguments, before)
        permissions = before.mode if before else 0o644
        digest = self._changed(target, before, after, lambda: self._root.write(target, after, permissions))
        assert digest is not None
        self._read[target] = digest
        return {"success": True, "path": target, "bytes": len(after), "created": before is None}

    async def _delete(self, arguments: Arguments) -> dict[str, Any]:
        path = str(arguments["path"])
        target = self._root.writable(path)
        before = content_at(self._root, target)
        if before is None:
            raise FileNotFoundError(path)
        self._unchanged(target, before)
        self._changed(target, before, None, lambda: self._root.delete(target))
        self._read.pop(target, None)
        return {"success": True, "path": target}

    def _unchanged(self, path: str, now: Content | None) -> None:
        """Raises Refused: the file is another than the one that was read, or shown in the confirmation."""
        digest = now.digest if now else None
        known = self._read.get(path)
        shown = self._shown[1] if self._shown and self._shown[0] == path else digest
        if (known is not None and known != digest) or shown != digest:
            raise Refused("CHANGED_SINCE_READ", f"{path!r} has changed since it was read; read it again")

    def _changed(
        self, path: str, before: Content | None, after: bytes | None, do: Callable[[], list[str] | None]
    ) -> str | None:
        """Keep what was, then do it. The digest of what is now."""
        old = keep_blob(self._store.blobs, before.data) if before else None
        new = keep_blob(self._store.blobs, after) if after is not None else None
        change = self._store.record(
            self._session, self._turn, self.step, path, old, new, before.mode if before else None
        )
        with ExitStack() as undo:
            undo.callback(self._store.forget_change, change)
            made = do()
            undo.pop_all()
        if made:
            self._store.made_folders(change, made)
        return new
