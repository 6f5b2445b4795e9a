"""V15: recorded calls are replayed, and every HTTP call and frame of the agent is as it was written down.

Each call runs on the config that users wrote, where that is at hand, and on the shipped example of its kind.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from channels.voice.config.loader import ConfigRefused
from tests.channels.voice.config.original_configs import KINDS, example, original
from tests.channels.voice.golden_calls import DIRECTORY, GOLDENS, Golden
from tests.channels.voice.golden_record import record
from tests.channels.voice.golden_texts import at, leaves, resolved, texts
from tests.service_process import ROOT

every_golden = pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)


@pytest.fixture(params=[original, example], ids=["original", "example"])
def source(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    return request.param


@every_golden
def test_a_recorded_call_is_answered_as_written_down(
    golden: Golden, source: Callable[[str], dict[str, Any]]
) -> None:  # V1-V11, V15
    config = source(golden.kind)
    played, expected = golden.played(config), golden.expected(config)
    for number, (did, had_to) in enumerate(zip(played, expected, strict=False), start=1):
        assert did == had_to, f"line {number} of {golden.expected_file.name}"
    assert played[len(expected) :] == []
    assert expected[len(played) :] == []


@every_golden
def test_the_command_for_recording_gives_what_is_written_down(golden: Golden) -> None:  # V15
    assert record(golden) == golden.expected_file.read_bytes()


def test_the_command_for_replays_prints_the_same(
    source: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:  # V1, V15
    golden = Golden("medical_new_patient")  # in which things fail, and are logged
    config = source(golden.kind)
    file = tmp_path / "config.json"
    file.write_bytes(orjson.dumps(config))
    replay = [sys.executable, "-m", "service.cli", "voice", "replay", "--config", str(file)]
    command = [*replay, "--events", str(golden.events), "--audio"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert [orjson.loads(line) for line in done.stdout.splitlines()] == golden.expected(config)
    assert b'"status":500' in done.stderr


CHANGES: list[tuple[str, str, Any]] = [
    ("restaurant_order", "/greeting/known_customer", "Say hello."),
    ("restaurant_order", "/openai/vad/threshold", 0.6),
    ("restaurant_order", "/session/params/callerPhone", "{{agent.name}}"),
    ("restaurant_order", "/session/response_mapping/ctx_init/item_map", "$.items"),
    ("restaurant_order", "/tools/confirm_order/on_success/return/order_id", "$.orderNumber"),
    ("restaurant_order", "/lifecycle/outcome_rules/0/outcome", "sold"),
    ("restaurant_order", "/lifecycle/on_end/body/transcript", "{{transcript_summary}}"),
    ("restaurant_reservation", "/tools/confirm_reservation/body_builder", "confirm_order"),
    (
        "restaurant_cancellation",
        "/tools/cancel_order/pre_steps/1/condition",
        "pre.target_order.status == 'none'",
    ),
    ("restaurant_cancellation", "/lifecycle/on_no_action/condition", "ctx.order_placed"),
    ("restaurant_blocked", "/pre_call_checks/0/block_if", "$.blocked == false"),
    ("restaurant_books", "/tools/check_order_status/params/phone", "{{caller_phone}}"),
    ("switchboard_message", "/tools/leave_message/on_success_flags", []),
    ("switchboard_transfer", "/session/tools/0/name", "put_through"),
    ("medical_appointment", "/tools/confirm_appointment/body/slotId", "{{args.slot}}"),
]


@pytest.mark.parametrize(("name", "pointer", "value"), CHANGES, ids=lambda part: str(part)[:50])
def test_a_change_of_one_field_of_the_config_is_noticed(
    name: str, pointer: str, value: Any, source: Callable[[str], dict[str, Any]]
) -> None:  # V15
    golden = Golden(name)
    config = source(golden.kind)
    assert golden.played(changed(config, pointer, value)) != golden.expected(config)


UNNOTICED = {
    # For logs and metrics, or of use only to who writes the config.
    "/agent/name",
    "/agent/type",
    "/pre_call_checks/0/name",
    # The model is named by the address of its connection, which is none of the frames.
    "/openai/model",
    # A voice that there is not is replaced by the default, which the restaurant has anyway.
    "/openai/voice",
    # "it-ITx" is Italian too.
    "/agent/language",
    # Kept for templates that these configs do not have.
    "/session/response_mapping/ctx_init/avg_prep_time_min",
    "/session/response_mapping/ctx_init/delivery_enabled",
    "/session/response_mapping/ctx_init/patient_name",
    # What comes last or nowhere stays there.
    "/lifecycle/outcome_rules/2/priority",
    "/lifecycle/outcome_rules/4/priority",
}
UNNOTICED_OF_SOME = {
    "switchboard": {"/agent/id", "/greeting/known_customer", "/greeting/condition_field"},
    # Its outcome goes to the log only; the recorded sessions have no tools.
    "medical": {
        "/session/response_mapping/tools",
        "/tools/confirm_appointment/on_success_flags/0",
        "/tools/leave_message/on_success_flags/0",
        *(
            f"/lifecycle/outcome_rules/{rule}/{field}"
            for rule in range(3)
            for field in ("flag", "outcome", "priority")
        ),
    },
}


@pytest.mark.parametrize(
    ("kind", "section"),
    [(kind, section) for kind in KINDS for section in example(kind) if section != "version"],
)
@pytest.mark.long
def test_a_change_anywhere_in_a_config_is_noticed_by_some_golden_call(kind: str, section: str) -> None:  # V15
    config = example(kind)
    goldens = [(golden, golden.expected(config)) for golden in GOLDENS if golden.kind == kind]
    unnoticed: set[str] = set()
    for pointer, value in leaves(config[section], f"/{section}"):
        after = changed(config, pointer, another(value))
        try:
            if all(golden.played(after) == expected for golden, expected in goldens):
                unnoticed.add(pointer)
        except ConfigRefused:
            pass  # noticed even before a call
    assert unnoticed <= UNNOTICED | UNNOTICED_OF_SOME.get(kind, set())


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 100 if isinstance(value, int) else value / 2
        case None:
            return "something"
        case _:
            return f"{value}x"


def changed(config: dict[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    after = copy.deepcopy(config)
    place, _, name = pointer.rpartition("/")
    within = at(after, place)
    within[int(name) if isinstance(within, list) else name] = value
    assert after != config
    return after


def test_every_kind_of_config_has_golden_calls_and_no_expectation_is_left_over() -> None:  # V15
    assert {golden.kind for golden in GOLDENS} == set(KINDS)
    expected = {golden.expected_file for golden in GOLDENS}
    assert expected == set(DIRECTORY.glob("*.expected.jsonl"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_golden_files_say_nothing_that_an_original_says(kind: str) -> None:
    said = "\n".join(file.read_text("utf-8") for file in DIRECTORY.iterdir())
    sentences = [text for _, text in texts(original(kind)) if len(re.sub("{{.*?}}", "", text).split()) > 2]
    assert sentences
    assert [sentence for sentence in sentences if sentence in said] == []


CONFIG = {"agent": {"id": "a-1"}, "said": "Hello {{who}}", "base_url": "https://x.example"}


class TestReferences:
    @pytest.mark.parametrize(
        ("expected", "means"),
        [
            ({"$config": "/said", "with": {"who": "Ada"}}, "Hello Ada"),
            ({"a": {"$config": "/none"}, "b": 1}, {"b": 1}),
            ([{"$config": "/none"}, 1], [1]),
            ({"$config": "/none", "else": "x"}, "x"),
            ({"$config": "/agent/id", "but": {"a-1": {"$config": "/base_url"}}}, "https://x.example"),
            ("${/base_url}/${/agent/id}", "https://x.example/a-1"),
            ({"$json": {"id": {"$config": "/agent/id"}}}, '{"id":"a-1"}'),
        ],
    )
    def test_a_reference_stands_for_what_the_config_says(self, expected: Any, means: Any) -> None:
        assert resolved(expected, CONFIG) == means

    def test_a_text_around_what_the_config_lacks_is_a_mistake(self) -> None:
        with pytest.raises(LookupError, match="/none"):
            resolved("a ${/none}", CONFIG)
