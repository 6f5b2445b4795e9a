"""All rules, in the order in which their findings are told. Those that can find errors come first."""

from __future__ import annotations

from flow_engine.linting.findings import Rule
from flow_engine.linting.rules import (
    channels,
    checkpoints,
    contacts,
    filling,
    humans,
    languages,
    naming,
    templates,
    tools,
    topology,
    variables,
)

RULES: tuple[Rule, ...] = (
    *templates.RULES,
    *languages.RULES,
    *channels.RULES,
    *topology.RULES,
    *filling.RULES,
    *variables.RULES,
    *tools.RULES,
    *checkpoints.RULES,
    *humans.RULES,
    *contacts.RULES,
    *naming.RULES,
)
