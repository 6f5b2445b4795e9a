"""The one table of codes, `codes.toml`, from which `docs/lint.md` is written, and what a finding says by it.

Errors refuse a save. Those of the schema and of references are found while a document is parsed
(`flow_engine/documents`), those of templates by the linter's own rules, as all warnings are.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, TypeAdapter

from flow_engine.errors import Finding

Severity = Literal["error", "warning"]


class Code(BaseModel):
    """What is known about a code, whatever document it is found in.

    `title` says what is found, `why` what happens in a conversation because of it, `advice` what to do about
    it, `example` shows it in a document. All but the title are whole sentences or JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    title: str
    why: str
    advice: str
    example: str


_ROWS = TypeAdapter(dict[str, dict[str, str]]).validate_python(
    tomllib.loads(files("flow_engine.linting").joinpath("codes.toml").read_text("utf-8"))
)
CODES: Mapping[str, Code] = {code: Code.model_validate({"code": code, **row}) for code, row in _ROWS.items()}
"""By code, in the order of the page. Read at the import, which fails when a row lacks something."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing that the linter says about a version. `pointer` is an RFC 6901 pointer into the document;
    `reason` names the tasks and variables it is about; severity and advice are the code's."""

    pointer: str
    code: str
    reason: str

    @property
    def severity(self) -> Severity:
        """Raises KeyError for a code that the table lacks."""
        return CODES[self.code].severity

    def as_finding(self) -> Finding:
        """As the API sends it: one message, the reason and then what to do. One line. Raises KeyError for a
        code that the table lacks."""
        return Finding(self.pointer, self.code, f"{self.reason.rstrip('.')}. {CODES[self.code].advice}")


Findings: TypeAlias = Iterable[LintFinding]
