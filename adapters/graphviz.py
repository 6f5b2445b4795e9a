"""Graphviz's `dot` as a process of its own, bounded in time, input and number."""

import asyncio
import shutil
from collections.abc import Sequence

from flow_engine.errors import CallTheOperator, CorrectTheInput

MAX_SOURCE_BYTES = 2_000_000
TIMEOUT_S = 10.0
AT_ONCE = 2


class Graphviz:
    """Implements `DiagramRenderer`. `command` draws the graph on its standard input as SVG."""

    def __init__(self, command: Sequence[str] = ("dot", "-Tsvg"), *, timeout_s: float = TIMEOUT_S) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def svg(self, source: str) -> bytes:
        text = source.encode()
        if len(text) > MAX_SOURCE_BYTES:
            raise _too_large(f"it has {len(text)} bytes of source, {MAX_SOURCE_BYTES} are drawn")
        program = shutil.which(self._command[0])
        if program is None:
            raise CallTheOperator(
                "graphviz_missing",
                f"SVG is drawn by Graphviz, whose program {self._command[0]!r} is not installed here; "
                "install the package graphviz, or ask for the format 'mermaid'",
            )
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                program,
                *self._command[1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(self._timeout_s):
                    drawn, complaints = await process.communicate(text)
            except TimeoutError:
                raise _too_large(f"Graphviz needs more than {self._timeout_s:g} s to lay it out") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if process.returncode != 0:
                said = complaints.decode("utf-8", "replace").strip()[:500]
                raise CallTheOperator("graphviz_failed", f"{program} ended with {process.returncode}: {said}")
            return drawn


def _too_large(reason: str) -> CorrectTheInput:
    message = f"the diagram is too large for SVG: {reason}; ask for the format 'mermaid'"
    return CorrectTheInput.breach("diagram_too_large", message)
