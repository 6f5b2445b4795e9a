"""Scenarios that speak: what the rules and a scripted model find in what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.harness import clinic
from tests.flow_engine.testing.scene import ORDER, complaints, mistakes, play_steps

ASKED = """
- {change_task: take order}
- {utterance: {src: bot, body: How many grams would you like?}}
"""


def test_what_is_said_is_read_by_the_rules(tmp_path: Path) -> None:  # journal: say
    steps = ASKED + (
        "- {say: 'Five hundred grams: 500 g, by express delivery. Call me on +44 20 7946 0958.'}\n"
        "- expect: {memory: {bagGrams: 500, deliveryMethod: express, customerPhone: '+442079460958'}}\n"
        "- {utterance: 'No, pickup is better.'}\n"
        "- {expect: {memory: {deliveryMethod: express}}}\n"
        "- {read: }\n"
        "- {expect: {memory: {deliveryMethod: pickup}}}\n"
    )
    assert complaints(tmp_path, steps) == []


def test_the_same_words_on_another_day_mean_another_date(tmp_path: Path) -> None:
    said = "- {change_task: take order}\n- {say: Please deliver it tomorrow}\n"
    expected = "- {expect: {memory: {deliveryDate: '2026-03-06'}}}\n"
    head = "start: '2026-03-05T10:00:00+01:00'"
    assert complaints(tmp_path, said + expected, head=head) == []
    assert complaints(tmp_path, said + expected.replace("2026-03-06", "2026-01-16")) == []


@pytest.mark.parametrize("start", ["yesterday", "2026-13-01T00:00:00Z", "'9999-01-01T00:00:00Z'", "3"])
def test_a_start_that_is_no_moment_is_a_mistake(tmp_path: Path, start: str) -> None:
    text = f"scenarios: [{{name: a, start: {start}, steps: [{{wait: 1}}]}}]\n"
    found = mistakes(tmp_path, text)
    assert [(each.pointer, each.code) for each in found] == [("/scenarios/0/start", "wrong_value")]
    assert "RFC 3339" in found[0].message


def test_the_model_is_asked_for_what_the_rules_have_left(tmp_path: Path) -> None:
    steps = ASKED + (
        "- say:\n"
        "    body: 250 grams to 10 Harbour Street\n"
        "    model: {values: {bagGrams: 1000, deliveryAddress: 10 Harbour Street, quantity: many, moon: 1}}\n"
        "- expect: {memory: {bagGrams: 250, deliveryAddress: 10 Harbour Street, quantity: null}}\n"
        "- {say: {body: Or rather to number 12., model: fails}}\n"
        "- {read: {values: {deliveryAddress: 12 Harbour Street}}}\n"
        "- expect: {memory: {deliveryAddress: 12 Harbour Street}}\n"
    )
    assert complaints(tmp_path, steps) == []


def test_values_of_tools_stand(tmp_path: Path) -> None:
    steps = ASKED + (
        "- {memory: {bagGrams: 1000}}\n- {say: 500 grams}\n- {expect: {memory: {bagGrams: 1000}}}\n"
    )
    assert complaints(tmp_path, steps) == []


def test_of_a_tool_and_the_user_the_later_one_is_the_latest(tmp_path: Path) -> None:  # journal: say
    document = json.loads(ORDER.read_text("utf-8"))
    grams = next(each for each in document["version"]["variables"] if each["_id"] == "bagGrams")
    grams["precedence"] = "latest"
    flow = tmp_path / "latest.json"
    flow.write_text(json.dumps(document))
    steps = ASKED + (
        "- {memory: {bagGrams: 1000}}\n- {say: 500 grams}\n"
        "- {expect: {memory: {bagGrams: 500}, conflicts: [bagGrams]}}\n"
        "- {memory: {bagGrams: 250}}\n- {expect: {memory: {bagGrams: 250}}}\n"
    )
    assert complaints(tmp_path, steps, flow=flow) == []


def version(directory: Path) -> Path:
    """The clinic with two checkpoints in its first task, and a transition that takes itself."""
    points = [
        {"_id": "greeted", "name": "Greeted", "prompt": "A greeting", "required": True},
        {"_id": "asked", "name": "Asked why", "prompt": "The reason was asked for", "required": False},
    ]
    document = clinic(checkpoints=points)
    reception = document["tasks"][0]
    reception["enabledCheckpoints"] = points
    reception["connectionConditions"] = {"visit": {"advance": "auto", "when": "vars.var_boolean == true"}}
    path = directory / "version.json"
    path.write_text(json.dumps(document))
    return path


def test_checkpoints_are_reached_as_the_model_says(tmp_path: Path) -> None:
    flow = version(tmp_path)
    steps = (
        "- {expect: {checkpoints: []}}\n"
        "- {say: {body: Good morning, model: {checkpoints: [greeted, moon]}}}\n"
        "- {expect: {checkpoints: [Greeted]}}\n"
        "- {say: {body: Why is that, model: {checkpoints: {asked: It was asked}}}}\n"
        "- {expect: {checkpoints: {includes: [asked]}}}\n"
        "- {expect: {checkpoints: [greeted]}}\n"
    )
    assert complaints(tmp_path, steps, flow=flow)[1:] == [
        "checkpoints: not expected: 'Asked why'; there are: 'Greeted', 'Asked why'"
    ]


def test_a_checkpoint_that_the_flow_lacks_is_a_mistake(tmp_path: Path) -> None:
    text = "scenarios: [{name: a, steps: [{expect: {checkpoints: [moon]}}]}]\n"
    [found] = mistakes(tmp_path, text, flow=version(tmp_path))
    assert (found.pointer, found.code) == ("/scenarios/0/steps/0/expect/checkpoints", "unknown_checkpoint")
    assert found.message == "the flow has no checkpoint 'moon'; accepted are 'Asked why', 'Greeted'"


def test_a_task_that_is_entered_because_of_what_was_said_is_covered(tmp_path: Path) -> None:
    said = "- {say: {body: It is the second visit, model: {values: {var_string: x, var_boolean: true}}}}\n"
    report = play_steps(
        tmp_path, said + "- {expect: {task: visit, advanced: visit}}\n", flow=version(tmp_path)
    )
    assert report.played.failure is None, report.played.failure
    assert report.played.taken == {("reception", "visit")}


def test_nobody_speaks_to_a_conversation_that_is_closed(tmp_path: Path) -> None:
    steps = (
        "- {end_contact: hangup}\n- {wait: 2 minutes}\n- {say: Hello}\n- {expect: {error: contact_ended}}\n"
    )
    assert complaints(tmp_path, steps, flow=ORDER)[:1] in ([], ["8 expect"])
