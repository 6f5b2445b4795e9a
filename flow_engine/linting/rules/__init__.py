"""All rules, in the order in which their findings are told. Those that can find errors come first."""

from __future__ import annotations

from flow_engine.linting.inspection import Rule
from flow_engine.linting.rules import contacts, declarations, names, paths, texts

RULES: tuple[Rule, ...] = (
    *texts.RULES,
    *paths.RULES,
    *declarations.RULES,
    *contacts.RULES,
    *names.RULES,
)
