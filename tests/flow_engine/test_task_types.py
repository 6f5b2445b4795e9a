"""One table says what a task type means; a type without its row is noticed at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flow_engine import task_types
from flow_engine.task_types import TASK_KINDS
from flow_engine.vocabulary import TASK_TYPES
from system_prompts.loader import SECTIONS


def test_every_task_type_has_its_row() -> None:
    assert tuple(TASK_KINDS) == TASK_TYPES


@pytest.mark.parametrize("name", TASK_TYPES)
def test_the_prompt_has_the_sections_that_a_row_names(name: str) -> None:  # D3
    kind = TASK_KINDS[name]  # type: ignore[index]
    named = {kind.prompt_section, *kind.status_sections.values()} - {None}
    assert named <= SECTIONS.keys()


@pytest.mark.parametrize(
    "broken",
    [
        replace(TASK_KINDS["AIS"], status_sections={"ai": "human_supervising"}),
        replace(TASK_KINDS["AIS"], events={"taken_over": (("ai", "nobody"),)}),
    ],
)
def test_a_row_that_leaves_something_out_fails_at_the_import(broken: task_types.TaskKind) -> None:
    with pytest.raises(LookupError, match="AIS"):
        task_types._check({"AIS": broken})  # what the module does when it is imported
