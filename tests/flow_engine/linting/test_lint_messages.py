"""What each warning says, in full: the names of the version that it is about, and what is wrong (F9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.flow_engine.linting.cases import CASES
from tests.flow_engine.linting.versions import reasons, sound_version

REASONS: Mapping[str, Sequence[str]] = {
    "unreachable_task": [
        "no chain of 'connectedTasks' leads from the first task to 'survey'",
    ],
    "dead_end": [
        "no task can be entered from 'goodbye': the contact can only end there",
    ],
    "loop_without_exit": [
        (
            "'hours', 'questions' lead only to one another; none of the tasks in which this flow ends "
            "can be reached any more: 'operator'"
        ),
    ],
    "too_many_connections": [
        "'welcome' leads to 21 tasks, a model chooses well between at most 20",
    ],
    "first_task_requires_parameter": [
        "'day' is not asked for when a conversation starts in 'welcome'",
    ],
    "required_variable_never_filled": [
        (
            "'booking' can never be entered: only a tool writes the custom 'service', and none is "
            "selected on any path to it, such as 'welcome' → 'booking'"
        ),
    ],
    "connection_never_open": [
        (
            "'booking' can be entered from elsewhere, but never from 'welcome': only a tool writes the "
            "custom 'service', and none is selected on the way there, such as 'welcome' → 'booking'"
        ),
        (
            "'booking' can never be entered from 'welcome': \"vars.size == 'M'\" and its own "
            "\"vars.size == 'S'\" are never both true"
        ),
    ],
    "required_variable_unfilled_on_path": [
        (
            "on the path 'welcome' → 'chat' → 'choice' → 'booking' the last step is refused, then and "
            "ever after: only a tool writes the custom 'service', and none is selected on it"
        ),
    ],
    "task_behind_closed_task": [
        "every chain of tasks to 'confirm' leads through a task that can never be entered: 'booking'",
        "every chain of tasks to 'survey' leads through a task that can never be entered: 'operator'",
    ],
    "no_channels": [
        "no contact can start: there is no channel",
    ],
    "task_without_channel": [
        "'link' cannot be entered on any channel of the version: 'chat', 'phone'",
    ],
    "channel_without_first_task": [
        "contacts on 'chat' start in 'welcome', which is meant for 'phone'",
    ],
    "mandatory_channel_not_covered": [
        "'phone' is mandatory, but contacts on it start in 'welcome', which is meant for 'chat'",
    ],
    "task_unreachable_on_channel": [
        (
            "'receipt' is offered on 'chat', but every chain of tasks that leads to it passes a task "
            "which is not"
        ),
    ],
    "dead_end_on_channel": [
        "on 'chat' no task can be entered from 'pay': none of those that it leads to is available there",
    ],
    "channel_without_end": [
        "on 'chat' no contact can reach a task in which this flow ends: 'operator'",
    ],
    "resumed_elsewhere": [
        (
            "a conversation can wait in 'pay', and a contact on 'chat' can neither go on there nor in "
            "any task that it leads to"
        ),
    ],
    "template_syntax": [
        "line 1: unexpected 'end of print statement'",
    ],
    "template_placeholder": [
        "line 1: '$vars.day' is in no tag and stays as it is; write {{ $name.key }}",
        "line 1: '{day}' is in no tag and stays as it is; write {{ $vars.day }}",
    ],
    "template_javascript": [
        "line 1: '===' is JavaScript; write ==",
    ],
    "template_unknown_name": [
        (
            "line 1: 'voice' is unknown; templates know $channel, $contact, $flow, $language, $task, "
            "$tenant, $values, $vars"
        ),
    ],
    "template_reference_as_value": [
        "line 1: $vars.size is a reference, never its value; write $values.size",
    ],
    "value_never_known_at_entry": [
        (
            "line 1: $values.service is always empty: nothing can have written 'service' when "
            "'identify' is entered"
        ),
    ],
    "default_language_not_supported": [
        "'fr-FR' is not among 'supportedLanguages': 'en-US', 'it-IT'",
    ],
    "language_not_a_tag": [
        "'fr_FR' is no language of BCP 47, such as 'en-US'",
    ],
    "system_prompts_language_unavailable": [
        (
            "there are no system prompts in 'fr-FR', those in 'en-US' are used; available: 'en-US', "
            "'es-ES', 'it-IT'"
        ),
    ],
    "missing_translation": [
        "waiting messages of 'operator' are missing in 'it', which is supported",
    ],
    "unsupported_language": [
        "'fr' is never spoken: 'supportedLanguages' has 'en', 'it'",
    ],
    "enum_cannot_match": [
        "enum 'size' has no values, so that no value can ever be stored in it",
    ],
    "enum_value_repeated": [
        ("1.0 is a value of enum 'size' already, the one at /variables/1/enumValues/1 is always found first"),
    ],
    "unused_variable": [
        "no task requires 'floor number', no condition reads it, no tool takes it and no prompt names it",
    ],
    "fixed_value_not_in_enum": [
        (
            "parameter 'size' of 'book' is fixed to 'XL', but in 'booking' it comes from 'size', an "
            "enum of 'M', 'S'"
        ),
    ],
    "parameter_type_mismatch": [
        (
            "parameter 'service' of 'book' gets text from 'day' (date), but whatever a tool has stored "
            "from 'service' (custom) in 'booking'"
        ),
    ],
    "unused_mcp_server": [
        "no task selects a tool of MCP server 'crm'",
    ],
    "unused_mcp_tool": [
        "no task selects tool 'cancel' of MCP server 'agenda'",
    ],
    "checkpoint_never_enabled": [
        "no task enables checkpoint 'Booked', so that it is never judged",
    ],
    "required_checkpoint_unreachable": [
        "required checkpoint 'Booked' is enabled only in tasks that cannot be reached: 'booking'",
    ],
    "routing_timeout_not_positive": [
        "the routing of 'operator' fails at once: its timeout is 0 seconds",
    ],
    "routing_without_target": [
        "'operator' names no skill and no agent: nothing says whom to look for",
    ],
    "negative_number": [
        "'userInteractionTimeout' is -0.5, below zero",
        "'waitingMusicDuration' is -5, below zero",
    ],
    "value_ignored": [
        "only true and false mean something here, 'yes' counts as false",
        "only true and false mean something here, null counts as false",
        "'operator' does not lead to 'booking', so that nothing asks for this: name it in 'connectedTasks'",
    ],
    "multi_contact_never_applies": [
        (
            "the version spans several contacts, but every one of its tasks closes the conversation "
            "with the contact, and the task decides"
        ),
    ],
    "multi_contact_unexpected": [
        "the version closes a conversation with its contact, but these tasks keep it: 'booking'",
    ],
    "short_time_limit": [
        "a conversation ends after 24 seconds, hardly time for another contact",
    ],
    "custom_handler_forbidden": [
        "the engine may not call it: it leads inside",
    ],
    "unknown_property": [
        "nothing reads 'requierd' here; nearest are 'required'",
    ],
    "ambiguous_name": [
        "'Opérator' is the '_id' of another task too, and ids are looked at first",
    ],
    "back_is_a_task": [
        "a change to 'back' enters this task, and does not leave 'faq' for the task that it was entered from",
        "a change to 'back' enters this task, and does not leave 'faq' for the task that it was entered from",
    ],
    "similar_task_names": [
        "'cardPayment' differs from 'card-payment' in marks only",
    ],
    "task_name_prefix": [
        (
            "'Booking (change)' begins with the whole name of 'booking', and both can be chosen at the "
            "same moment"
        ),
    ],
    "equal_descriptions": [
        "'link' is described as 'card' is, and both can be chosen at the same moment",
    ],
    "condition_never_true": [
        (
            "no values make \"vars.size == 'XL' or vars.day > '2026-02-01' and vars.day <…\" before "
            "'booking' true"
        ),
        (
            "no values make 'vars.voucher.sum > 5' before 'booking' true; no tool that is selected writes "
            "'voucher'"
        ),
    ],
    "condition_always_true": [
        "whatever the values are, 'has(vars.service)' before 'booking' is true",
    ],
    "comparison_never_true": [
        (
            "no values make \"vars.size == 'XL'\" true, which \"vars.size in ['S', 'XL']\" before 'booking' "
            "asks; it has 'M', 'S'"
        ),
        "line 1: no values make \"$values.size == 'XL'\" true; it has 'M', 'S'",
        "line 1: no values make \"$values.vip == 'true'\" true",
    ],
    "parameter_never_written": [
        "parameter 'voucher' of 'book' is always empty: no tool that is selected writes 'voucher'",
    ],
    "parameter_repeated": [
        "'service' stands at /tasks/1/transitionParameters/0 already",
    ],
}


@pytest.mark.parametrize(("code", "told"), REASONS.items(), ids=REASONS)
def test_a_warning_says_what_is_wrong_by_the_names_of_the_version(code: str, told: Sequence[str]) -> None:
    found: list[str] = []
    for case in CASES:
        if case.code == code:
            raw = sound_version()
            case.bad(raw)
            found += reasons(raw, code)
    assert set(told) <= set(found)  # F9: there may be more cases of it


def test_the_name_of_a_variable_without_its_root_is_told_with_it() -> None:
    raw = sound_version()
    raw["tasks"][1]["prompt"] = (
        "Book {{ day }} for {{ $vars.service }}, {% if size == 'S' %}small{% endif %} {{ x }}."
    )
    told = reasons(raw, "template_unknown_name")
    assert told[:2] == [
        "line 1: 'day' is unknown; write $vars.day",
        "line 1: 'size' is unknown; write $vars.size",
    ]  # F9
    assert told[2].startswith("line 1: 'x' is unknown; templates know $channel")


def test_the_name_of_a_variable_without_its_root_is_told_with_it_in_a_condition_too() -> None:
    raw = sound_version()
    raw["tasks"][1]["entryCondition"] = {"when": "has(vars.day) and size == 'S' and x == 1"}
    (bare, unknown) = reasons(raw, "condition_unknown_name")
    assert bare.endswith("; write vars.size")  # F9
    assert "write" not in unknown


@pytest.mark.parametrize(
    ("when", "prompt", "name", "code", "written"),
    [
        ("vars.pick-up day > 3", "", "pick-up day", "condition_syntax", '; write vars["pick-up day"]'),
        ("has(vars.day of it)", "", "pick-up day", "condition_syntax", ""),
        ("has(vars.2nd day) and vars.2nd", "", "2nd", "condition_syntax", ""),
        ("", "{{ $values.pick-up day }}", "pick-up day", "template_syntax", '; write $values["pick-up day"]'),
        ("", "{{ $values.2nd }}", "2nd", "template_syntax", '; write $values["2nd"]'),
    ],
)
def test_a_name_that_is_not_one_word_is_told_with_its_brackets(
    when: str, prompt: str, name: str, code: str, written: str
) -> None:
    raw = sound_version()
    raw["variables"][2]["name"] = name
    raw["tasks"][1] |= {"prompt": prompt, "entryCondition": {"when": when or "has(vars.day)"}}
    (reason,) = reasons(raw, code)
    assert reason.endswith(written)  # F9
    assert ("; write " in reason) == bool(written)


@pytest.mark.parametrize("code", REASONS)
def test_a_reason_is_one_sentence_that_goes_into_a_list(code: str) -> None:
    for reason in REASONS[code]:
        assert reason.splitlines() == [reason]
        assert not reason.endswith(".")
