"""What may be wrong with a version although its schema and its references are sound (F9).

Errors refuse a save, warnings are returned with it. `codes.toml` is the one table of codes, from
which `docs/lint.md` is written; the rules are by theme in `rules/`, each a pure function.
"""

from collections.abc import Iterator
from itertools import islice

from flow_engine.documents import FlowVersion, ReviewEnvironment
from flow_engine.documents.references import texts_of
from flow_engine.errors import Finding
from flow_engine.linting.codes import CODES, LintFinding, Severity
from flow_engine.linting.faults import faults_of
from flow_engine.linting.inspection import Inspection
from flow_engine.linting.rules import RULES

MAX_FINDINGS = 1000
"""Findings of one version: a hostile document of a megabyte could otherwise cause a hundred thousand."""


def lint(version: FlowVersion, environment: ReviewEnvironment) -> list[LintFinding]:
    """Every finding about a version that `parse_version` accepted. Empty for a draft: it never runs (F8)."""
    if version.draft:
        return []
    inspection = Inspection(version, environment)
    found = (finding for rule in RULES for finding in rule(inspection))
    findings = list(islice(found, MAX_FINDINGS))
    if next(found, None) is not None:
        findings.append(
            LintFinding("", "more_findings", f"only the first {MAX_FINDINGS} findings are listed")
        )
    return findings


def lint_errors(raw: object) -> Iterator[Finding]:
    """What `lint` would refuse, as the API sends it, of a document whose schema and references need not be
    sound. None for a draft. `raw` is decoded JSON, whatever it holds."""
    texts = texts_of(raw)
    if texts is not None:
        yield from (fault.as_finding() for fault in faults_of(texts))


__all__ = ["CODES", "MAX_FINDINGS", "LintFinding", "Severity", "lint", "lint_errors"]
