"""The format is strict: every mistake at once, each with its line, its pointer, and what is accepted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flow_engine.runtime.compiled import compile_flow
from flow_engine.testing.expectations import compared
from flow_engine.testing.format import (
    ChangeTask,
    EndContact,
    Expect,
    ExpectBody,
    HumanTask,
    OpenContact,
    Remember,
    Say,
    Wait,
    every_of,
)
from flow_engine.testing.parsing import read_scenarios, unknown_names
from flow_engine.testing.yaml_text import FileRejected
from tests.flow_engine.documents.samples import minimal_version
from tests.flow_engine.testing.scene import CLAIM, mistakes


def steps_of(text: str) -> list[object]:
    suite = read_scenarios(f"scenarios: [{{name: a, steps: [{text}]}}]".encode()).suite()
    return list(suite.file.scenarios[0].steps)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (150, ["extra_forbidden"] * 100),
        (20_001, ["too_many_errors"]),
    ],
)
def test_of_very_many_mistakes_the_first_are_told_or_how_many_there_are(wrong: int, told: list[str]) -> None:
    steps = ["&a {expect: {nothing: 1}}", *["*a"] * (wrong - 1)]
    with pytest.raises(FileRejected) as caught:
        steps_of(", ".join(steps))
    assert [mistake.code for mistake in caught.value.mistakes] == told


def test_of_very_many_names_that_the_flow_lacks_the_first_are_told(tmp_path: Path) -> None:
    steps = ["&a {expect: {task: nowhere}}", *["*a"] * 149]
    found = mistakes(tmp_path, f"flow: order.en.json\nscenarios: [{{name: a, steps: [{', '.join(steps)}]}}]")
    assert len(found) == 100


def mistake_in(step: str) -> tuple[str, str]:
    with pytest.raises(FileRejected) as caught:
        steps_of(step)
    [mistake] = caught.value.mistakes
    return mistake.pointer.removeprefix("/scenarios/0/steps/0"), mistake.message


def test_every_mistake_is_told_at_once_with_line_and_pointer(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """\
        flows: order.en.json
        scenarios:
          - name: first
            chanel: phone
            steps:
              - change_task: 5
              - expect: {task: welcome, taks: x}
          - name: second
            name: again
            channel: fax
            steps: []
          - steps:
              - {wait: 3, utterance: hello}
              - nothing
              - expect: {}
              - memory: {}
              - end_contact: {closes: maybe}
              - wait: soon
        """,
    )
    assert [(mistake.line, mistake.pointer, mistake.code) for mistake in found] == [
        (1, "/flows", "extra_forbidden"),
        (4, "/scenarios/0/chanel", "extra_forbidden"),
        (6, "/scenarios/0/steps/0/change_task", "string_type"),
        (7, "/scenarios/0/steps/1/expect/taks", "extra_forbidden"),
        (9, "/scenarios/1/name", "duplicate_key"),
        (10, "/scenarios/1/channel", "literal_error"),
        (11, "/scenarios/1/steps", "wrong_value"),
        (12, "/scenarios/2/name", "missing"),
        (13, "/scenarios/2/steps/0/utterance", "extra_forbidden"),
        (14, "/scenarios/2/steps/1", "union_tag_not_found"),
        (15, "/scenarios/2/steps/2/expect", "wrong_value"),
        (16, "/scenarios/2/steps/3/memory", "wrong_value"),
        (17, "/scenarios/2/steps/4/end_contact/closes", "literal_error"),
        (18, "/scenarios/2/steps/5/wait", "wrong_value"),
    ]


@pytest.mark.parametrize("flow", ['{"draft": false, "tasks": []}', '{"flow": {}, "version": {"tasks": []}}'])
def test_a_flow_in_place_of_its_tests_is_told_once(flow: str, tmp_path: Path) -> None:
    [found] = mistakes(tmp_path, flow)
    assert (found.line, found.code) == (1, "flow_given")
    assert "`scenarios`" in found.message


@pytest.mark.parametrize(
    ("step", "place", "accepted"),
    [
        (
            "{shout: hi}",
            "",
            "exactly one key, one of contact, utterance, say, read, memory, tool, change_task",
        ),
        ("{say: {src: bot, body: hi}}", "/say/src", "'body', 'language', 'model'"),
        ("{say: }", "/say/body", "'body' is missing"),
        (
            "{say: {body: hi, model: {value: {}}}}",
            "/say/model/value",
            "'values', 'confidence', 'checkpoints'",
        ),
        ("{read: {checkpoints: 3}}", "/read/checkpoints", "accepted is a mapping"),
        ("{wait: 1, expect: {task: x}}", "/expect", "exactly one key"),
        ("{contact: {channel: fax}}", "/contact/channel", "'phone', 'whatsapp', 'sms', 'mail' or 'chat'"),
        ("{contact: {data: [1]}}", "/contact/data", "a mapping"),
        ("{utterance: {src: caller, body: hi}}", "/utterance/src", "'user', 'bot' or 'agent'"),
        ("{utterance: {text: hi, body: hi}}", "/utterance/text", "'body', 'src', 'language'"),
        ("{utterance: }", "/utterance/body", "'body' is missing"),
        ("{memory: [{varId: x}]}", "/memory/0/value", "'value' is missing"),
        ("{memory: [{varId: x, value: 1, tool: y}]}", "/memory/0/tool", "'updatedBy', 'contactId'"),
        (
            "{memory: [{varId: x, value: 1, descriptionForLLM: [{name: a, text: b, value: c}]}]}",
            "/memory/0/descriptionForLLM/0/text",
            "accepted are 'name', 'value'",
        ),
        ("{memory: 5}", "/memory", "accepted is a mapping of variables to values, or a list of entries"),
        ("{human_task: done}", "/human_task/outcome", "'connected', 'completed', 'failed'"),
        ("{end_contact: {closes: 1.5}}", "/end_contact/closes", "true, false or 'fails'"),
        ("{change_task: }", "/change_task", "accepted is text"),
        ("{wait: 0}", "/wait", "'2 minutes'"),
        ("{wait: -5}", "/wait", "seconds above 0"),
        ("{wait: true}", "/wait", "seconds above 0"),
        ("{wait: 2 weeks}", "/wait", "'3 days'"),
        ("{wait: 99999999 days}", "/wait", "seconds above 0"),
        ("{expect: }", "/expect", "a mapping"),
        ("{expect: {task: null}}", "/expect/task", "leave the key out"),
        ("{expect: {refused: no}}", "/expect/refused", "'task_unknown', 'already_in_task'"),
        (
            "{expect: {conversation: open}}",
            "/expect/conversation",
            "'active', 'between_contacts' or 'closed'",
        ),
        ("{expect: {type: HUMAN}}", "/expect/type", "'AIO', 'AIS' or 'HUM'"),
        ("{expect: {reachable: {contains: [a]}}}", "/expect/reachable/contains", "'exactly', 'includes'"),
        ("{expect: {reachable: {}}}", "/expect/reachable", "`includes` alone"),
        # What holds whatever becomes of the flow is no expectation.
        ("{expect: {reachable: {includes: []}}}", "/expect/reachable", "of one at least"),
        ("{expect: {not_reachable: []}}", "/expect/not_reachable", "a list of at least one"),
        ("{expect: {prompt_contains: []}}", "/expect/prompt_contains", "a list of at least one"),
        ("{expect: {prompt_lacks: []}}", "/expect/prompt_lacks", "a list of at least one"),
        ("{expect: {memory: {}}}", "/expect/memory", "at least one variable"),
        ("{expect: {reachable: welcome}}", "/expect/reachable", "a list of all names, or"),
        ("{memory: {}}", "/memory", "at least one variable with its value"),
        ("{expect: {prompt_lacks: ''}}", "/expect/prompt_lacks/0", "not empty"),
        ("{expect: {missing: cart}}", "/expect/missing", "accepted is a list"),
    ],
)
def test_a_mistake_says_what_is_accepted(step: str, place: str, accepted: str) -> None:
    pointer, message = mistake_in(step)
    assert pointer == place
    assert accepted in message


def test_the_waits_of_a_scenario_end_before_the_calendar_does() -> None:
    with pytest.raises(FileRejected) as caught:
        steps_of(", ".join(["{wait: 3000 days}"] * 2))
    [mistake] = caught.value.mistakes
    assert mistake.pointer == "/scenarios/0"
    assert "together" in mistake.message


def test_short_forms_mean_the_long_ones() -> None:
    pairs = [
        ("{utterance: hi}", "{utterance: {body: hi, src: user}}"),
        ("{contact: }", "{contact: {}}"),
        ("{contact: c2}", "{contact: {id: c2}}"),
        ("{human_task: connected}", "{human_task: {outcome: connected}}"),
        ("{end_contact: }", "{end_contact: {}}"),
        ("{end_contact: bye}", "{end_contact: {reason: bye}}"),
        ("{memory: {a: 1}}", "{memory: [{varId: a, value: 1}]}"),
        ("{wait: 2 minutes}", "{wait: 120}"),
        ("{wait: 1.5hours}", "{wait: 5400}"),
        ("{expect: {reachable: [a]}}", "{expect: {reachable: {exactly: [a]}}}"),
        ("{expect: {prompt_contains: a}}", "{expect: {prompt_contains: [a]}}"),
    ]
    for short, long in pairs:
        assert [str(step) for step in steps_of(short)] == [str(step) for step in steps_of(long)], short


def test_each_step_becomes_its_own_type() -> None:
    text = (
        "{contact: }, {utterance: hi}, {memory: {a: 1}}, {change_task: x}, {human_task: failed},"
        " {end_contact: {closes: fails}}, {wait: 1}, {expect: {command: null}}"
    )
    types = [OpenContact, Say, Remember, ChangeTask, HumanTask, EndContact, Wait, Expect]
    assert [type(step) for step in steps_of(text)] == types


def test_null_is_an_expectation_where_it_means_something() -> None:
    [step] = steps_of("{expect: {status: null, command: null}}")
    assert isinstance(step, Expect)
    assert step.expect.model_fields_set == {"status", "command"}


def test_scenarios_of_one_name_are_refused(tmp_path: Path) -> None:
    [mistake] = mistakes(
        tmp_path,
        """\
        scenarios:
          - {name: same, steps: [wait: 1]}
          - {name: same, steps: [wait: 1]}
        """,
    )
    assert (mistake.line, mistake.code) == (3, "duplicate_name")
    assert "line 2" in mistake.message


def test_names_that_the_flow_lacks_are_mistakes_of_expectations_only(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """\
        scenarios:
          - name: misspelt
            steps:
              - change_task: nowhere
              - memory: {nothing: 1}
              - expect:
                  task: welcom
                  reachable: [cierre, goodbye]
                  not_reachable: [the moon]
                  missing: [basket]
                  memory: {card: null}
                  mcp_tools: {includes: [buy]}
        """,
    )
    assert [(mistake.line, mistake.code) for mistake in found] == [
        (7, "unknown_task"),
        (8, "unknown_task"),
        (9, "unknown_task"),
        (10, "unknown_variable"),
        (11, "unknown_variable"),
        (12, "unknown_tool"),
    ]
    assert "'cierre'" in found[1].message
    assert "'take order'" in found[1].message
    assert "'goodbye', 'colleague'" not in found[1].message


HIDING = """\
        scenarios:
          - name: a
            steps:
              - expect: {task: welcom}
              - chang_task: goodbye
              - expect: {status: 5, task: nowhere}
          - name: a
            steps: [{expect: {missing: [basket]}}]
        """


def test_no_kind_of_mistake_hides_another(tmp_path: Path) -> None:
    found = mistakes(tmp_path, HIDING)
    assert [(mistake.line, mistake.code) for mistake in found] == [
        (4, "unknown_task"),
        (5, "union_tag_not_found"),
        (6, "string_type"),
        (6, "unknown_task"),
        (7, "duplicate_name"),
        (8, "unknown_variable"),
    ]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("status: 5", "string_type"),
        ("tasks: welcome", "extra_forbidden"),
        ("reachable: 5", "wrong_value"),
        ("language: null", "wrong_value"),
    ],
)
def test_a_mistake_of_an_expectation_hides_no_unknown_name_in_it(
    tmp_path: Path, wrong: str, code: str
) -> None:  # F4 F5
    step = f"{{{wrong}, task: nowhere, missing: [basket]}}"
    found = mistakes(tmp_path, f"scenarios: [{{name: a, steps: [expect: {step}]}}]")
    assert sorted(each.code for each in found) == sorted([code, "unknown_task", "unknown_variable"])


def test_each_unknown_name_is_told_with_the_nearest_that_there_are(tmp_path: Path) -> None:  # F4
    step = "{task: deliverry, missing: [quantty, giftWarp]}"
    found = mistakes(tmp_path, f"scenarios: [{{name: a, steps: [expect: {step}]}}]")
    assert [each.message for each in found] == [
        "the flow has no task 'deliverry'; nearest are 'delivery'",
        "the flow has no variable 'quantty'; nearest are 'quantity'",
        "the flow has no variable 'giftWarp'; nearest are 'giftWrap'",
    ]


def test_tasks_and_variables_go_by_id_or_name(tmp_path: Path) -> None:  # F4 F5
    found = mistakes(
        tmp_path,
        "scenarios: [{name: a, steps: [expect: {reachable: {includes: [Estado_del_Expediente, x]}}]}]",
        flow=CLAIM,
    )
    assert "no task 'x'" in found[0].message


def test_every_expectation_is_a_field_with_a_meaning_of_its_own() -> None:
    assert len(ExpectBody.model_fields) == 21


def test_what_a_flow_has_is_listed_once_for_all_expectations() -> None:  # F9
    """Nine seconds before, in which a test over HTTP is not ended either."""
    tools = [{"toolName": f"t{number}"} for number in range(8_000)]
    server = {"name": "s", "url": "https://tools.example.com/s", "includedTools": tools}
    flow = compile_flow(minimal_version(mcpServers=[server]), "hash")
    steps = ["&a {expect: {mcp_tools: {includes: [t7]}}}", *["*a"] * 4_000]
    reading = read_scenarios(f"scenarios: [{{name: a, steps: [{', '.join(steps)}]}}]".encode())
    began = time.process_time()
    assert unknown_names(reading, flow) == []
    assert time.process_time() - began < 2


def test_long_lists_of_names_are_compared_in_one_pass() -> None:  # F9
    given = f"{{mcp_tools: [{', '.join(f't{number}' for number in range(20_000))}]}}"
    step = steps_of(f"{{expect: {given}}}")[0]
    assert isinstance(step, Expect)
    names = every_of(step.expect.mcp_tools)
    began = time.process_time()
    assert list(compared("mcp_tools", step.expect.mcp_tools, names, names, {}, "")) == []
    assert time.process_time() - began < 1
