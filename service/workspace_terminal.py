"""The assistant in a terminal: prompts, answers as they come, changes shown before they are confirmed.

Ctrl-C stops a run, also one that waits for a confirmation, and never the program; what was called and not
answered is closed as `INTERRUPTED`, so that the session goes on.
"""

from __future__ import annotations

import asyncio
import readline
import signal
from collections.abc import Coroutine, Generator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.text import Text

from channels.workspace import assistant, rules, toolbox
from flow_engine.errors import CallTheOperator
from service.logs import configure_logging
from service.workspace import Options, rules_file, visible
from service.workspace_run import Work, at_work, tool_line

COLOURS: Final[Mapping[str, str]] = {"done": "green", "failed": "red", "rejected": "yellow"}


def chat(options: Options, *, resume: str | None) -> int:
    """Lines from the terminal until its end; the exit status, 0. `resume` is a session, empty for the newest.
    Raises CallTheOperator, LookElsewhere before the first prompt."""
    configure_logging("critical")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            work = runner.run(stack.enter_async_context(at_work(options, resume)))
            console, workspace, session = Console(), work.workspace, work.session
            readline.set_auto_history(False)  # it would keep the answers to questions too
            for line in workspace.store.history():
                _remember(line)
            head = f"{workspace.root.path} · {work.name} · session {session}. "
            console.print(
                Text(f"{head}Ctrl-D ends it; a line that ends in \\ goes on.", style="dim"), soft_wrap=True
            )
            with Keys() as keys:
                for prompt in _prompts(console, keys):
                    workspace.store.remember(session, prompt)
                    screen = Screen(console, keys)
                    try:
                        runner.run(keys.stopping(_turn(work, prompt, screen)))
                    except (KeyboardInterrupt, asyncio.CancelledError):
                        screen.pause()
                        console.print("[yellow]stopped[/yellow]")
                        workspace.resume(session)
                    finally:
                        screen.pause()
        finally:
            runner.run(stack.aclose())
    return 0


class Keys:
    """What is typed, and Ctrl-C whenever it comes: it raises where somebody types, stops the run where one
    runs, and between the two the run that is about to begin."""

    def __init__(self) -> None:
        self._typing = False
        self._pressed = False
        self._run: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, number: int, frame: object) -> None:
        if self._typing:
            self._typing = False
            raise KeyboardInterrupt
        self._pressed = True
        if self._run is not None:
            self._run.get_loop().call_soon_threadsafe(self._run.cancel)

    def read(self, question: str) -> str:
        """Raises EOFError, KeyboardInterrupt. The loop waits too: nothing is done while a person types."""
        self._pressed = False
        self._typing = True
        try:
            typed = input(question)
        finally:
            self._typing = False
        # Where the locale is not installed, all beyond ASCII comes as bytes.
        return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    async def stopping(self, turn: Coroutine[Any, Any, None]) -> None:
        """Await `turn`, which Ctrl-C cancels."""
        self._run = asyncio.current_task()
        try:
            if self._pressed:
                turn.close()
                raise asyncio.CancelledError
            await turn
        finally:
            self._run = None


def _prompts(console: Console, keys: Keys) -> Generator[str]:
    """What the user types, line by line or joined; ends with the input."""
    lines: list[str] = []
    while True:
        try:
            line = keys.read("… " if lines else "> ")
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
            _remember(text)
            yield text


def _remember(line: str) -> None:
    """For the arrows; a line that the locale cannot hold is left out."""
    with suppress(UnicodeEncodeError):
        readline.add_history(line)


async def _turn(work: Work, prompt: str, screen: Screen) -> None:
    try:
        await assistant.run_turn(work.workspace, work.model, work.session, prompt, screen, screen.show)
    except assistant.TurnFailed as error:
        screen.pause()
        screen.console.print(Text(visible(str(error)), style="red"))


class Screen:
    """Shows the frames of one turn, and asks whoever sits there, the change in colours first. Nothing of the
    model's reaches the terminal as an escape sequence: it could show another command than it asks for."""

    def __init__(self, console: Console, keys: Keys) -> None:
        self.console = console
        self._keys = keys
        self._text = ""
        self._live: Live | Progress | None = None

    def pause(self) -> None:
        """Nothing moves on the screen any more."""
        if self._live is not None:
            self._live.stop()
        self._live, self._text = None, ""

    async def show(self, frame: assistant.Frame) -> None:
        if "content" in frame:
            self._text += visible(frame["content"])
            if not isinstance(self._live, Live):
                text = self._text
                self.pause()
                self._text = text
                self._live = Live(console=self.console, refresh_per_second=8, vertical_overflow="visible")
                self._live.start()
            self._live.update(Markdown(self._text))
        elif "tool" in frame:
            self.pause()
            line = tool_line(frame["tool"])
            if frame["tool"]["status"] == "running":
                # Gone when the tool is done; a slow one shows for how long it has been at work.
                columns = (
                    SpinnerColumn(),
                    TextColumn("{task.description}", markup=False),
                    TimeElapsedColumn(),
                )
                working = Progress(*columns, console=self.console, transient=True)
                working.add_task(line)
                self._live = working
                working.start()
                return
            result = frame["tool"].get("result", {})
            seconds = f" ({result['duration_ms'] / 1000:.1f} s)" if "duration_ms" in result else ""
            self.console.print(Text(f"· {line}{seconds}", style=COLOURS.get(frame["tool"]["status"], "dim")))

    async def decide(self, question: toolbox.Question) -> toolbox.Choice:
        """Raises KeyboardInterrupt for Ctrl-C; the end of the input is a no."""
        self.pause()
        subject = visible(question.command if question.command is not None else question.path or "")
        self.console.print(Text.assemble((question.name, "bold"), f" {subject}"))
        if question.diff:
            self.console.print(Syntax(visible(question.diff), "diff", background_color="default"))
        choices: dict[str, tuple[toolbox.Choice, str]] = {"y": ("once", "once")}
        if question.command is None:
            choices["s"] = ("session", "for the session")
        if question.always is not None:
            choices["a"] = ("always", visible(f"always: {question.always.command or question.always.path}"))
        choices["n"] = ("no", "no")
        listed = ", ".join(f"{key} {text}" for key, (_, text) in choices.items())
        try:
            typed = self._keys.read(f"allow? ({listed}) ").strip().lower()
        except EOFError:
            typed = "n"
        choice, _ = choices.get(typed[:1], choices["n"])
        if choice == "always" and question.always is not None:
            try:
                rules.keep_rule(rules_file(), question.always)
                self.console.print(Text(f"written to {rules_file()}", style="dim"))
            except CallTheOperator as error:
                self.console.print(Text(f"for this session only: {error.detail}", style="yellow"))
        return choice
