"""One thing that the linter says about a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from flow_engine.errors import Finding
from flow_engine.linting.codes import CODES, Severity
from flow_engine.linting.inspection import Inspection


@dataclass(frozen=True, slots=True)
class LintFinding:
    """`reason` names the tasks and variables it is about; severity and advice are the code's."""

    pointer: str
    code: str
    reason: str

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    @property
    def advice(self) -> str:
        return CODES[self.code].advice

    def as_finding(self) -> Finding:
        """As the API sends it: one message, the reason and then what to do."""
        return Finding(self.pointer, self.code, f"{self.reason}. {self.advice}")


Findings: TypeAlias = Iterable[LintFinding]
Rule: TypeAlias = Callable[[Inspection], Findings]
"""A rule is pure: the same version in the same environment gives the same findings."""
