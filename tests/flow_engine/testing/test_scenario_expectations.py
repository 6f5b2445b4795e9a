"""Every expectation that does not hold says what was expected, what was found, and what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from flow_engine.testing.format import ExpectBody
from tests.flow_engine.testing.scene import CLAIM, complaints

CART = """\
- memory:
    - varId: cart
      value: {count: 1, gift: true}
      updatedBy: update_cart
      descriptionForLLM: [{name: items, value: 1 x Darjeeling}]
"""

DIFFERENCES = {
    "task": ("- expect: {task: take order}", "task: expected 'take order', found 'welcome'"),
    "type": ("- expect: {type: HUM}", "type: expected 'HUM', found 'AIO'"),
    "status": (
        "- change_task: colleague\n- expect: {status: connected}",
        "status: expected 'connected', found 'routing'",
    ),
    "status null": (
        "- change_task: colleague\n- expect: {status: null}",
        "status: expected null, found 'routing'",
    ),
    "conversation": (
        "- expect: {conversation: closed}",
        "conversation: expected 'closed', found 'active'",
    ),
    "language": ("- expect: {language: es-ES}", "language: expected 'es-ES', found 'en-US'"),
    "command": (
        "- change_task: take order\n- expect: {command: /start}",
        "command: expected '/start', found '/start_task take order AIO'",
    ),
    "command null": ("- expect: {command: null}", "command: expected null, found '/start'"),
    "command of a step without one": (
        "- utterance: hi\n- expect: {command: /start}",
        "command: expected '/start', found null",
    ),
    "reachable": (
        "- change_task: take order\n- expect: {reachable: [goodbye, payment, colleague]}",
        "reachable: not there: 'payment'; not expected: 'delivery', 'welcome'; there are: "
        "'delivery' (needs cart), 'welcome', 'colleague', 'goodbye'",
    ),
    "reachable includes": (
        "- expect: {reachable: {includes: [goodbye, payment]}}",
        "reachable: not there: 'payment'; there are: 'take order', 'order status' (needs orderNumber), "
        "'complaint', 'colleague', 'goodbye'",
    ),
    "not_reachable": (
        "- expect: {not_reachable: [payment, complaint]}",
        "not_reachable: 'complaint' can be reached from 'welcome' on phone",
    ),
    "unmet": (
        "- expect: {unmet: [complaint]}",
        "unmet: not there: 'complaint'; there are: none",
    ),
    "suggested": (
        "- expect: {suggested: [complaint]}",
        "suggested: not there: 'complaint'; there are: none",
    ),
    "advanced": (
        "- utterance: hi\n- expect: {advanced: complaint}",
        "advanced: expected 'complaint', the conversation did not go on by itself",
    ),
    "checkpoints": (
        "- expect: {checkpoints: [Total told]}",
        "checkpoints: not there: 'Total told'; there are: none",
    ),
    "stale": ("- expect: {stale: [quantity]}", "stale: not there: 'quantity'; there are: none"),
    "conflicts": ("- expect: {conflicts: [cart]}", "conflicts: not there: 'cart'; there are: none"),
    "mcp_tools": (
        "- change_task: take order\n- expect: {mcp_tools: [order_status, update_cart]}",
        "mcp_tools: not there: 'order_status'; not expected: 'search_products'; there are: "
        "'search_products', 'update_cart'",
    ),
    "mcp_tools includes": (
        "- expect: {mcp_tools: {includes: [order_status]}}",
        "mcp_tools: not there: 'order_status'; there are: none",
    ),
    "memory": (
        "- memory: {quantity: 3}\n- expect: {memory: {quantity: 4, giftWrap: null}}",
        "memory: 'quantity': expected 4, found 3, written by 'flow-test'",
    ),
    "memory null": (
        "- memory: {giftWrap: false}\n- expect: {memory: {giftWrap: null}}",
        "memory: 'giftWrap': expected null, found false, written by 'flow-test'",
    ),
    "memory without a value": (
        "- expect: {memory: {quantity: 1}}",
        "memory: 'quantity': expected 1, found null",
    ),
    "memory tells true from one": (
        CART + "- expect: {memory: {cart: {count: true, gift: true}}}",
        'memory: \'cart\': expected {"count":true,"gift":true}, found {"count":1,"gift":true}, '
        "written by 'update_cart'",
    ),
    "memory of an impossible value": (
        "- expect: {memory: {bagGrams: 750}}",
        "memory: 'bagGrams' can never hold 750: accepted is one of 250, 500, 1000",
    ),
    "prompt_contains": (
        "- expect: {prompt_contains: [Memory, The memory was empty]}",
        "prompt_contains: 'The memory was empty' is not in the prompt; the nearest line is "
        "'The memory is empty: no value is known.'",
    ),
    "prompt_contains nothing like it": (
        "- expect: {prompt_contains: xyzzy}",
        "prompt_contains: 'xyzzy' is not in the prompt",
    ),
    "prompt_lacks": (
        "- expect: {prompt_lacks: no value is}",
        "prompt_lacks: 'no value is' is in the prompt, in the line 'The memory is empty: no value is known.'",
    ),
    "refused of another code": (
        "- change_task: goodbye\n- change_task: goodbye\n- expect: {refused: task_unknown}",
        "refused: expected task_unknown, but change_task was refused with already_in_task: "
        "the conversation is in task 'goodbye' already; reachable tasks: 'welcome'",
    ),
    "refused when it went through": (
        "- change_task: goodbye\n- expect: {refused: task_unknown}",
        "refused: expected task_unknown, but change_task went through",
    ),
    "refused when it was an error": (
        "- memory: {nothing: 1}\n- expect: {refused: task_unknown}",
        "refused: expected task_unknown, but memory failed with memory_invalid: "
        "nothing of the batch was stored",
    ),
    "missing": (
        "- change_task: order status\n- expect: {missing: [orderNumber, cart]}",
        "missing: expected 'orderNumber', 'cart', found 'orderNumber'",
    ),
    "missing when nothing was refused": (
        "- expect: {missing: [cart]}",
        "missing: expected 'cart', but contact went through",
    ),
    "error of another code": (
        "- memory: {bagGrams: 1}\n- expect: {error: value_wrong}",
        "error: expected value_wrong, but memory failed with memory_invalid: nothing of the batch was stored",
    ),
    "error when it went through": (
        "- utterance: hi\n- expect: {error: memory_invalid}",
        "error: expected memory_invalid, but utterance went through",
    ),
    "error when it was refused": (
        "- change_task: moon\n- expect: {error: task_unknown}",
        "error: expected task_unknown, but change_task was refused with task_unknown: there is no task",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_difference_is_told(tmp_path: Path, case: str) -> None:
    steps, told = DIFFERENCES[case]
    place, *messages = complaints(tmp_path, steps)
    assert place.endswith(" expect")
    assert messages[0].startswith(told)
    if not told.endswith(("stored", "no task")):
        assert messages == [told]


def test_every_expectation_can_fail() -> None:
    assert {case.split()[0] for case in DIFFERENCES} == set(ExpectBody.model_fields)


def test_all_differences_of_an_expectation_are_told_together(tmp_path: Path) -> None:
    told = complaints(
        tmp_path,
        "- expect: {task: goodbye, type: AIS, language: es-ES, memory: {quantity: 1, giftWrap: true}}",
    )
    assert told == [
        "5 expect",
        "task: expected 'goodbye', found 'welcome'",
        "type: expected 'AIS', found 'AIO'",
        "language: expected 'es-ES', found 'en-US'",
        "memory: 'quantity': expected 1, found null",
        "memory: 'giftWrap': expected true, found null",
    ]


def test_the_errors_behind_a_problem_are_told_with_an_expectation_of_another(tmp_path: Path) -> None:
    told = complaints(tmp_path, "- memory: {bagGrams: 1}\n- expect: {error: conversation_closed}")
    assert told[-1] == "/0/value enum_value_unknown: 'bagGrams': accepted is one of 250, 500, 1000"


def test_an_error_goes_by_the_problems_code_or_by_that_of_one_of_its_errors(tmp_path: Path) -> None:  # F36
    for code in ("memory_invalid", "enum_value_unknown"):
        assert not complaints(tmp_path, f"- memory: {{bagGrams: 1}}\n- expect: {{error: {code}}}")


def test_values_are_compared_in_their_canonical_form(tmp_path: Path) -> None:  # F5
    assert not complaints(
        tmp_path,
        """\
        - memory: {customerPhone: (415) 555-2671, deliveryDate: "2026-01-16T10:00+01:00", quantity: "2"}
        - expect:
            memory:
              customerPhone: +1 415 555 2671
              deliveryDate: "2026-01-16T09:00:00Z"
              quantity: 2.0
        """,
    )


def test_tasks_and_variables_of_expectations_go_by_id_too(tmp_path: Path) -> None:  # F4
    assert not complaints(
        tmp_path,
        """\
        - change_task: take-order
        - expect: {task: TAKE ORDER, reachable: {includes: [Goodbye]}, not_reachable: [order-status]}
        """,
    )


def test_after_the_end_there_is_no_prompt_and_nothing_to_reach(tmp_path: Path) -> None:
    end = "- end_contact: bye\n"
    told = "the conversation is closed and has no prompt"
    for key in ("prompt_contains", "prompt_lacks"):
        assert complaints(tmp_path, f"{end}- expect: {{{key}: a}}")[1:] == [f"{key}: {told}"]
    assert not complaints(tmp_path, f"{end}- expect: {{reachable: [], task: welcome, status: null}}")


def test_of_many_texts_that_the_prompt_lacks_the_first_are_told_with_the_nearest_line(tmp_path: Path) -> None:
    texts = [f"The memory is empty: value {number}" for number in range(5)]
    found = complaints(tmp_path, f"- expect: {{prompt_contains: {texts}}}")[1:]
    assert ["the nearest line is 'The memory is empty" in line for line in found] == [True] * 3 + [False] * 2


def test_between_contacts_nothing_can_be_reached(tmp_path: Path) -> None:
    steps = "- end_contact:\n- expect: {reachable: {includes: [estado]}}"
    assert complaints(tmp_path, steps, flow=CLAIM)[1:] == [
        "reachable: not there: 'estado del expediente'; there are: none"
    ]


def test_without_a_conversation_the_step_that_failed_is_named(tmp_path: Path) -> None:
    told = complaints(
        tmp_path,
        "- expect: {error: channel_not_supported}\n- expect: {task: welcome, language: en-US}",
        head="channel: mail",
    )
    assert told == [
        "6 expect",
        "task, language: there is no conversation; the step before failed with channel_not_supported",
    ]


def test_an_expectation_changes_nothing(tmp_path: Path) -> None:
    """A routing that has run out of time is seen as failed, and still answers as the engine answers."""
    assert not complaints(
        tmp_path,
        """\
        - change_task: colleague
        - wait: 90
        - expect: {status: failed}
        - expect: {status: failed, command: null}
        - human_task: failed
        - expect: {command: /human_task_failed timeout}
        """,
    )
