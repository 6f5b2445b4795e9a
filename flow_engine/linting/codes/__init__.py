"""The one table of codes: severity, meaning and advice. `docs/lint.md` is written from it.

Errors refuse a save. Those of the schema and of references are found while a document is parsed
(`flow_engine/documents`), those of templates by the linter's own rules, as all warnings are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flow_engine.linting.codes.code import Code, Severity
from flow_engine.linting.codes.errors import ERRORS
from flow_engine.linting.codes.warnings import CONVERSATION_WARNINGS
from flow_engine.linting.codes.warnings_of_paths import PATH_WARNINGS

CODES: Mapping[str, Code] = MappingProxyType(
    {row.code: row for row in (*ERRORS, *PATH_WARNINGS, *CONVERSATION_WARNINGS)}
)

__all__ = ["CODES", "Code", "Severity"]
