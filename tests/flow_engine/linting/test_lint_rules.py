"""Every warning is given where it is due, and only there."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from flow_engine.documents import parse_version
from flow_engine.linting import CODES, MAX_FINDINGS, lint
from flows.samples import SampleFlow, load_samples
from tests.flow_engine.documents.samples import ENVIRONMENT
from tests.flow_engine.linting.cases import CASES, Case, add
from tests.flow_engine.linting.versions import (
    BOOKING,
    OPERATOR,
    WELCOME,
    found,
    multi,
    reasons,
    required,
    sound_version,
    task,
    tool,
)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)


def test_the_sound_version_has_no_findings() -> None:  # F9
    assert found(sound_version()) == []


@each_case
def test_what_is_suspicious_is_told_once_and_nothing_else_is(case: Case) -> None:  # F9
    raw = sound_version()
    case.bad(raw)
    told = [(place, code) for place, code in found(raw) if code not in case.also]
    assert told == [(place, case.code) for place in case.places]
    assert {code for _, code in found(raw)} == {case.code} | case.also


@each_case
def test_what_is_close_to_it_and_sound_is_not_told(case: Case) -> None:  # F9
    raw = sound_version()
    case.good(raw)
    assert found(raw) == []


def test_every_warning_has_its_case() -> None:  # F9
    warnings = {code for code, row in CODES.items() if row.severity == "warning"}
    assert {case.code for case in CASES} == warnings - {"more_findings"}


@pytest.mark.parametrize("sample", load_samples(), ids=lambda sample: sample.flow_id)
def test_the_samples_have_no_findings(sample: SampleFlow) -> None:  # F9
    assert lint(parse_version(orjson.loads(sample.document)), ENVIRONMENT) == []


def test_what_can_never_have_a_value_is_no_fault_of_a_condition() -> None:  # F9
    raw = sound_version()
    raw["variables"][1]["enumValues"] = []
    booking = raw["tasks"][BOOKING]
    booking["transitionParameters"].append(required("size"))
    booking["entryCondition"] = {"when": "has(vars.day)", "reason": "the day first"}
    codes = {finding.code for finding in lint(parse_version(raw), ENVIRONMENT)}
    assert "enum_cannot_match" in codes
    assert "condition_never_true" not in codes


def test_a_draft_is_not_linted() -> None:  # F8
    assert found(sound_version(draft=True, tasks=[task("a", []), task("b", [])])) == []


@pytest.mark.parametrize("routing", [{"timeout": 5}, {"a": {"b": 1}}, {"a": [1]}, [{}], {}, 5, "x", None])
def test_what_the_schema_leaves_unread_is_not_looked_into(routing: object) -> None:  # F2
    raw = sound_version()
    raw["tasks"][WELCOME]["routingParameters"] = routing
    assert found(raw) == []


def test_the_only_task_is_no_dead_end() -> None:  # F9
    raw = sound_version(tasks=[task("welcome", [], tools=[tool("search"), tool("book")])], checkpoints=[])
    assert {code for _, code in found(raw)} == {"unused_variable"}


def test_a_hostile_version_gets_a_bounded_list() -> None:  # F9
    raw = sound_version()
    raw["variables"][1]["enumValues"] = ["S"] * 5000
    findings = lint(parse_version(raw), ENVIRONMENT)
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].code == "more_findings"
    assert {finding.severity for finding in findings} == {"warning"}


def test_errors_are_told_before_any_number_of_warnings() -> None:  # F9
    raw = sound_version(globalPrompt="{{ $vars.nobody }}" * 1500)
    raw["tasks"][WELCOME]["prompt"] = "{% set x = 1 %}"
    assert found(raw)[0] == ("/tasks/0/prompt", "template_forbidden")


class TestReasons:
    def test_a_required_variable_is_named_with_a_path_that_leaves_it_empty(self) -> None:  # F9
        raw = sound_version()
        raw["tasks"][WELCOME] = task("welcome", ["reception"])
        raw["tasks"].append(task("reception", ["booking", "operator"]))
        [reason] = reasons(raw, "required_variable_never_filled")
        assert "'service'" in reason
        assert "'welcome' → 'reception' → 'booking'" in reason

    def test_the_witness_is_the_path_without_a_tool(self) -> None:  # F9
        raw = sound_version()
        CASES_BY_CODE["required_variable_unfilled_on_path"].bad(raw)
        [reason] = reasons(raw, "required_variable_unfilled_on_path")
        assert "'welcome' → 'chat' → 'choice' → 'booking'" in reason

    def test_the_message_of_the_api_says_what_to_do(self) -> None:  # F9
        raw = sound_version()
        raw["tasks"].append(task("survey", ["welcome"]))
        [finding] = lint(parse_version(raw), ENVIRONMENT)
        assert finding.as_finding().message == f"{finding.reason}. {CODES['unreachable_task'].advice}"


CASES_BY_CODE = {case.code: case for case in CASES}


class TestRequiredVariables:
    def test_a_task_that_requires_an_enum_without_values_is_never_entered(self) -> None:  # F9
        raw = sound_version()
        raw["variables"][1]["enumValues"] = ["", " "]
        raw["tasks"][BOOKING]["transitionParameters"].append(required("size"))
        assert found(raw) == [
            ("/tasks/1/transitionParameters/1", "required_variable_never_filled"),
            ("/variables/1/enumValues", "enum_cannot_match"),
        ]

    def test_a_selection_without_tools_writes_nothing(self) -> None:  # F9
        raw = sound_version()
        raw["tasks"][WELCOME]["mcpToolSelection"][0]["selectedTools"] = []
        codes = {code for _, code in found(raw)}
        assert codes == {"required_variable_never_filled", "unused_mcp_tool"}

    def test_a_tool_of_the_task_itself_comes_too_late_for_its_own_entry(self) -> None:  # F9
        raw = sound_version()
        raw["tasks"][WELCOME]["mcpToolSelection"] = []
        assert raw["tasks"][BOOKING]["mcpToolSelection"]
        assert ("/tasks/1/transitionParameters/0", "required_variable_never_filled") in found(raw)

    def test_the_only_tool_behind_the_closed_task_opens_nothing(self) -> None:  # F9
        """Topology alone would find the chain welcome → booking → tools → operator."""
        raw = sound_version()
        raw["tasks"][WELCOME]["mcpToolSelection"] = []
        raw["tasks"][OPERATOR]["transitionParameters"] = [required("service")]
        assert ("/tasks/2/transitionParameters/0", "required_variable_never_filled") in found(raw)


class TestChannels:
    def test_a_conversation_that_outlives_its_contacts_changes_channels(self) -> None:  # F9 F28
        raw = sound_version()
        add(raw, task("card", ["receipt", "operator"], channels=["phone"], closureConfig=multi()))
        raw["tasks"].append(task("receipt", ["welcome"], channels=["chat", "phone"]))
        raw["closureConfig"] = multi()
        assert found(raw) == []
        raw["tasks"][3]["closureConfig"] = {"multiContact": False}
        raw["tasks"][WELCOME]["closureConfig"] = multi()
        assert ("/tasks/4/channels", "task_unreachable_on_channel") in found(raw)

    def test_only_the_beginning_of_a_stretch_is_told_of_tasks_without_channels(self) -> None:  # F9
        raw = sound_version()
        add(raw, task("card", ["receipt", "operator"], channels=["phone"]))
        raw["tasks"] += [task("receipt", ["thanks"]), task("thanks", ["welcome"])]
        assert found(raw) == [("/tasks/4", "task_unreachable_on_channel")]


class TestTools:
    @pytest.mark.parametrize(
        ("kind", "value", "fits"),
        [
            ("number", "72", True),
            ("number", "-1.5e3", True),
            ("number", "many", False),
            ("boolean", "True", True),
            ("boolean", "1", False),
            ("date", "2026-01-31", True),
            ("date", "tomorrow", False),
            ("string", "", True),
            ("custom", "anything", True),
        ],
    )
    def test_a_fixed_value_should_pass_for_the_type_it_has_elsewhere(  # F9
        self, kind: str, value: str, fits: bool
    ) -> None:
        raw = sound_version()
        raw["variables"].append({"_id": "x", "name": "x", "type": kind, "prompt": "x"})
        add(
            raw,
            task("one", ["welcome"], tools=[tool("book", x=("variable", "x"))]),
            task("two", ["welcome"], tools=[tool("book", x=("fixed", value))]),
        )
        place = "/tasks/4/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue"
        assert found(raw) == ([] if fits else [(place, "parameter_type_mismatch")])

    def test_an_enum_of_numbers_is_met_by_the_text_of_one(self) -> None:  # F9
        raw = sound_version()
        raw["variables"][1]["enumValues"] = [250, 500]
        add(raw, task("again", ["welcome"], tools=[tool("book", size=("fixed", "250"))]))
        assert found(raw) == []


class TestUnusedVariables:
    @pytest.mark.parametrize("key", ["$vars[$task.id]", "$values[ $task.name ]"])
    def test_a_computed_key_may_read_any_of_them(self, key: str) -> None:  # F9
        raw = sound_version(globalPrompt="{{ " + key + " }}")
        raw["variables"].append({"_id": "floor", "name": "floor", "type": "number", "prompt": "Which floor"})
        assert found(raw) == []


# Each was a minute's work and more before what stands between two tasks, what kinds an enum's values have and
# what a list holds were looked up.
def _automatic() -> dict[str, Any]:
    names = [f"t{number}" for number in range(290)]
    raw = sound_version(variables=[{"_id": "n", "name": "n", "type": "number", "prompt": "x"}])
    automatic = {"when": "vars.n > 1", "advance": "auto"}
    raw["tasks"] = [
        task(each, onward, connectionConditions=dict.fromkeys(onward, automatic))
        for number, each in enumerate(names)
        for onward in [[names[(number + step) % len(names)] for step in range(1, 34)]]
    ]
    return {**raw, "firstTask": "t0"}


def _listed(variable: dict[str, Any]) -> dict[str, Any]:
    among = ",".join(f"'{number:x}'" for number in range(300))
    raw = sound_version(variables=[{"_id": "a", "name": "a", "prompt": "x", **variable}])
    raw["tasks"] = [
        task(f"t{number}", [after], connectionConditions={after: {"when": f"vars.a in [{among}]"}})
        for number in range(250)
        for after in [f"t{(number + 1) % 250}"]
    ]
    return {**raw, "firstTask": "t0"}


@pytest.mark.parametrize(
    "raw",
    [
        _automatic(),
        _listed({"type": "string"}),
        _listed({"type": "enum", "enumValues": [f"{number:x}" for number in range(40_000)]}),
    ],
    ids=["a dense graph", "long lists", "a long enum"],
)
def test_conditions_as_large_as_a_document_may_be_are_linted_in_seconds(raw: dict[str, Any]) -> None:  # F9
    began = time.process_time()
    found(raw)
    assert time.process_time() - began < 8


def _with_parameters(*assigned: tuple[str, str, int], **enum: list[Any]) -> dict[str, Any]:
    """One tool, whose parameter `p` is assigned so often by the strategy and value."""
    raw = sound_version()
    raw["variables"] += [
        {"_id": "e", "name": "e", "type": kind, "prompt": "x", "enumValues": values}
        for kind, values in enum.items()
    ]
    raw["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"][0]["toolParameters"] = [
        {"parameterName": "p", "assignmentStrategy": strategy, "assignmentValue": value}
        for strategy, value, times in assigned
        for _ in range(times)
    ]
    return raw


def _many_writers() -> dict[str, Any]:
    raw = sound_version()
    raw["variables"].append({"_id": "card", "name": "card", "type": "custom"})
    raw["tasks"][WELCOME]["mcpToolSelection"][0]["selectedTools"] = [
        {"toolName": "search", "writes": ["service"]}
    ] * 9_000
    raw["tasks"][BOOKING]["transitionParameters"] = [required("card")] * 9_000
    return raw


def _many_globals() -> dict[str, Any]:
    raw = sound_version(globalTasks=["operator"] * 40_000 + ["welcome"])
    raw["tasks"][BOOKING] |= {"connectedTasks": ["operator"], "excludedGlobalTasks": ["welcome"] * 40_000}
    return raw


def _many_languages() -> dict[str, Any]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    languages = [a + b + c for a in letters for b in letters for c in letters]
    raw = sound_version(supportedLanguages=["en-US", *languages])
    messages = [{"language": "q", "text": ""}] * 1_500
    raw["mediaConfig"]["text"]["courtesyMessageConfig"] = {
        "provider": "random",
        "timeout": 3,
        "providerParams": {"messages": messages},
    }
    return raw


@pytest.mark.parametrize(
    "raw",
    [
        _with_parameters(("fixed", "1", 4_000), ("variable", "day", 4_000)),
        _with_parameters(("fixed", "19999", 4_000), ("variable", "e", 1), enum=[*map(str, range(20_000))]),
        _with_parameters(("variable", "e", 8_000), enum=[*range(40_000)]),
        _many_writers(),
        _many_globals(),
        _many_languages(),
    ],
    ids=["parameters", "a long enum", "many numbers", "writers", "global tasks", "languages"],
)
def test_lists_as_long_as_a_document_may_hold_are_linted_in_one_pass(raw: dict[str, Any]) -> None:  # F9
    began = time.process_time()
    found(raw)
    assert time.process_time() - began < 2
