"""A workspace in a temporary directory, with a secret outside of it, and tools that are called directly."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.models.tools import ToolRegistry
from channels.workspace.assistant import Workspace, WorkspaceSettings
from channels.workspace.rules import Rule, Rules
from channels.workspace.toolbox import Choice, Question
from flow_engine.ports.models import ToolCall

SECRET = "the secret outside"


@dataclass
class Answering:
    """A person who answers as told, and remembers what was asked."""

    answer: Callable[[Question], Choice] = lambda _: "once"
    asked: list[Question] = field(default_factory=list[Question])

    async def decide(self, question: Question) -> Choice:
        self.asked.append(question)
        return self.answer(question)


@dataclass
class World:
    workspace: Workspace
    outside: Path
    person: Answering
    session: str
    registry: ToolRegistry

    @property
    def root(self) -> Path:
        return self.workspace.root.path

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self.registry.execute(ToolCall("c", name, arguments))
        assert isinstance(result, dict)
        assert isinstance(result["success"], bool)
        if not result["success"]:
            assert str(result["error"]).isupper()
            assert result["message"]
        return result

    def turn(self, name: str) -> None:
        self.registry = self.workspace.toolbox(self.session).begin(name, self.person)


@contextmanager
def opened(tmp_path: Path, *rules: Mapping[str, Any], **settings: Any) -> Iterator[World]:
    root, outside = tmp_path / "ws", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir(exist_ok=True)
    (outside / "secret.txt").write_text(SECRET, "utf-8")
    made = Rules(tuple(Rule.model_validate(rule) for rule in rules))
    workspace = Workspace(root, WorkspaceSettings(**settings), made)
    person = Answering()
    session = workspace.store.begin("test", "scripted")
    registry = workspace.toolbox(session).begin("t1", person)
    try:
        yield World(workspace, outside, person, session, registry)
    finally:
        workspace.close()


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", "-C", str(folder), *name, *arguments], capture_output=True, check=True)
    return done.stdout.decode()
