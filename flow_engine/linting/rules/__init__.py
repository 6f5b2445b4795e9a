"""All rules, in the order in which their findings are listed. Those that can find errors come first."""

from flow_engine.linting.inspection import Rule
from flow_engine.linting.rules import declarations, paths, texts

RULES: tuple[Rule, ...] = (
    *texts.TEXT_RULES,
    *paths.RULES,
    *declarations.RULES,
    *texts.NAME_RULES,
)
