"""What the runs of a simulated user found, told as `report` tells it of scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from flow_engine.testing.report import FAILED, PASSED, add_problem, clean
from flow_engine.testing.simulation import Persona, RunVerdict


def pass_k(verdicts: Sequence[RunVerdict]) -> float:
    """pass^k with k of all runs: 1.0 when each of them passed, else 0.0; 0.0 for none."""
    return float(bool(verdicts) and all(verdict.passed for verdict in verdicts))


def as_json(persona: Persona, verdicts: Sequence[RunVerdict]) -> Mapping[str, Any]:
    """JSON values. `passK` is pass^k over all runs, 0 to 1; `results` has each run."""
    passed = sum(verdict.passed for verdict in verdicts)
    return {
        "persona": persona.name,
        "runs": len(verdicts),
        "passed": passed,
        "failed": len(verdicts) - passed,
        "passK": pass_k(verdicts),
        "results": [
            {
                "run": verdict.number,
                "passed": verdict.passed,
                "turns": verdict.turns,
                "failures": verdict.failures,
                "opinion": verdict.opinion
                and {"reached": verdict.opinion.reached, "why": verdict.opinion.why},
            }
            for verdict in verdicts
        ],
    }


def lines(persona: Persona, verdicts: Sequence[RunVerdict]) -> Iterator[str]:
    """What a terminal shows of the runs."""
    yield f"{persona.name}: {persona.goal}"
    for verdict in verdicts:
        mark = PASSED if verdict.passed else FAILED
        yield f"  {mark} run {verdict.number}, {verdict.turns} turns"
        yield from (f"      {line}" for line in verdict.failures)
        if verdict.opinion is not None:
            reached = "reached" if verdict.opinion.reached else "not reached"
            yield f"      a model's opinion: the goal is {reached}: {verdict.opinion.why}"
    passed = sum(verdict.passed for verdict in verdicts)
    yield f"{passed} passed, {len(verdicts) - passed} failed, pass^{len(verdicts)} {pass_k(verdicts):g}"


def as_junit(persona: Persona, verdicts: Sequence[RunVerdict]) -> bytes:
    """One test suite for the persona, a case for each run. XML in UTF-8."""
    failed = str(sum(not verdict.passed for verdict in verdicts))
    counts = {"tests": str(len(verdicts)), "failures": failed, "errors": "0"}
    root = Xml.Element("testsuites", counts)
    suite = Xml.SubElement(root, "testsuite", {"name": clean(persona.name), **counts})
    for verdict in verdicts:
        name = {"name": f"run {verdict.number}", "classname": clean(persona.name)}
        case = Xml.SubElement(suite, "testcase", name)
        if not verdict.passed:
            add_problem(case, "failure", "the run failed", verdict.failures)
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True)
