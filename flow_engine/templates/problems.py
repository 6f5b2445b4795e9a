"""What can be wrong with a template, by code, and which of it forbids a save."""

from __future__ import annotations

from dataclasses import dataclass

FORBIDDEN = "template_forbidden"
TOO_LARGE = "template_too_large"
TOO_DEEP = "template_too_deep"
SYNTAX = "template_syntax"
JAVASCRIPT = "template_javascript"
UNKNOWN_NAME = "template_unknown_name"
REFERENCE_AS_VALUE = "template_reference_as_value"

ERROR_CODES = frozenset({FORBIDDEN, TOO_LARGE, TOO_DEEP})
"""Hostile or beyond a limit: refused at the save. Every other code is a warning there (F9)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a template. `line` counts from 1."""

    line: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class UnusableTemplate(Exception):
    """The source cannot become a syntax tree. Stays inside this package."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems
