"""The shipped examples say in their own words what the original configs do."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.channels.voice.config.original_configs import KINDS, example, original

_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")

# Where a config speaks to people or to the model: only the placeholders of such a text are business.
_WORDS = re.compile(
    r"""/agent/(id|name)
    |/base_url
    |/greeting/(known|unknown)_customer
    |/lifecycle/on_no_action/body/content
    |/session/instructions
    |/session/tools/\d+/description
    |/session/tools/\d+/parameters/properties/department/enum/\d+
    |/tools/\w+/(on_success/return|on_error/return|pre_steps/\d+/fail_return)/(message|error)""",
    re.VERBOSE,
)


def business_of(config: dict[str, Any]) -> dict[str, Any]:
    """Every leaf by its pointer, with the words taken out of what is only words."""
    return {
        pointer: _PLACEHOLDER.findall(value) if _WORDS.fullmatch(pointer) else value
        for pointer, value in leaves(config, "")
    }


def leaves(value: Any, pointer: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in leaves(inner, f"{pointer}/{name}")]
    if isinstance(value, list) and value:
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, f"{pointer}/{index}")]
    return [(pointer, value)]


def improved(kind: str) -> dict[str, Any]:
    """The original with what the examples do better: they load without a warning, and a switchboard answers
    for whoever it is of."""
    config = original(kind)
    config["agent"]["language"] = example(kind)["agent"]["language"]
    del config["openai"]["temperature"]
    config["openai"]["voice"] = {"restaurant": "sage", "switchboard": "cedar", "medical": "marin"}[kind]
    if kind == "switchboard":
        config["session"]["tools"].append(example(kind)["session"]["tools"][-1])
        config["session"]["instructions"] += " {{agent.name}}"
    return config


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_does_the_same_business_as_the_original(kind: str) -> None:  # V1
    assert business_of(example(kind)) == business_of(improved(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_an_original_is_in_its_example(kind: str) -> None:
    """Texts of two words or more; names of fields and tools are the business itself."""
    words = {value for pointer, value in leaves(original(kind), "") if _WORDS.fullmatch(pointer)}
    own = {value for _, value in leaves(example(kind), "") if isinstance(value, str)}
    shared = {text for text in words & own if " " in text or "/" in text}
    assert shared <= {"http://localhost:3000"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_comparison_notices_every_change_that_is_no_wording(kind: str) -> None:
    """A negative control: each leaf that is not words, changed alone, makes the businesses differ."""
    config = example(kind)
    expected = business_of(config)
    changed = 0
    for pointer, value in leaves(config, ""):
        if _WORDS.fullmatch(pointer):
            continue
        other = copy.deepcopy(config)
        _replace(other, pointer, f"{value} changed")
        assert business_of(other) != expected, pointer
        changed += 1
    assert changed > 40


def _replace(config: Any, pointer: str, value: Any) -> None:
    *way, last = pointer.split("/")[1:]
    for part in way:
        config = config[int(part)] if isinstance(config, list) else config[part]
    config[int(last) if isinstance(config, list) else last] = value
