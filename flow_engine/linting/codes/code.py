"""What is known about a code, whatever document it is found in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Code:
    """`title` says what is found, `why` what happens in a conversation because of it, `advice` what to
    do about it, `example` shows it in a document. All but the title are whole sentences or JSON."""

    code: str
    severity: Severity
    title: str
    why: str
    advice: str
    example: str
