"""Requests and tools as documents: every mistake at once, each at its place."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from channels.http_tools.documents import (
    HttpRequest,
    HttpTool,
    LifecycleCall,
    PreStep,
    ToolConfig,
    check_builders,
)
from flow_engine.values import JsonValue

TOOLS: TypeAdapter[dict[str, ToolConfig]] = TypeAdapter(dict[str, ToolConfig])
URL = "{{base_url}}/api/orders"


def problems(document: object) -> dict[tuple[int | str, ...], str]:
    """What is wrong with one tool, by place."""
    with pytest.raises(ValidationError) as caught:
        TOOLS.validate_python({"t": document})
    return {error["loc"][1:]: error["msg"] for error in caught.value.errors()}


def test_every_mistake_is_told_at_once_at_its_place() -> None:  # V1
    found = problems(
        {
            "type": "http",
            "method": "POST",
            "url": "orders/{{args.id}}",
            "params": {"a": "{{"},
            "headers": {"X-Key": "{{ctx.key | up}}"},
            "body": {"lines": [{"id": "{{args.}}"}, "{{args.a | default(}}"]},
            "pre_steps": [
                {"url": URL, "extract": {"t": "$.a["}, "fail_if": "t === null"},
                {"condition": "pre.t.status = 'open'", "fail_return": {"error": "{{pre.t"}},
            ],
            "store_in_ctx": {"id": "id"},
            "on_success": {"return": {"id": "$.["}},
            "on_error": {"return": {"e": "{{error"}},
            "timeout_s": 0,
            "retries": 3,
        }
    )
    assert set(found) == {
        ("url",),
        ("params", "a"),
        ("headers", "X-Key"),
        ("body", "lines", 0, "id"),
        ("body", "lines", 1),
        ("pre_steps", 0, "extract", "t"),
        ("pre_steps", 0, "fail_if"),
        ("pre_steps", 1, "condition"),
        ("pre_steps", 1, "fail_return", "error"),
        ("store_in_ctx", "id"),
        ("on_success", "return", "id"),
        ("on_error", "return", "e"),
        ("timeout_s",),
        ("retries",),
    }
    assert all("character" in found[place] for place in found if place[-1] not in ("timeout_s", "retries"))


MISTAKES: list[tuple[object, tuple[int | str, ...], str]] = [
    ({"type": "smtp"}, (), "'http' or 'builtin'"),
    ({"url": URL}, (), "'http' or 'builtin'"),
    ("http", (), "'http' or 'builtin'"),
    (None, (), "'http' or 'builtin'"),
    ({"type": "http"}, ("url",), "required"),
    ({"type": "http", "url": 5}, ("url",), "text"),
    ({"type": "http", "url": URL, "method": "TRACE"}, ("method",), "'GET'"),
    ({"type": "http", "url": URL, "params": ["a"]}, ("params",), "object"),
    ({"type": "http", "url": URL, "timeout_s": 1e9}, ("timeout_s",), "120"),
    ({"type": "http", "url": URL, "timeout_s": float("nan")}, ("timeout_s",), "finite"),
    ({"type": "http", "url": URL, "timeout_s": "10"}, ("timeout_s",), "number"),
    (
        {"type": "http", "url": URL, "pre_steps": [{"url": URL, "extract": {"args": "$.a"}}]},
        ("pre_steps", 0, "extract"),
        "names beside 'agent', 'args'",
    ),
    ({"type": "http", "url": URL, "headers": {"a b": "c"}}, ("headers",), "X-Api-Key"),
    ({"type": "http", "url": URL, "headers": {"a\n": "c"}}, ("headers",), "X-Api-Key"),
    *(
        ({"type": "http", "url": URL, "headers": {name: "c"}}, ("headers",), f"sets {name!r}; accepted are")
        for name in ("Host", "content-length", "TE")  # the call would be refused, and its `on_end` lost
    ),
    *(
        ({"type": "http", "url": URL, "headers": {"X-A": text}}, ("headers", "X-A"), "one line of ASCII")
        for text in ("a\nb", "a{{ctx.b}}\x00", "\u00e9", " a", "{{ctx.b}}\t")
    ),
    ({"type": "http", "url": URL, "body": {}}, (), "`params`"),
    ({"type": "http", "url": URL, "body_builder": "x"}, (), "`params`"),
    ({"type": "http", "method": "POST", "url": URL, "body": {}, "body_builder": "x"}, (), "not both"),
    ({"type": "http", "url": URL, "on_success": {}}, ("on_success", "return"), "required"),
    ({"type": "http", "url": URL, "pre_steps": [{}]}, ("pre_steps", 0), "`condition`"),
    (
        {"type": "http", "url": URL, "pre_steps": [{"extract": {"a": "$.a"}}]},
        ("pre_steps", 0),
        "needs a `url`",
    ),
    (
        {"type": "http", "url": URL, "pre_steps": [{"condition": "$.a", "method": "GET"}]},
        ("pre_steps", 0),
        "needs a `url`",
    ),
    (
        {"type": "http", "url": URL, "pre_steps": [{"url": URL, "fail_if": "target == null"}]},
        ("pre_steps", 0, "fail_if"),
        "'target' is unknown",
    ),
    ({"type": "builtin", "action": "dance"}, ("action",), "'hangup'"),
    ({"type": "builtin", "action": "hangup", "target": "+331"}, (), "`transfer`"),
    ({"type": "builtin", "action": "transfer"}, (), "`target`"),
    ({"type": "builtin", "action": "hangup", "url": URL}, ("url",), "not permitted"),
]


@pytest.mark.parametrize(("document", "place", "accepted"), MISTAKES)
def test_a_mistake_says_what_is_accepted(
    document: object, place: tuple[int | str, ...], accepted: str
) -> None:  # V1
    found = problems(document)
    assert list(found) == [place]
    assert accepted in found[place]


def test_mistakes_in_names_and_texts_of_headers_are_told_together() -> None:  # V1
    found = problems({"type": "http", "url": URL, "headers": {"a b": "c", "X-A": "{{", "X-B": "a\nb"}})
    assert found.keys() == {("headers",), ("headers", "X-A"), ("headers", "X-B")}
    found = problems({"type": "http", "url": URL, "headers": {"a b": "c", "Host": "{{"}})
    assert found.keys() == {("headers",), ("headers", "Host")}


def test_mistakes_in_names_and_paths_of_extracts_are_told_together() -> None:  # V1
    step = {"url": URL, "extract": {"args": "$.a", "b": "$.["}}
    found = problems({"type": "http", "url": URL, "pre_steps": [step]})
    assert found.keys() == {("pre_steps", 0, "extract"), ("pre_steps", 0, "extract", "b")}


def test_all_unknown_names_of_a_condition_are_told_at_once() -> None:  # V1
    step = {"url": URL, "extract": {"t": "$.a"}, "fail_if": "foo == null and bar == t or foo == args.b"}
    tool = {"type": "http", "url": URL, "pre_steps": [step]}
    check = {"url": URL, "condition": "foo == 1 and len(bar) == baz"}
    for model, document, names in (
        (HttpTool, tool, ["'foo'", "'bar'"]),
        (HttpTool, tool | {"pre_steps": [step | {"fail_if": "foo === bar"}]}, ["'foo'", "'='"]),
        (LifecycleCall, check, ["'foo'", "'len'"]),
    ):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(document)
        told = [
            (error["loc"][-1], error["msg"].split(": ")[-1].split()[0]) for error in caught.value.errors()
        ]
        place = "condition" if model is LifecycleCall else "fail_if"
        assert told == [(place, name) for name in names]


def test_all_variables_of_a_text_that_are_not_set_are_told_at_once() -> None:  # V1
    text = "${env:NOT_SET_A} {{ctx.a}} ${env:NOT_SET_B} ${env:NOT_SET_A} ${env:}"
    with pytest.raises(ValidationError) as caught:
        HttpRequest.model_validate({"url": URL, "headers": {"X-A": text}})
    told = [(error["loc"], error["msg"]) for error in caught.value.errors()]
    assert {place for place, _ in told} == {("headers", "X-A")}
    assert [word for _, message in told for word in message.split() if "_SET_" in word or "${" in word] == [
        *("NOT_SET_A", "NOT_SET_B", "${env:CRM_TOKEN}")
    ]


def test_what_is_no_name_of_a_variable_is_told_with_one_that_is() -> None:  # V1
    found = problems({"type": "http", "url": URL, "headers": {"X-A": "${env:}"}})
    assert found == {("headers", "X-A"): "accepted is a variable such as ${env:CRM_TOKEN}"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "http", "body": {}},
        {"type": "http", "body_builder": "x"},
        {"type": "http", "method": "POST", "body": {}, "body_builder": "x"},
        {"type": "builtin", "action": "transfer"},
        {"type": "builtin", "action": "hangup", "target": "+331"},
    ],
)
def test_a_mistake_between_fields_is_told_beside_those_of_fields(wrong: dict[str, object]) -> None:  # V1
    assert problems(wrong | {"url": 5, "retries": 3}).keys() >= {(), ("url",), ("retries",)}


def test_a_mistake_between_fields_of_a_step_is_told_beside_those_of_fields() -> None:  # V1
    steps = [{"extract": {"a": "$.["}}, {"description": 5}, {"url": URL, "body": {}, "timeout_s": 0}]
    assert problems({"type": "http", "url": URL, "pre_steps": steps}).keys() == {
        ("pre_steps", 0),
        ("pre_steps", 0, "extract", "a"),
        ("pre_steps", 1),
        ("pre_steps", 1, "description"),
        ("pre_steps", 2),
        ("pre_steps", 2, "timeout_s"),
    }


def test_what_was_written_is_not_told() -> None:
    """Configs hold credentials, and their mistakes go to logs."""
    with pytest.raises(ValidationError) as caught:
        HttpRequest.model_validate({"url": URL, "headers": {"a b": "s3cret"}, "timeout_s": "s3cret"})
    assert "s3cret" not in str(caught.value)  # V14


def test_everything_may_be_described() -> None:  # V7
    tool = HttpTool.model_validate(
        {
            "type": "http",
            "description": "Cancels an order.",
            "url": URL,
            "pre_steps": [
                {"description": "Finds it.", "url": URL},
                {"description": "Is it open?", "condition": "pre.a"},
            ],
        }
    )
    assert [step.description for step in tool.pre_steps] == ["Finds it.", "Is it open?"]
    assert LifecycleCall.model_validate({"description": "Starts.", "url": URL}).description == "Starts."


def test_the_defaults() -> None:  # V6
    tool = HttpTool.model_validate({"type": "http", "url": URL})
    assert (tool.method, tool.timeout_s, tool.pre_steps, tool.on_success_flags) == ("GET", 10.0, (), ())
    assert (tool.body, tool.params, tool.on_success, tool.on_error, tool.store_in_ctx) == (None,) * 4 + ({},)


def test_a_step_without_an_address_fetches_nothing() -> None:  # V7
    assert PreStep.model_validate({"condition": "ctx.a"}).request is None
    fetch = PreStep.model_validate({"url": URL, "params": {"a": 1}, "timeout_s": 3}).request
    assert fetch is not None
    assert (fetch.method, fetch.timeout_s, fetch.body) == ("GET", 3.0, None)


def test_a_body_builder_has_to_be_known() -> None:  # V10
    tools: JsonValue = {
        "a/b": {"type": "http", "method": "POST", "url": URL, "body_builder": "confirm_ordre"},
        "c": {"type": "http", "method": "POST", "url": URL, "body_builder": "confirm_order"},
        "d": {"type": "builtin", "action": "hangup"},
    }
    (finding,) = check_builders({"tools": tools}, {"confirm_order", "confirm_reservation"})
    assert finding.pointer == "/tools/a~1b/body_builder"
    assert finding.message == (
        "'confirm_ordre' is no body builder; accepted are 'confirm_order', 'confirm_reservation'"
    )
