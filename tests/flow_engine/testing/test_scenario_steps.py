"""Steps do what agents and tools do, and one that goes wrong unforeseen says what would have gone."""

from __future__ import annotations

from pathlib import Path

from tests.flow_engine.testing.scene import BOOKING, CLAIM, complaints, play_steps


def test_a_refused_change_says_why_and_what_would_be_accepted(tmp_path: Path) -> None:  # F12
    assert complaints(tmp_path, "- change_task: take order\n- change_task: delivery\n- wait: 1") == [
        "6 change_task",
        "refused with missing_variables: task 'delivery' needs variables that have no value yet: 'cart'",
        "expected: the change to be made, or `expect: {refused: missing_variables}` after it",
        "accepted now: 'delivery' (needs cart), 'welcome', 'colleague', 'goodbye'",
        "missing: 'cart' (custom), filled by tool 'search_products' or tool 'update_cart'",
    ]


def test_a_task_that_a_condition_closes_is_told_with_its_reason(tmp_path: Path) -> None:  # F12
    value = "value: {id: 1}, updatedBy: cerca, descriptionForLLM: [{name: id, value: '1'}]"
    known = f"- memory: [{{varId: idPrestazione, {value}}}]\n- change_task: disponibilita"
    told = complaints(tmp_path, f"{known}\n- change_task: prenotazione", flow=BOOKING)
    there = "'prenotazione' (needs dataAppuntamento; Chiedi prima in quale sede.), 'prestazione', 'operatore'"
    assert told[3].startswith(f"accepted now: {there}")
    told = complaints(tmp_path, f"{known}\n- expect: {{reachable: [prestazione]}}", flow=BOOKING)
    assert there in told[1]


def test_what_the_dialogue_can_fill_is_said(tmp_path: Path) -> None:
    told = complaints(tmp_path, "- change_task: order status")
    assert told[-1] == "missing: 'orderNumber' (number), filled by the dialogue"


def test_a_step_that_fails_says_why_and_what_would_be_accepted(tmp_path: Path) -> None:
    assert complaints(
        tmp_path, "- change_task: colleague\n- human_task: completed\n- expect: {task: colleague}"
    ) == [
        "6 human_task",
        "failed with outcome_not_possible: 'completed' does not follow in task 'colleague' (HUM, routing)",
        "expected: no error, or `expect: {error: outcome_not_possible}` after it",
        "accepted now: connected, failed",
    ]


def test_a_rejected_batch_says_every_error(tmp_path: Path) -> None:  # F19
    assert complaints(tmp_path, "- memory: {bagGrams: 1, cart: x, bagGram: 2}")[1:5] == [
        "failed with memory_invalid: nothing of the batch was stored",
        "/0/value enum_value_unknown: 'bagGrams': accepted is one of 250, 500, 1000",
        "/1/descriptionForLLM description_required: custom variable 'cart' needs at least one {name, value} "
        "for the model to read",
        "/2/varId variable_unknown: there is no variable 'bagGram'; nearest are 'bagGrams'",
    ]


def test_the_contact_before_the_first_step_fails_at_the_scenarios_line(tmp_path: Path) -> None:
    told = complaints(tmp_path, "- utterance: hi", head="channel: sms")
    assert told[0] == "2 contact"
    assert told[1].startswith("failed with channel_not_supported")


def test_an_expectation_further_down_does_not_excuse_a_step(tmp_path: Path) -> None:
    steps = "- change_task: moon\n- wait: 1\n- expect: {refused: task_unknown}"
    assert complaints(tmp_path, steps)[0] == "5 change_task"


def test_any_expectation_right_after_a_step_excuses_it(tmp_path: Path) -> None:
    steps = "- change_task: moon\n- expect: {task: welcome}\n- expect: {refused: task_unknown}"
    assert not complaints(tmp_path, steps)


def test_a_refusal_is_of_the_last_step_only(tmp_path: Path) -> None:
    steps = (
        "- change_task: moon\n- expect: {refused: task_unknown}\n- wait: 1\n- expect: {refused: task_unknown}"
    )
    assert complaints(tmp_path, steps)[1] == "refused: expected task_unknown, but wait went through"


def test_the_first_failure_ends_a_scenario(tmp_path: Path) -> None:
    report = play_steps(tmp_path, "- expect: {task: goodbye}\n- change_task: goodbye")
    assert report.played.entered == {"welcome"}
    assert not report.played.taken


def test_the_custom_handler_answers_what_the_step_says(tmp_path: Path) -> None:  # F30
    for closes, conversation in (
        ("true", "closed"),
        ("false", "between_contacts"),
        ("fails", "between_contacts"),
    ):
        steps = f"- end_contact: {{closes: {closes}}}\n- expect: {{conversation: {conversation}}}"
        assert not complaints(tmp_path, steps, flow=CLAIM)
    assert not complaints(tmp_path, "- end_contact:\n- expect: {conversation: between_contacts}", flow=CLAIM)


def test_an_answer_that_nobody_asks_for_is_a_failure(tmp_path: Path) -> None:
    told = complaints(tmp_path, "- end_contact: {closes: true}")
    assert "no customHandler was asked" in told[1]
    assert told[-1] == "accepted: the step without `closes`"
    twice = "- end_contact: {closes: false}\n- end_contact: {closes: true}"
    assert complaints(tmp_path, twice, flow=CLAIM)[0] == "6 end_contact"


def test_time_passes_only_by_waiting(tmp_path: Path) -> None:  # F34
    assert not complaints(
        tmp_path,
        """\
        - expect: {prompt_contains: "Thursday 2026-01-15, 10:00 (Europe/Rome)"}
        - change_task: colleague
        - wait: 89.9 seconds
        - expect: {status: routing}
        - wait: 0.1
        - expect: {status: failed}
        """,
        head="tenant: {timezone: Europe/Rome}",
    )


def test_a_conversation_is_forgotten_a_day_after_its_last_change(tmp_path: Path) -> None:  # F16
    assert not complaints(
        tmp_path,
        """\
        - memory: {quantity: 2}
        - wait: 20 hours
        - utterance: Still here.
        - wait: 20 hours
        - expect: {memory: {quantity: 2}}
        - wait: 4 hours
        - utterance: And now?
        - expect: {error: conversation_unknown}
        - contact: {id: another}
        - expect: {command: /start, memory: {quantity: null}}
        """,
    )


def test_contacts_take_what_they_leave_out_from_the_scenario(tmp_path: Path) -> None:  # F28
    assert not complaints(
        tmp_path,
        """\
        - contact: {data: {name: Ruth}}
        - expect: {language: es-ES, prompt_contains: Greet Ruth by name.}
        - contact: {id: other, language: en-US, channel: chat}
        - expect: {language: en-US, prompt_contains: "Web chat", prompt_lacks: Ruth}
        """,
        head="language: es-ES",
    )


def test_a_scenario_without_a_channel_takes_the_versions_first(tmp_path: Path) -> None:
    steps = "- change_task: documentación\n- expect: {refused: task_not_connected, prompt_contains: correo}"
    assert not complaints(tmp_path, steps, flow=CLAIM, head="language: es-ES")


def test_utterances_and_memory_name_their_authors(tmp_path: Path) -> None:  # F19 F33
    assert not complaints(
        tmp_path,
        """\
        - utterance: {src: bot, body: Hello, language: es-ES}
        - expect: {language: en-US}
        - memory:
            - {varId: quantity, value: 1, updatedBy: scale, contactId: contact-1}
        - expect: {memory: {quantity: 1}}
        - memory: [{varId: quantity, value: 1, contactId: nobody}]
        - expect: {error: contact_unknown}
        - contact: {id: c2}
        - memory: [{varId: quantity, value: 1, contactId: contact-1}]
        - expect: {error: contact_unknown}
        - memory: [{varId: quantity, value: 1, contactId: c2}]
        """,
    )


def test_scenarios_do_not_know_one_another(tmp_path: Path) -> None:
    assert not complaints(tmp_path, "- memory: {quantity: 1}\n- expect: {memory: {quantity: 1}}")
    assert not complaints(tmp_path, "- expect: {memory: {quantity: null}, command: /start}")
