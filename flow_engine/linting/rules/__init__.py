"""All rules, in the order in which their findings are listed. Those that can find errors come first."""

from flow_engine.linting.inspection import Rule
from flow_engine.linting.rules import conditions, declarations, paths, texts, tools

RULES: tuple[Rule, ...] = (
    *conditions.ERROR_RULES,
    *paths.ERROR_RULES,
    *texts.ERROR_RULES,
    *texts.TEXT_RULES,
    *paths.RULES,
    *conditions.RULES,
    *declarations.RULES,
    *tools.RULES,
    *texts.NAME_RULES,
)
