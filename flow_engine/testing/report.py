"""What a run of files of scenarios found, and three ways to tell it: lines, JSON, and JUnit's XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

import orjson
from typing_extensions import TypedDict

from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing import parsing, running, yaml_text

PASSED, FAILED = "✓", "✗"
_LEFT_OUT_SHOWN = 40
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """`line` is the scenario's; `failed_at` that of the step that failed. Lines count from 1; None for one
    that passed."""

    line: int
    played: running.Played
    failed_at: int | None

    @classmethod
    def of(cls, suite: parsing.Suite, number: int, played: running.Played) -> ScenarioReport:
        failure = played.failure
        failed_at = None if failure is None else suite.line_of_step(number, failure.step)
        return cls(suite.line_of_scenario(number), played, failed_at)

    @property
    def passed(self) -> bool:
        return self.played.failure is None


@dataclass(frozen=True, slots=True)
class FileReport:
    """Either `mistakes`, for which nothing was run, or the scenarios that were."""

    file: str
    flow: str
    mistakes: tuple[yaml_text.Mistake, ...] = ()
    scenarios: tuple[ScenarioReport, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowReport:
    """How much of a flow all files together walked through. `flow` is the path of its document."""

    flow: str
    version_id: str
    coverage: running.Coverage


@dataclass(frozen=True, slots=True)
class Minimum:
    """Percentages that the coverage of every flow must reach. 0 to 100 %."""

    tasks: float = 0.0
    transitions: float = 0.0


@dataclass(frozen=True, slots=True)
class RunReport:
    files: tuple[FileReport, ...]
    flows: tuple[FlowReport, ...]
    minimum: Minimum

    @property
    def scenarios(self) -> list[ScenarioReport]:
        return [scenario for file in self.files for scenario in file.scenarios]

    @property
    def failed(self) -> int:
        return sum(not scenario.passed for scenario in self.scenarios)

    @property
    def unreadable(self) -> bool:
        return any(file.mistakes for file in self.files)

    @property
    def shortfalls(self) -> list[str]:
        """A line for each coverage that is too low. In %. Empty when every minimum is reached."""
        return [
            f"{report.flow}: {what} coverage is {_percent(share)}, the minimum is {least:g} %"
            for report in self.flows
            for what, share, least in (
                ("task", report.coverage.tasks, self.minimum.tasks),
                ("transition", report.coverage.transitions, self.minimum.transitions),
            )
            if share.percent < least
        ]


def _percent(share: running.Share) -> str:
    """Rounded down, so that 100 % is all of it."""
    return f"{int(share.percent * 10) / 10:g} %"


# --- lines ------------------------------------------------------------------------------------


def lines(report: RunReport) -> Iterator[str]:
    """What a terminal shows: each scenario with its time in ms and its failure, coverage in percent."""
    for file in report.files:
        if file.scenarios:
            yield file.file
        for scenario in file.scenarios:
            played, failure = scenario.played, scenario.played.failure
            mark = PASSED if failure is None else FAILED
            yield f"  {mark} {played.name} ({played.seconds * 1000:.0f} ms)"
            if failure is not None:
                yield f"      {file.file}:{scenario.failed_at}: {failure.kind}"
                yield from (f"        {message}" for message in failure.messages)
    for flow in report.flows:
        yield f"{flow.flow} ({flow.version_id})"
        yield from _share_lines("tasks", "entered", flow.coverage.tasks)
        yield from _share_lines("transitions", "taken", flow.coverage.transitions)
    yield from (f"{FAILED} {shortfall}" for shortfall in report.shortfalls)
    seconds = sum(scenario.played.seconds for scenario in report.scenarios)
    passed = len(report.scenarios) - report.failed
    yield f"{passed} passed, {report.failed} failed, {seconds * 1000:.0f} ms"


def mistake_lines(report: RunReport) -> Iterator[str]:
    """`file:line: pointer code: message` for each mistake of a file that could not be used. Lines for
    standard error."""
    for file in report.files:
        for mistake in file.mistakes:
            yield f"{file.file}:{mistake.line}: {mistake.pointer or '/'} {mistake.code}: {mistake.message}"


def _share_lines(what: str, how: str, share: running.Share) -> Iterator[str]:
    yield f"  {what}: {share.reached} of {share.total}, {_percent(share)}"
    if share.left_out:
        rest = len(share.left_out) - _LEFT_OUT_SHOWN
        more = f", and {rest} more" if rest > 0 else ""
        yield f"    not {how}: {', '.join(share.left_out[:_LEFT_OUT_SHOWN])}{more}"


# --- JSON -------------------------------------------------------------------------------------


def as_json(report: RunReport) -> bytes:
    """`{passed, failed, files, flows, shortfalls}`; a coverage lists everything that was left out. Indented
    JSON in UTF-8, shares in percent."""
    return orjson.dumps(
        {
            "passed": len(report.scenarios) - report.failed,
            "failed": report.failed,
            "files": [
                {
                    "file": file.file,
                    "flow": file.flow,
                    "mistakes": file.mistakes,
                    "scenarios": [
                        {
                            "name": scenario.played.name,
                            "line": scenario.line,
                            "passed": scenario.passed,
                            "seconds": round(scenario.played.seconds, 6),
                            "failure": _failure_row(scenario),
                        }
                        for scenario in file.scenarios
                    ],
                }
                for file in report.files
            ],
            "flows": [
                {
                    "flow": flow.flow,
                    "versionId": flow.version_id,
                    "tasks": _share_object(flow.coverage.tasks),
                    "transitions": _share_object(flow.coverage.transitions),
                }
                for flow in report.flows
            ],
            "shortfalls": report.shortfalls,
        },
        option=orjson.OPT_INDENT_2,
    )


def _share_object(share: running.Share) -> ShareTold:
    return ShareTold(
        reached=share.reached,
        total=share.total,
        percent=round(share.percent, 2),
        leftOut=share.left_out,
    )


def _failure_row(scenario: ScenarioReport) -> FailureRow | None:
    failure = scenario.played.failure
    return failure and FailureRow(line=scenario.failed_at, step=failure.kind, messages=failure.messages)


class FailureRow(TypedDict):
    """Why a scenario failed: the YAML's `line`, from 1, the kind of step that it holds, what is wrong."""

    line: int | None
    step: str
    messages: Sequence[str]


class ScenarioRow(TypedDict):
    """`failure` is null for one that passed."""

    name: str
    passed: bool
    failure: FailureRow | None


class ShareTold(TypedDict):
    """`percent` is a share of 100; `leftOut` are names of tasks, or of two with an arrow between them."""

    reached: int
    total: int
    percent: float
    leftOut: Sequence[str]


# `from` is a keyword of Python, hence the functional form.
TakenConnection = TypedDict("TakenConnection", {"from": str, "to": str})


class CoverageTold(TypedDict):
    """What of a flow was walked through: `entered` are ids of tasks, `taken` pairs of them."""

    tasks: ShareTold
    transitions: ShareTold
    entered: Sequence[str]
    taken: Sequence[TakenConnection]


class ScenarioVerdict(TypedDict):
    """Counts of scenarios, each of them, and what they walked through together."""

    passed: int
    failed: int
    scenarios: Sequence[ScenarioRow]
    coverage: CoverageTold


def verdict(scenarios: Sequence[ScenarioReport], flow: CompiledFlow) -> ScenarioVerdict:
    """The scenarios of one text, played on that flow, as JSON values. Lines count from 1."""
    passed = sum(scenario.passed for scenario in scenarios)
    played = [scenario.played for scenario in scenarios]
    measured = running.measure(flow, played)
    entered = {task for each in played for task in each.entered}
    taken = {arc for each in played for arc in each.taken}
    arcs = ((plan.id, target) for plan in flow.tasks.values() for target in plan.connected)
    return ScenarioVerdict(
        coverage=CoverageTold(
            tasks=_share_object(measured.tasks),
            transitions=_share_object(measured.transitions),
            entered=[task for task in flow.tasks if task in entered],
            taken=[TakenConnection({"from": arc[0], "to": arc[1]}) for arc in arcs if arc in taken],
        ),
        passed=passed,
        failed=len(scenarios) - passed,
        scenarios=[
            ScenarioRow(
                name=scenario.played.name,
                passed=scenario.passed,
                failure=_failure_row(scenario),
            )
            for scenario in scenarios
        ],
    )


# --- JUnit ------------------------------------------------------------------------------------


def as_junit(report: RunReport) -> bytes:
    """One test suite a file; a file that could not be used is one case with an error. XML in UTF-8, times in
    seconds."""
    root = Xml.Element("testsuites", _counts(report.scenarios, _unusable(report.files)))
    for file in report.files:
        counts = _counts(file.scenarios, _unusable([file]))
        suite = Xml.SubElement(root, "testsuite", {"name": clean(file.file), **counts})
        for scenario in file.scenarios:
            played, failure = scenario.played, scenario.played.failure
            names = {"name": clean(played.name), "classname": clean(file.file)}
            case = Xml.SubElement(suite, "testcase", {**names, "time": f"{played.seconds:.6f}"})
            if failure is not None:
                where = f"{file.file}:{scenario.failed_at}: {failure.kind}"
                add_problem(case, "failure", where, failure.messages)
        if file.mistakes:
            case = Xml.SubElement(suite, "testcase", {"name": "the file", "classname": clean(file.file)})
            mistakes = [f"{m.line}: {m.pointer} {m.code}: {m.message}" for m in file.mistakes]
            add_problem(case, "error", "the file cannot be used", mistakes)
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True)


def add_problem(case: Xml.Element, kind: str, message: str, lines: Iterable[str]) -> None:
    """Of JUnit: `kind` is `failure` or `error`."""
    problem = Xml.SubElement(case, kind, {"message": clean(message)})
    problem.text = clean("\n".join(lines))


def _unusable(files: Iterable[FileReport]) -> int:
    return sum(bool(file.mistakes) for file in files)


def _counts(scenarios: Iterable[ScenarioReport], unusable: int) -> dict[str, str]:
    every = list(scenarios)
    return {
        "tests": str(len(every) + unusable),
        "failures": str(sum(not scenario.passed for scenario in every)),
        "errors": str(unusable),
        "time": f"{sum(scenario.played.seconds for scenario in every):.6f}",
    }


def clean(text: str) -> str:
    """Without the characters that XML cannot hold, even escaped."""
    return _NOT_IN_XML.sub("\ufffd", text)
