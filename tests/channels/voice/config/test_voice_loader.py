"""A config is read whole: every mistake with its place, every doubt as a warning."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from channels.voice.call.ports import CustomVoice
from channels.voice.config.declarations import NotDeclarations, declarations
from channels.voice.config.json_schema import config_schema
from channels.voice.config.loader import MAX_CONFIG_BYTES, ConfigRefused, Loaded, load_config
from channels.voice.config.models import ConfigUrlSession, FlowSession
from flow_engine.errors import Finding
from tests.channels.voice.config.original_configs import EXAMPLES, KINDS, example, original

BUILDERS = frozenset({"confirm_order", "confirm_reservation"})


def load(config: object, **options: Any) -> Loaded:
    return load_config(json.dumps(config).encode(), builders=BUILDERS, **options)


def refusal(config: object, **options: Any) -> dict[str, str]:
    """Messages by pointer."""
    with pytest.raises(ConfigRefused) as refused:
        load(config, **options)
    return {problem.pointer: problem.message for problem in refused.value.problems}


def problems_with(config: object) -> tuple[Finding, ...]:
    try:
        load(config)
    except ConfigRefused as refused:
        return refused.problems or (Finding("", "nothing_said", ""),)
    return ()


def warnings(config: object) -> dict[str, str]:
    """Codes by pointer."""
    return {warning.pointer: warning.code for warning in load(config).warnings}


def minimal(**fields: object) -> dict[str, Any]:
    return {
        "version": "2.0",
        "agent": {"id": "a", "name": "A", "type": "test"},
        "session": {"mode": "inline", "instructions": "Be brief."},
    } | fields


class TestOriginals:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("restaurant", {"/openai/temperature": "temperature_dropped"}),
            (
                "switchboard",
                {"/openai/temperature": "temperature_dropped", "/tools/end_call": "end_call_unreachable"},
            ),
            (
                "medical",
                {"/openai/temperature": "temperature_dropped", "/openai/voice": "voice_unknown"},
            ),
        ],
    )
    def test_each_loads_unchanged_with_these_warnings_alone(
        self, kind: str, expected: dict[str, str]
    ) -> None:  # V1, V12
        assert warnings(original(kind)) == expected

    def test_the_warning_about_a_voice_names_it_the_others_and_what_is_used(self) -> None:  # V12
        [_, warning] = load(original("medical")).warnings
        for name in ("'nova'", "'sage' is used", "'alloy'", "'verse'"):
            assert name in warning.message

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_example_loads_without_a_warning(self, kind: str) -> None:  # V1
        assert load_config(EXAMPLES / f"{kind}.json", builders=BUILDERS).warnings == ()


class TestDefaults:
    def test_a_config_says_only_what_it_must(self) -> None:  # V1
        config = load(minimal()).config
        settings = config.settings("x")
        assert (settings.model, settings.voice, settings.transcription_model) == (
            "gpt-realtime",
            "sage",
            "whisper-1",
        )
        assert (settings.input_format, settings.output_format) == ("g711_ulaw", "g711_ulaw")
        detection = settings.turn_detection
        assert (detection.threshold, detection.silence_duration_ms, detection.prefix_padding_ms) == (
            0.5,
            500,
            300,
        )
        assert config.max_duration_s == 3600

    def test_only_a_language_that_is_written_down_is_expected_of_callers(self) -> None:
        assumed = load(minimal()).config
        assert (assumed.agent.language, assumed.settings().language) == ("fr-FR", None)
        told = load(minimal(agent={"id": "a", "name": "A", "type": "t", "language": "it-IT"})).config
        assert told.settings().language == "it"

    @pytest.mark.parametrize("language", ["fr-FR", "it", "en-GB", "es-ES", "xx"])
    def test_there_is_an_apology_in_every_language(self, language: str) -> None:
        config = load(minimal(agent={"id": "a", "name": "A", "type": "t", "language": language})).config
        assert config.spoken_apology
        own = load(minimal(apology="Not now.")).config
        assert own.spoken_apology == "Not now."

    def test_transcription_can_be_left_out(self) -> None:
        config = load(minimal(openai={"input_audio_transcription": None})).config
        assert config.settings().transcription_model is None

    def test_an_address_on_the_command_line_stands_in_for_the_own_one(self) -> None:
        session = {"mode": "config_url", "url": "{{base_url}}/x", "response_mapping": {"instructions": "$.i"}}
        config = load(minimal(session=session), base_url="http://localhost:3000/").config
        assert config.base_url == "http://localhost:3000"
        assert isinstance(config.session, ConfigUrlSession)


class TestRefusals:
    def test_a_voice_of_ones_own_is_named_by_its_id(self, validator: Any) -> None:  # V12, voice-smaller
        written = minimal(openai={"voice": {"id": "voice_1"}})
        loaded = load(written)
        assert loaded.warnings == ()
        assert loaded.config.settings().voice == CustomVoice("voice_1")
        validator.validate(written)

    @pytest.mark.parametrize("voice", ["", 7, {}, {"id": ""}, {"id": "a", "name": "b"}, [], {"id": 7}])
    def test_what_is_no_voice_is_refused_with_its_place(self, voice: object) -> None:  # V1
        assert list(refusal(minimal(openai={"voice": voice}))) == ["/openai/voice"]

    def test_every_mistake_is_told_with_its_place_and_what_would_be_accepted(self) -> None:  # V1
        config = example("restaurant")
        del config["agent"]["id"]
        config["openai"]["vad"]["treshold"] = 0.5
        config["openai"]["output_audio_format"] = "mp3"
        config["session"]["parms"] = {}
        config["session"]["response_mapping"]["tools"] = "tools"
        config["pre_call_checks"][0]["block_if"] = "$.blocked = true"
        config["pre_call_checks"][0]["on_block"] = "message"
        config["greeting"]["condition_field"] = "{{session.x}}"
        config["lifecycle"]["on_end"]["body"]["id"] = "{{ctx.call_id"
        config["lifecycle"]["outcome_rules"][1]["priority"] = "2"
        config["tools"]["cancel_order"]["pre_steps"][0]["extrakt"] = {}
        config["tools"]["end_call"]["action"] = "explode"
        config["tools"]["two words"] = {"type": "builtin", "action": "hangup"}
        config["greting"] = {}
        problems = refusal(config)
        expected = {
            "/agent/id": "is required",
            "/openai/vad/treshold": "nearest are 'threshold'",
            "/openai/output_audio_format": "'g711_ulaw', 'g711_alaw' or 'pcm16', not 'mp3'",
            "/session/parms": "nearest are 'params'",
            "/session/response_mapping/tools": "$",
            "/pre_call_checks/0": "accepted is `message`",
            "/pre_call_checks/0/block_if": "`==` compares",
            "/greeting/condition_field": "accepted is a path",
            "/lifecycle/on_end/body/id": "character",
            "/lifecycle/outcome_rules/1/priority": "must be a whole number, not a string",
            "/tools/cancel_order/pre_steps/0/extrakt": "nearest are 'extract'",
            "/tools/end_call/action": "'hangup' or 'transfer', not 'explode'",
            "/tools/two words": "accepted are names",
            "/greting": "nearest are 'greeting'",
        }
        assert problems.keys() == expected.keys()
        assert {place for place, part in expected.items() if part not in problems[place]} == set()

    def test_an_unknown_property_without_a_near_one_is_answered_with_all(self) -> None:
        message = refusal(minimal(agent={"id": "a", "name": "A", "type": "t", "zzz": 1}))["/agent/zzz"]
        assert "'id', 'language', 'name', 'type'" in message

    def test_a_body_builder_that_there_is_not_is_answered_with_those_there_are(self) -> None:  # V10
        config = example("restaurant")
        config["tools"]["confirm_order"]["body_builder"] = "order"
        message = refusal(config)["/tools/confirm_order/body_builder"]
        assert "'confirm_order', 'confirm_reservation'" in message

    def test_what_depends_on_the_installation_is_told_beside_all_else(self) -> None:  # V1
        config = example("restaurant")
        config["tools"]["confirm_order"] |= {"body_builder": "order", "timeout_s": 0}
        config["openai"] |= {"input_audio_format": "pcm16", "output_audio_format": "mp3"}
        config["pre_call_checks"][0] |= {"on_block": "message", "url": 5}
        config["greeting"] = {"condition_field": "session.name"}
        config["max_duration_s"] = -1
        assert refusal(config, audio_formats={"g711_ulaw"}).keys() == {
            "/openai/input_audio_format",
            "/openai/output_audio_format",
            "/pre_call_checks/0",
            "/pre_call_checks/0/url",
            "/greeting",
            "/greeting/unknown_customer",
            "/tools/confirm_order/body_builder",
            "/tools/confirm_order/timeout_s",
            "/max_duration_s",
        }

    def test_templates_that_use_the_base_address_need_one(self) -> None:
        config = example("switchboard")
        del config["base_url"]
        config["agent"]["zzz"] = 1
        assert refusal(config).keys() == {"/agent/zzz", "/base_url"}

    @pytest.mark.parametrize(
        "address", ["ftp://x", "http://user:pw@x", "http://x?y", "x", "http://", "http://x#y"]
    )
    def test_a_base_address_is_a_plain_one(self, address: str) -> None:
        assert refusal(minimal(base_url=address)).keys() == {"/base_url"}

    @pytest.mark.parametrize(
        ("address", "why"),
        [
            ("http://10.0.0.300:3000", "cannot be read"),
            ("https://a..b", "one reading"),
            ("https://h:99999", "port 99999"),
            ("https://[::1", "cannot be read"),
            ("http://127.1/api", "one reading"),
        ],
    )
    def test_an_address_that_cannot_be_called_is_told_where_it_stands(  # V1
        self, address: str, why: str
    ) -> None:
        session = {"mode": "flow", "engine_url": address, "version": "v"}
        check = {"name": "c", "url": f"{address}/c", "block_if": "$.b"}
        told = refusal(minimal(base_url=address, session=session, pre_call_checks=[check]))
        assert told.keys() == {"/base_url", "/session/engine_url", "/pre_call_checks/0/url"}
        assert all(why in message and "accepted is" in message for message in told.values())
        told = refusal(minimal(pre_call_checks=[check | {"url": "https://u:pw@h/x"}]))
        assert "credentials in a header" in told["/pre_call_checks/0/url"]

    @pytest.mark.parametrize("key", ["cl\u00e9", "k-1\nk-2"])
    def test_a_key_that_no_header_can_hold_is_told_where_its_variable_is_named(  # V1
        self, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = {"mode": "flow", "engine_url": "http://x", "version": "v"}
        for variable, more in (("FLOW_ENGINE_API_KEY", {}), ("DESK_KEY", {"api_key_env": "DESK_KEY"})):
            with monkeypatch.context() as environment:
                environment.setenv(variable, key)
                told = refusal(minimal(session=session | more))
            assert told.keys() == {"/session/api_key_env"}
            assert told["/session/api_key_env"].startswith(f"{variable}: accepted is a key of one line")
            monkeypatch.setenv(variable, "k-1\n")  # as a file has it
            load(minimal(session=session | more))

    @pytest.mark.parametrize(
        ("session", "place"),
        [
            (None, "/session"),
            ({}, "/session"),
            ({"mode": "magic"}, "/session"),
            ({"mode": "inline"}, "/session/instructions"),
            ({"mode": "inline", "instructions": "x", "tools": [{"type": "function"}]}, "/session/tools/0"),
            ({"mode": "inline", "instructions": "x", "tools": {}}, "/session/tools"),
            ({"mode": "flow", "engine_url": "http://x"}, "/session"),
            ({"mode": "flow", "engine_url": "x", "version": "v"}, "/session/engine_url"),
            ({"mode": "flow", "engine_url": "http://x", "flow_id": "f"}, "/session"),
            ({"mode": "flow", "engine_url": "http://x", "version": "v", "tag": "prod"}, "/session"),
        ],
    )
    def test_a_session_is_one_of_three(self, session: object, place: str) -> None:  # V2
        assert refusal(minimal(session=session)).keys() == {place}

    def test_a_tool_declared_twice_is_refused(self) -> None:
        tool = {"type": "function", "name": "a"}
        session = {"mode": "inline", "instructions": "x", "tools": [tool, tool]}
        assert refusal(minimal(session=session)).keys() == {"/session/tools/1"}

    def test_all_that_is_wrong_with_declared_tools_is_told_at_once(self) -> None:  # V1
        listing = {"type": "function", "name": "b", "parameters": {"type": "array"}}
        tools = [{"type": "function", "name": "a"}, {"type": "function", "name": "a"}, listing, 5, None]
        told = refusal(minimal(session={"mode": "inline", "instructions": "x", "tools": tools}))
        assert told == {
            "/session/tools/1": "'a' is declared before",
            "/session/tools/2": "accepted are `parameters` as a JSON Schema of an object, "
            "not of the type 'array'",
            "/session/tools/3": "accepted is an object with `type` 'function'",
            "/session/tools/4": "accepted is an object with `type` 'function'",
        }

    def test_templates_of_declared_tools_are_told_beside_their_declarations(self) -> None:  # V1
        parameters = {"type": "array", "title": "{{"}
        tools = [{"type": "function", "name": "a", "description": "{{ctx.a | up}}"}, None, "{{"]
        tools += [{"type": "function", "function": {"name": "{{", "parameters": parameters, "strict": "{{"}}]
        told = refusal(minimal(session={"mode": "inline", "instructions": "x", "tools": tools}))
        assert told.keys() == {
            *("/session/tools/0/description", "/session/tools/1", "/session/tools/2", "/session/tools/3"),
            "/session/tools/3/parameters/title",
        }
        assert "one of the filters" in told["/session/tools/0/description"]

    def test_a_message_is_spoken_only_where_the_check_says_so(self) -> None:  # V3
        check = {"name": "c", "url": "http://x/", "block_if": "$.b"}
        for more in ({"on_block": "message"}, {"message": "no"}, {"on_block": "hangup", "message": "no"}):
            assert refusal(minimal(pre_call_checks=[check | more])).keys() == {"/pre_call_checks/0"}
        load(minimal(pre_call_checks=[check | {"on_block": "message", "message": "Not {{agent.name}}"}]))

    def test_a_condition_field_needs_a_greeting_for_those_who_are_known(self) -> None:  # V4
        greeting = {"unknown_customer": "Hello", "condition_field": "session.name"}
        assert refusal(minimal(greeting=greeting)).keys() == {"/greeting"}


class TestFiles:
    def test_a_property_given_twice_is_refused_at_every_level(self) -> None:
        text = b'{"a": 1, "a": 2, "b": [{"c/d": 1, "c/d": 2}]}'
        with pytest.raises(ConfigRefused) as refused:
            load_config(text, builders=())
        assert [problem.pointer for problem in refused.value.problems] == [
            *("/a", "/b/0/c~1d", "/version", "/agent", "/session", "/a", "/b")
        ]

    def test_a_property_given_twice_is_told_beside_all_else(self) -> None:  # V1
        config = minimal(max_duration_s=-1, tools={"t": {"type": "http", "url": "{{base_url}}/t"}})
        text = json.dumps(config).replace('"id": "a"', '"id": "a", "id": "b"')
        with pytest.raises(ConfigRefused) as refused:
            load_config(text.encode(), builders=())
        assert [problem.pointer for problem in refused.value.problems] == [
            *("/agent/id", "/max_duration_s", "/base_url")
        ]
        with pytest.raises(ConfigRefused) as refused:
            load_config(b'[{"a": 1, "a": 2}]', builders=())
        assert [problem.pointer for problem in refused.value.problems] == ["/0/a", ""]
        with pytest.raises(ConfigRefused, match="more than once") as refused:
            load_config(json.dumps(minimal()).replace('"id"', '"id": "b", "id"').encode(), builders=())
        assert [problem.pointer for problem in refused.value.problems] == ["/agent/id"]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (b'{"version":\n  2.0,}', "line 2, column 7"),
            (b"\xff\xfe", "UTF-8"),
            (b"[]", "object"),
            (b"", "line 1, column 1"),
            (b'{"x": NaN}', "NaN"),
            (b'{"x": "\\ud800"}', "surrogates"),
            (b'{"x": ' + b"9" * 30 + b"}", "number"),
            (b"[" * 100_000, "nested"),
            (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "levels"),
            (b" " * MAX_CONFIG_BYTES + b"{}", f"more than {MAX_CONFIG_BYTES} bytes"),
        ],
    )
    def test_what_is_no_config_file_says_why(self, text: bytes, told: str) -> None:
        with pytest.raises(ConfigRefused, match=told) as refused:
            load_config(text, builders=())
        assert [problem.pointer for problem in refused.value.problems] == [""]

    def test_a_file_that_is_not_there_is_a_refusal_too(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigRefused, match="cannot be read"):
            load_config(tmp_path / "missing.json", builders=())

    def test_a_byte_order_mark_is_no_mistake(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(minimal()), encoding="utf-8-sig")
        assert load_config(path, builders=()).warnings == ()


class TestWarnings:
    def test_tools_and_what_runs_them_are_compared(self) -> None:
        declared = [{"type": "function", "name": name} for name in ("a", "b")]
        call = {"type": "http", "url": "http://x/"}
        config = minimal(
            session={"mode": "inline", "instructions": "x", "tools": declared},
            tools={"a": call, "c": call, "bye": {"type": "builtin", "action": "hangup"}},
        )
        assert warnings(config) == {
            "/session/tools/1": "tool_without_handler",
            "/tools/c": "handler_not_declared",
            "/tools/bye": "end_call_unreachable",
        }

    def test_outcome_rules_that_cannot_be_told_apart_or_never_apply(self) -> None:  # V5
        def rules(*rules: tuple[str | None, int]) -> dict[str, str]:
            written = [{"flag": flag, "outcome": "x", "priority": priority} for flag, priority in rules]
            return warnings(minimal(lifecycle={"outcome_rules": written}))

        place = "/lifecycle/outcome_rules"
        assert rules(("a", 1), (None, 2)) == {}
        assert rules() == {}
        assert rules(("a", 1)) == {place: "no_fallback_rule"}
        assert rules(("a", 1), ("b", 1), (None, 2)) == {f"{place}/1": "same_priority"}
        assert rules((None, 1), ("a", 2)) == {f"{place}/1": "rule_unreachable"}

    def test_a_variable_that_there_is_not_is_named_with_the_nearest(self) -> None:  # V8
        config = example("switchboard")
        config["lifecycle"]["on_end"]["body"]["id"] = "{{contxt.call_id | default(caler_phone)}}"
        config["greeting"]["unknown_customer"] = "{{agent.nme}}"
        found = load(config).warnings
        assert [(warning.pointer, warning.code) for warning in found] == [
            ("/greeting/unknown_customer", "unknown_variable"),
            ("/lifecycle/on_end/body/id", "unknown_variable"),
            ("/lifecycle/on_end/body/id", "unknown_variable"),
        ]
        assert "'caller_phone'" in found[2].message

    def test_what_a_flow_does_not_use_is_named(self) -> None:  # V2
        session = {"mode": "flow", "engine_url": "http://localhost:8080/", "flow_id": "f", "tag": "prod"}
        config = minimal(session=session, greeting={"unknown_customer": "Hello"}, tools={})
        assert warnings(config) == {"/greeting": "unused_in_flow", "/tools": "unused_in_flow"}
        loaded = load(config).config.session
        assert isinstance(loaded, FlowSession)
        assert (loaded.engine_url, loaded.api_key_env) == ("http://localhost:8080", "FLOW_ENGINE_API_KEY")


# --- laws -------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, part in items for inner in places(part, (*place, key)))]


def replaced(config: Any, place: tuple[str | int, ...], value: object) -> Any:
    if not place:
        return value
    container = config
    for part in place[:-1]:
        container = container[part]
    container[place[-1]] = value
    return config


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_stands_in_a_config_is_loaded_or_refused_by_name(kind: str, data: st.DataObject) -> None:
    config = example(kind)
    place = data.draw(st.sampled_from(places(config)))
    changed = replaced(config, place, data.draw(json_values))
    problems = problems_with(changed)
    assert all(problem.message for problem in problems)
    assert all(problem.pointer == "" or problem.pointer.startswith("/") for problem in problems)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(deadline=None)
def test_whatever_a_file_holds_is_loaded_or_refused_by_name(text: bytes) -> None:
    with pytest.raises(ConfigRefused):
        load_config(text, builders=())


STRUCTURAL = {"missing_property", "unknown_property", "wrong_type"}
_UNKNOWN = "zzz"


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=150, deadline=None)
def test_the_schema_and_the_loader_agree_on_the_shape(
    validator: Any, kind: str, data: st.DataObject
) -> None:  # V1
    """What the schema refuses the loader refuses; what the loader refuses for its shape the schema does."""
    config = example(kind)
    place = data.draw(st.sampled_from(places(config)))
    container = config
    for part in place[:-1]:
        container = container[part]
    how = data.draw(st.sampled_from(["delete", "add", "17", "[]", "{}", "null", "true", '"text"']))
    value = config if not place else container[place[-1]]
    if how == "add" and isinstance(value, dict):
        value[_UNKNOWN] = 1
    elif how == "delete" and place:
        del container[place[-1]]
    elif place and how not in {"add", "delete"}:
        container[place[-1]] = json.loads(how)
    refused_by_schema = not validator.is_valid(config)
    found = {(problem.pointer, problem.code) for problem in problems_with(config)}
    if refused_by_schema:
        assert found
    # That templates need the base address is a rule between fields.
    if {code for _, code in found - {("/base_url", "missing_property")}} & STRUCTURAL:
        assert refused_by_schema


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("kind", [*KINDS, "health_booking_flow"])
def test_the_examples_fit_the_schema(validator: Any, kind: str) -> None:  # V1
    assert list(validator.iter_errors(example(kind))) == []


@given(json_values | st.lists(st.dictionaries(st.sampled_from(["type", "name", "function"]), json_values)))
@settings(deadline=None)
def test_declarations_are_made_flat_once_and_for_all(value: Any) -> None:
    with suppress(NotDeclarations):
        flat = declarations(value)
        assert declarations([dict(each) for each in flat]) == flat


def test_declarations_of_the_chat_protocol_are_made_flat() -> None:  # V2
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    nested = {"type": "function", "function": {"name": "a", "description": "A", "parameters": parameters}}
    flat = {"type": "function", "name": "a", "description": "A", "parameters": parameters}
    assert declarations([nested]) == (flat,)
    assert declarations([flat | {"strict": True}]) == (flat,)


@pytest.mark.parametrize(
    "value",
    [
        "tools",
        {"name": "a"},
        ["a"],
        [{"type": "mcp", "name": "a"}],
        [{"type": "function"}],
        [{"name": "a b"}],
        [{"name": "a", "description": 1}],
        [{"name": "a", "parameters": []}],
        [{"name": "a", "parameters": {"type": "string"}}],
        [{"name": "a", "parameters": {"properties": 1}}],
        [{"name": "a"}, {"name": "a"}],
        *(
            [{"name": "a", "parameters": reduce(lambda inner, _: {"properties": {"a": inner}}, range(n), {})}]
            for n in (110, 150)
        ),
    ],
)
def test_what_is_no_list_of_declarations_is_refused(value: Any) -> None:
    with pytest.raises(NotDeclarations):
        declarations(value)


def test_very_many_declarations_are_read_in_a_moment() -> None:  # V2
    """As many as a reply of the business can hold: all other calls wait meanwhile."""
    began = time.process_time()
    assert len(declarations([{"name": f"a{number}"} for number in range(40_000)])) == 40_000
    assert time.process_time() - began < 5


def test_very_many_items_that_declare_nothing_make_no_endless_line_of_the_log() -> None:  # V14
    with pytest.raises(NotDeclarations) as refused:
        declarations([7] * 40_000)
    assert len(refused.value.found) == 40_000
    assert len(str(refused.value)) < 1000
