"""Runs files of scenarios on the embedded memory: where the scenarios' stores are named and opened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import orjson
from typer import format_filename

from flow_engine.documents import DocumentLimits, parse_json
from flow_engine.errors import CorrectTheInput, Finding, FlowEngineError, ReloadAndDecide
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.extraction import ExtractionRequest
from flow_engine.testing import parsing, report, running, yaml_text
from flow_engine.testing.bench import AUTHOR, START, Bench, InstalledFlow, Stores
from flow_engine.use_cases.submissions import Submission, Submissions
from flow_engine.values import JsonValue
from flows.samples import unwrapped
from flows.sqlite_store import MEMORY, SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from memory.in_process import embedded
from memory.keys import ConversationKeys
from service import late
from system_prompts.loader import load_system_prompts

MOST_S = 60.0
"""Seconds for which scenarios are played that come with a request: a small text may ask for hours of them."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`flow` stands in for the files' own. `name_part`: only scenarios with it in their names. Limits are in
    bytes, levels and tasks."""

    flow: Path | None = None
    name_part: str = ""
    minimum: report.Minimum = field(default_factory=report.Minimum)
    limits: DocumentLimits = field(default_factory=DocumentLimits)

    def chosen(self, name: str) -> bool:
        return self.name_part.casefold() in name.casefold()


class _Rules:
    """Implements `Extractor`. Its tables are loaded when somebody speaks."""

    def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]:
        return late.extraction.extract(request)


@dataclass(frozen=True, slots=True)
class _Known:
    """A flow that some file has asked for, and what was played on it."""

    shown: str
    installed: InstalledFlow
    played: list[running.Played] = field(default_factory=list[running.Played])


class _FlowRefused(Exception):
    """The flow's document cannot be run. `messages` are all reasons."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__(*messages)
        self.messages = tuple(messages)


def run_files(files: Sequence[Path], options: RunOptions) -> report.RunReport:
    """Every file is run, whatever is wrong with the others. Times in seconds. Never raises for a file: what
    is wrong with one is in its report."""

    async def run() -> report.RunReport:
        async with _open_run(options) as opened:
            reports = [await opened.file(path) for path in files]
            return report.RunReport(tuple(reports), opened.flow_reports(), options.minimum)

    return asyncio.run(run())


def run_tests(
    submission: Submission,
    flow_id: str,
    tests: bytes,
    most_s: float = MOST_S,
    ends: list[Callable[[], object]] | None = None,
) -> report.ScenarioVerdict:
    """YAML of scenarios, played on a checked version of a flow, for `most_s` seconds; the YAML's own `flow`
    is not read. What is put into `ends` ends it early, from any thread, with CancelledError. Raises
    CorrectTheInput `tests_invalid` with every mistake: its JSON pointer, and its line, from 1;
    `tests_too_long`."""

    async def run() -> report.ScenarioVerdict:
        loop, playing = asyncio.get_running_loop(), asyncio.current_task()
        if ends is not None and playing is not None:
            ends.append(lambda: loop.call_soon_threadsafe(playing.cancel))
        async with _open_run(RunOptions()) as opened:
            return await opened.text(submission, flow_id, tests, most_s)

    return asyncio.run(run())


async def run_tests_beside(submission: Submission, flow_id: str, tests: bytes) -> report.ScenarioVerdict:
    """As `run_tests`, in a thread with a loop of its own: conversations go on meanwhile. Where nobody waits
    any more it ends: a process that stops would wait for its thread."""
    ends: list[Callable[[], object]] = []
    try:
        return await asyncio.to_thread(run_tests, submission, flow_id, tests, ends=ends)
    except asyncio.CancelledError:
        for end in ends:
            with suppress(RuntimeError):  # it has ended meanwhile
                end()
        raise


@asynccontextmanager
async def installed_flow(document: Path, options: RunOptions) -> AsyncGenerator[InstalledFlow]:
    """A version document or sample file, ready to be talked to. Raises CorrectTheInput `flow_unusable` with
    every reason."""
    async with _open_run(options) as opened:
        try:
            flow = await opened.install(document)
        except _FlowRefused as refused:
            reasons = [f"{_shown(document)}{message}" for message in refused.messages]
            raise CorrectTheInput(
                "flow_unusable",
                "\n".join(reasons),
                [Finding("", "flow_unusable", reason) for reason in reasons],
            ) from None
        yield flow


@asynccontextmanager
async def installed_version(submission: Submission, flow_id: str) -> AsyncGenerator[InstalledFlow]:
    """A checked version of a flow, ready to be talked to in stores of its own."""
    async with _open_run(RunOptions()) as opened:
        yield await opened.bench.install(submission, flow_id)


@asynccontextmanager
async def _open_run(options: RunOptions) -> AsyncGenerator[_Run]:
    prompts = load_system_prompts()
    database, memory = SqliteDatabase(MEMORY), embedded()

    async def forget(conversation: ConversationRef) -> None:
        await memory.driver.delete(ConversationKeys.of(conversation).state)

    stores = Stores(
        memory=memory.conversations,
        forget=forget,
        definitions=memory.definitions,
        flows=SqliteFlowStore(database),
        versions=SqliteVersionStore(database),
    )
    await database.open()
    try:
        submissions = Submissions(prompts, options.limits, lambda: "version")
        yield _Run(Bench(stores, prompts, _Rules()), submissions, options)
    finally:
        await database.close()
        await memory.close()


class _Run:
    def __init__(self, bench: Bench, submissions: Submissions, options: RunOptions) -> None:
        self.bench = bench
        self._submissions = submissions
        self._options = options
        self._flows: dict[Path, _Known] = {}

    async def file(self, path: Path) -> report.FileReport:
        file, shown = format_filename(path), ""
        try:
            reading = parsing.read_scenarios(read_bounded(path, yaml_text.MAX_BYTES))
            document = self.document_of(path, reading)
            shown = _shown(document)
            known = await self.known_flow(document, shown, reading)
            suite = reading.suite(*parsing.unknown_names(reading, known.installed.flow))
        except yaml_text.FileRejected as rejected:
            return report.FileReport(file, shown, mistakes=rejected.mistakes)
        except OSError as error:
            mistake = yaml_text.Mistake(1, "", "unreadable", error.strerror or "the file cannot be read")
            return report.FileReport(file, shown, mistakes=(mistake,))
        played = await running.play_all(suite, known.installed, perf_counter, self._options.chosen)
        known.played.extend(scenario for _, scenario in played)
        scenarios = (report.ScenarioReport.of(suite, number, scenario) for number, scenario in played)
        return report.FileReport(file, shown, scenarios=tuple(scenarios))

    async def text(
        self, submission: Submission, flow_id: str, tests: bytes, most_s: float
    ) -> report.ScenarioVerdict:
        try:
            reading = parsing.read_scenarios(tests)
            installed = await self.bench.install(submission, flow_id)
            suite = reading.suite(*parsing.unknown_names(reading, installed.flow))
        except yaml_text.FileRejected as rejected:
            findings = [Finding(m.pointer, m.code, f"line {m.line}: {m.message}") for m in rejected.mistakes]
            raise CorrectTheInput("tests_invalid", "the YAML cannot be played", findings) from None
        try:
            async with asyncio.timeout(most_s):
                played = await running.play_all(suite, installed, perf_counter)
        except TimeoutError:
            told = f"the scenarios take longer than {most_s:g} s: send them in parts"
            raise CorrectTheInput("tests_too_long", told, [Finding("/scenarios", "too_long", told)]) from None
        return report.verdict([report.ScenarioReport.of(suite, *each) for each in played], installed.flow)

    def flow_reports(self) -> tuple[report.FlowReport, ...]:
        return tuple(
            report.FlowReport(
                known.shown,
                known.installed.flow.version_id,
                running.measure(known.installed.flow, known.played),
            )
            for known in self._flows.values()
            if known.played
        )

    def document_of(self, path: Path, reading: parsing.Reading) -> Path:
        """Raises FileRejected with every mistake of a file that names no flow."""
        if self._options.flow is not None:
            return self._options.flow.resolve()
        if reading.flow is None:
            message = "'flow' is missing: the path of a version document, or give --flow"
            missing = yaml_text.Mistake(1, "/flow", "missing", message)
            raise yaml_text.FileRejected([*reading.mistakes, missing])
        if not isinstance(reading.flow, str) or not reading.flow:
            raise yaml_text.FileRejected(reading.mistakes)
        return (path.parent / reading.flow).resolve()

    async def known_flow(self, document: Path, shown: str, reading: parsing.Reading) -> _Known:
        """Installed once a run, whichever files ask for it. Raises FileRejected with every mistake of a file
        whose flow cannot be used."""
        if document not in self._flows:
            try:
                installed = await self.install(document)
            except _FlowRefused as refused:
                line = reading.root.line_of(("flow",))
                unusable = [
                    yaml_text.Mistake(line, "/flow", "flow_unusable", f"{shown}{message}")
                    for message in refused.messages
                ]
                raise yaml_text.FileRejected([*reading.mistakes, *unusable]) from None
            self._flows[document] = _Known(shown, installed)
        return self._flows[document]

    async def install(self, document: Path) -> InstalledFlow:
        limits = self._options.limits
        place = ""
        try:
            text = read_bounded(document, 2 * limits.max_bytes)  # a sample has its wrapping and white space
            file = unwrapped(parse_json(text, limits), text)
            place = file.place
            submission = self._submissions.check(
                orjson.dumps(file.version),
                flow_id=file.flow_id,
                created_by=AUTHOR,
                now=START,
                changed=file.changed,
            )
            return await self.bench.install(submission, file.flow_id)
        except OSError as error:
            raise _FlowRefused([f": {error.strerror or 'it cannot be read'}"]) from None
        except CorrectTheInput as refused:
            messages = [f":{place + f.pointer or '/'}: {f.code} {f.message}" for f in refused.findings]
            raise _FlowRefused(messages or [f": {refused.detail}"]) from None
        except FlowEngineError as refused:
            accepted = refused.accepted if isinstance(refused, ReloadAndDecide) else ()
            told = "; accepted: " if accepted else ""
            raise _FlowRefused([f": {refused.detail}{told}{', '.join(accepted)}"]) from None


def _shown(document: Path) -> str:
    """The path from here, which is shorter to read."""
    return format_filename(os.path.relpath(document))


def read_bounded(path: Path, at_most: int) -> bytes:
    """One byte more than `at_most` at most: whoever parses it refuses what is longer."""
    with path.open("rb") as file:
        return file.read(at_most + 1)
