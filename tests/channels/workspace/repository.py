"""A git repository with a failing test, and a model that mends it; served to programs of their own."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import CallsTools, Says
from flow_engine.ports.models import ToolCall
from tests.channels.workspace.workspace_world import git

BROKEN = "def total(prices):\n    return max(prices)\n"
FIRST_IDEA = "def total(prices):\n    return prices[0] + prices[1]\n"
MENDED = "def total(prices):\n    return sum(prices)\n"
CHECK = """import unittest

from prices import total


class Total(unittest.TestCase):
    def test_three(self):
        self.assertEqual(total([1, 2, 3]), 6)
"""
TESTS = f"{sys.executable} -m unittest -q test_prices"
COMMIT = "git -c user.name=Ann -c user.email=ann@example.org commit -q -m 'Add the prices up' prices.py"

Answer = Callable[[Received], WireStep]


def repository(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "prices.py").write_text(BROKEN, "utf-8")
    (folder / "test_prices.py").write_text(CHECK, "utf-8")
    (folder / ".gitignore").write_text("__pycache__/\n", "utf-8")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Begin")


def called(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


MENDING: Sequence[tuple[str, dict[str, Any]]] = (
    called("list_files", path="."),
    called("read_file", path="prices.py"),
    called("search_text", query="total("),
    called("shell_exec", command=TESTS),
    called("write_file", path="prices.py", content=FIRST_IDEA, mode="overwrite"),
    called("write_file", path="prices.py", content=MENDED, mode="overwrite"),
    called("shell_exec", command=TESTS),
    called("shell_exec", command=COMMIT),
)


def scripted(plan: Sequence[tuple[str, dict[str, Any]]], end: str) -> Answer:
    """One call after the other since the last thing the user wrote, and then `end`."""

    def step(got: Received) -> WireStep:
        messages = got.body["messages"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        done = sum(1 for message in messages[last:] if message["role"] == "assistant")
        if done == len(plan):
            return Says(end)
        name, arguments = plan[done]
        return CallsTools([ToolCall(f"call_{last}_{done}", name, arguments)], f"Step {done + 1}. ")

    return step


@contextmanager
def model_server(answer: Answer | Sequence[WireStep]) -> Iterator[FakeOpenAI]:
    """On a thread of its own, for programs that have an event loop of their own."""
    server, ready = FakeOpenAI(answer), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with server.running():
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
