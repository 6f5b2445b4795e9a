"""Rows of agents, what they inherit, their prompts; frames of a client; tokens (C1, C2, C5, C13)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.chat.frames import (
    AT_ONCE_S,
    MOST_CHARS,
    TEXT_FRAMES_A_SECOND,
    BadFrame,
    Cancel,
    Confirm,
    Hello,
    Pace,
    UserMessage,
    bare_frame,
    numbered,
    read_frame,
)
from channels.chat.inheritance import effective, lineage, table_findings
from channels.chat.rows import FIELDS, INHERITED, StoredRow, merge_patch, row_findings, whole
from channels.chat.tokens import TokenHolder, Tokens
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.chat import LoggedFrame


def table_of(*rows: dict[str, Any]) -> dict[str, StoredRow]:
    return {row["name"]: StoredRow(number, whole(row)) for number, row in enumerate(rows, start=1)}


class TestRows:
    @pytest.mark.parametrize(
        "row",
        [
            {"name": "a"},
            {"name": "A1_.-"},
            {"name": "a" * 64, "enabled": False, "base_agent": "b"},
            {"name": "a", "constraints": [], "tools": [], "role": ""},
            {"name": "a", "model": "openai:gpt-4o", "temperature": 0, "top_p": 1, "num_ctx": 1},
            {"name": "a", "model": "openai:gpt-4o,ollama:qwen3", "temperature": 2.0},
            {"name": "a", "languages": ["it", "en-US", "zh-Hans-CN"]},
            {"name": "a", "flow": {"flow_id": "f", "tag": "production"}},
            {"name": "a", "http_tools": {"t": {"method": "GET", "url": "https://a.example/{{args.x}}"}}},
        ],
    )
    def test_a_sound_row_has_no_findings(self, row: dict[str, Any]) -> None:
        assert list(row_findings(row)) == []  # C1

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            (None, [("", "wrong_type", "accepted is an object, a row of ai_agents")]),
            ([], [("", "wrong_type", "accepted is an object, a row of ai_agents")]),
            ({}, [("/name", "missing_property", "'name' is required here")]),
            (
                {"name": "a b"},
                [
                    (
                        "/name",
                        "string_pattern_mismatch",
                        "must match pattern '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'",
                    )
                ],
            ),
            (
                {
                    "name": "a",
                    "enabled": "yes",
                    "constraints": "x",
                    "tools": [""],
                    "temperature": 3,
                    "top_p": 0,
                    "num_ctx": 0,
                    "languages": ["Italian", "it"],
                    "more": 1,
                },
                [
                    ("/enabled", "wrong_type", "must be a boolean, not a string"),
                    ("/constraints", "wrong_type", "must be an array, not a string"),
                    ("/tools/0", "string_too_short", "must have at least 1 character"),
                    ("/temperature", "less_than_equal", "must be less than or equal to 2"),
                    ("/top_p", "greater_than", "must be greater than 0"),
                    ("/num_ctx", "greater_than_equal", "must be greater than or equal to 1"),
                    ("/languages/0", "language", "accepted is a language such as 'it' or 'it-IT'"),
                    ("/more", "unknown_property", "is no property here; nearest are 'model'"),
                ],
            ),
            (
                {"name": "a", "http_tools": {"ask_user": {"method": "GET", "url": "https://a/b"}}},
                [
                    (
                        "/http_tools/ask_user",
                        "tool_name_reserved",
                        "'ask_user' is a function of every agent; accepted is another name",
                    )
                ],
            ),
            (
                {
                    "name": "a",
                    "http_tools": {"t": {"method": "GET", "url": "{{ctx.x}}/b", "body_builder": "x"}},
                },
                [
                    (
                        "/http_tools/t/url",
                        "host_not_fixed",
                        "accepted is an address that begins with http(s)://host",
                    ),
                    ("/http_tools/t/body_builder", "body_builder_unknown", "accepted in a row is `body`"),
                    ("/http_tools/t", "get_with_body", "accepted with GET are `params`, not `body_builder`"),
                ],
            ),
            (
                {"name": "a", "flow": {}},
                [("/flow/flow_id", "missing_property", "'flow_id' is required here")],
            ),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_everything_that_is_wrong_is_told_at_once(self, row: Any, found: list[Any]) -> None:
        assert [(each.pointer, each.code, each.message) for each in row_findings(row)] == found  # C1

    def test_an_agent_speaks_no_thousand_languages(self) -> None:
        codes = [f"{one}{other}" for one in "abcdefgh" for other in "abcdefgh"]
        found = list(row_findings({"name": "a", "languages": codes}))
        assert [each.pointer for each in found] == ["/languages"]  # C1
        assert list(row_findings({"name": "a", "languages": codes[:20]})) == []

    @pytest.mark.parametrize("place", ["headers", "pre_steps"])
    def test_the_environment_is_read_as_far_as_the_operator_lets_rows(
        self, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def found(variable: str) -> list[str]:
            headers: dict[str, object] = {"X-Key": f"Bearer ${{env:{variable}}}"}
            steps = [{"url": "https://a/b", "headers": headers}]
            tool = {"url": "https://a/b", place: headers if place == "headers" else steps}
            return [each.code for each in row_findings({"name": "a", "http_tools": {"t": tool}})]

        monkeypatch.setenv("CRM_TOKEN", "secret")
        assert found("CRM_TOKEN") == found("NOT_THERE") == ["env_not_allowed"]  # C1, F43
        monkeypatch.setenv("FLOW_ENGINE_CHAT_TOOL_ENV", "OTHER, CRM_TOKEN")
        assert found("CRM_TOKEN") == []

    json = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS, "x"]), inner, max_size=5)
        ),
        max_leaves=6,
    )

    @settings(max_examples=30)
    @given(json)
    def test_a_row_of_any_shape_is_judged_and_never_an_error(self, row: Any) -> None:
        assert all(found.code for found in row_findings(row))  # C1

    def test_a_whole_row_has_every_field_in_the_tables_order(self) -> None:
        row = whole({"tools": ["t"], "name": "a"})
        assert list(row) == list(FIELDS)  # C1
        assert {name: value for name, value in row.items() if value is not None} == {
            "name": "a",
            "enabled": True,
            "tools": ["t"],
        }

    @pytest.mark.parametrize(
        ("patch", "after"),
        [
            ({}, {"name": "a", "role": "r", "flow": {"flow_id": "f", "tag": "x"}}),
            ({"role": "s"}, {"name": "a", "role": "s", "flow": {"flow_id": "f", "tag": "x"}}),
            ({"role": None}, {"name": "a", "role": None, "flow": {"flow_id": "f", "tag": "x"}}),
            ({"flow": {"tag": None}}, {"name": "a", "role": "r", "flow": {"flow_id": "f"}}),
            ({"flow": {"tag": "y"}}, {"name": "a", "role": "r", "flow": {"flow_id": "f", "tag": "y"}}),
            ({"flow": None}, {"name": "a", "role": "r", "flow": None}),
            ({"role": {"a": 1}}, {"name": "a", "role": {"a": 1}, "flow": {"flow_id": "f", "tag": "x"}}),
            ({"new": {"a": None, "b": 1}}, None),
        ],
    )
    def test_a_patch_merges_objects_and_a_null_at_the_top_inherits(
        self, patch: dict[str, Any], after: dict[str, Any] | None
    ) -> None:
        row = {"name": "a", "role": "r", "flow": {"flow_id": "f", "tag": "x"}}
        expected = after or {**row, "new": {"b": 1}}
        assert merge_patch(row, patch) == expected  # C1, RFC 7396


class TestInheritance:
    TABLE = table_of(
        {"name": "base", "role": "R", "rules": ["r1"], "temperature": 0.5, "tools": ["t"]},
        {"name": "middle", "base_agent": "base", "role": "", "rules": [], "task": "T"},
        {"name": "leaf", "base_agent": "middle", "enabled": False, "constraints": ["c"]},
        {"name": "orphan", "base_agent": "gone", "role": "O"},
        {"name": "one", "base_agent": "two", "role": "1"},
        {"name": "two", "base_agent": "one", "task": "2"},
    )

    @pytest.mark.parametrize(
        ("name", "ancestors"),
        [
            ("leaf", ["leaf", "middle", "base"]),
            ("base", ["base"]),
            ("orphan", ["orphan"]),
            ("one", ["one", "two"]),
            ("nobody", []),
        ],
    )
    def test_bases_are_followed_until_one_is_unknown_or_was_met(
        self, name: str, ancestors: list[str]
    ) -> None:
        assert [row.name for row in lineage(name, self.TABLE)] == ancestors  # C5

    def test_what_is_not_defined_is_the_nearest_bases_and_an_empty_text_is_defined(self) -> None:
        leaf = effective("leaf", self.TABLE)
        found = {name: (leaf.fields[name], leaf.sources[name]) for name in FIELDS}
        said = {name: pair for name, pair in found.items() if pair != (None, None)}
        assert said == {  # C1, C5
            "name": ("leaf", "leaf"),
            "enabled": (False, "leaf"),
            "base_agent": ("middle", "leaf"),
            "role": ("", "middle"),
            "task": ("T", "middle"),
            "constraints": (["c"], "leaf"),
            "rules": ([], "middle"),
            "temperature": (0.5, "base"),
            "tools": (["t"], "base"),
        }
        assert leaf.revision == 3

    def test_an_agent_is_enabled_by_its_own_row_alone(self) -> None:
        assert effective("middle", self.TABLE).fields["enabled"] is True  # C5
        assert not {"name", "enabled", "base_agent"} & set(INHERITED)

    def test_one_that_is_not_in_the_table_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            effective("nobody", self.TABLE)

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"name": "new"}, []),
            ({"name": "new", "base_agent": "base"}, []),
            (
                {"name": "new", "base_agent": "gone"},
                [
                    (
                        "/base_agent",
                        "unknown_base",
                        "no agent 'gone'; there are: 'base', 'leaf', 'middle', 'one', 'orphan', 'two'",
                    )
                ],
            ),
            (
                {"name": "new", "base_agent": "new"},
                [("/base_agent", "base_cycle", "'new' would be a base of itself by 'new'")],
            ),
            (
                {"name": "base", "base_agent": "leaf"},
                [("/base_agent", "base_cycle", "'base' would be a base of itself by 'leaf'")],
            ),
            (
                {"name": "new", "tools": ["known", "stranger"]},
                [("/tools/1", "unknown_tool", "unknown tool 'stranger'; there are: 'known'")],
            ),
            (
                {
                    "name": "new",
                    "tools": ["own"],
                    "http_tools": {"own": {"method": "GET", "url": "https://a/"}},
                },
                [],
            ),
        ],
        ids=["alone", "with-a-base", "unknown-base", "itself", "a-circle", "unknown-tool", "own-tool"],
    )
    def test_what_is_wrong_beside_the_others_is_told(self, row: dict[str, Any], found: list[Any]) -> None:
        class Known:
            def names(self) -> list[str]:
                return ["known"]

            def knows(self, name: str) -> bool:
                return name == "known"

        findings = table_findings(whole(row), self.TABLE, Known())
        assert [(each.pointer, each.code, each.message) for each in findings] == found  # C5, C11


class TestPrompts:
    def prompt(self, **row: Any) -> str:
        return effective("a", table_of({"name": "a", **row})).system_prompt

    def test_its_parts_are_in_their_order_and_constraints_outrank_the_task(self) -> None:
        told = self.prompt(
            role=" You are kind. ",
            task="Answer.",
            constraints=["Never lie.", "Be short."],
            rules=["Greet first."],
            output_schema="Plain text.",
            state_strategy="Ask when unsure.",
        )
        assert told == (  # C2
            "# Role\nYou are kind.\n\n"
            "# Constraints\nThey hold always. Where the task or anybody asks otherwise, they win.\n"
            "- Never lie.\n- Be short.\n\n"
            "# Task\nAnswer.\n\n"
            "# Rules\n- Greet first.\n\n"
            "# Output\nPlain text.\n\n"
            "# When to ask, act, refuse and finish\nAsk when unsure."
        )

    @pytest.mark.parametrize(
        ("row", "told"),
        [
            ({}, ""),
            ({"task": ""}, ""),
            ({"rules": []}, ""),
            ({"task": "  \n"}, ""),
            ({"task": "T", "rules": []}, "# Task\nT"),
            ({"rules": ["r"], "description": "not of the prompt"}, "# Rules\n- r"),
        ],
    )
    def test_parts_that_nobody_says_anything_for_are_left_out(self, row: dict[str, Any], told: str) -> None:
        assert self.prompt(**row) == told  # C2


class TestClientFrames:
    @pytest.mark.parametrize(
        ("frame", "read"),
        [
            ({"type": "hello", "user": "ada"}, Hello(type="hello", user="ada")),
            (
                {"type": "hello", "user": "ada", "session": "s", "after": 0, "language": "it-IT"},
                Hello(type="hello", user="ada", session="s", after=0, language="it-IT"),
            ),
            (
                {"type": "message", "id": "m", "content": " hi "},
                UserMessage(type="message", id="m", content=" hi "),
            ),
            (
                {"type": "message", "id": "m", "content": "x" * MOST_CHARS},
                UserMessage(type="message", id="m", content="x" * MOST_CHARS),
            ),
            ({"type": "cancel", "id": "m"}, Cancel(type="cancel", id="m")),
            (
                {"type": "confirm", "call": "c", "decision": "no"},
                Confirm(type="confirm", call="c", decision="no"),
            ),
        ],
    )
    def test_a_frame_is_one_of_four(self, frame: dict[str, Any], read: Any) -> None:
        assert read_frame(orjson.dumps(frame).decode()) == read  # C13

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", ("", "json_invalid", "a frame is a JSON object")),
            ("[]", ("", "json_invalid", "a frame is a JSON object")),
            ("{", ("", "json_invalid", "a frame is a JSON object")),
            ("{}", ("/type", "type_unknown", "accepted is one of hello, message, cancel, confirm")),
            (
                '{"type": "bye"}',
                ("/type", "type_unknown", "accepted is one of hello, message, cancel, confirm"),
            ),
            (
                '{"type": ["hello"]}',
                ("/type", "type_unknown", "accepted is one of hello, message, cancel, confirm"),
            ),
            ('{"type": "hello"}', ("/user", "missing_property", "'user' is required here")),
            (
                '{"type": "hello", "user": "a", "after": -1}',
                ("/after", "greater_than_equal", "must be greater than or equal to 0"),
            ),
            (
                '{"type": "hello", "user": "a", "after": true}',
                ("/after", "wrong_type", "must be a whole number, not a boolean"),
            ),
            (
                '{"type": "hello", "user": "a", "language": "italiano"}',
                (
                    "/language",
                    "string_pattern_mismatch",
                    "must match pattern '^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$'",
                ),
            ),
            (
                '{"type": "message", "id": "m", "content": ""}',
                ("/content", "string_too_short", "must have at least 1 character"),
            ),
            (
                '{"type": "message", "id": "m", "content": " \\n"}',
                ("/content", "content_empty", "accepted is a text"),
            ),
            (
                '{"type": "message", "id": "m", "content": 7}',
                ("/content", "wrong_type", "must be a string, not a number"),
            ),
            (
                '{"type": "message", "id": "m", "content": "' + "x" * (MOST_CHARS + 1) + '"}',
                ("/content", "string_too_long", "must have at most 8000 characters"),
            ),
            (
                '{"type": "confirm", "call": "c", "decision": "maybe"}',
                ("/decision", "not_allowed", "must be 'yes' or 'no', not 'maybe'"),
            ),
            (
                '{"type": "cancel", "id": "m", "more": 1}',
                ("/more", "unknown_property", "is no property here; accepted are 'id', 'type'"),
            ),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_any_other_is_refused_with_its_first_error(self, text: str, found: tuple[str, str, str]) -> None:
        with pytest.raises(BadFrame) as raised:
            read_frame(text)
        finding = raised.value.finding
        assert (finding.pointer, finding.code, finding.message) == found  # C13

    @settings(max_examples=30)
    @given(st.text(max_size=30) | TestRows.json.map(lambda value: orjson.dumps(value).decode()))
    def test_whatever_comes_is_a_frame_or_refused(self, text: str) -> None:
        with pytest.raises(BadFrame):
            read_frame(text)  # C13: none of these has a type


class TestServerFrames:
    @pytest.mark.parametrize(
        ("kind", "content", "ids", "told"),
        [
            ("state", {"event": "replaced"}, {}, {"session": None, "id": None}),
            ("error", {"code": "x"}, {"session": "s", "id": "m"}, {"session": "s", "id": "m"}),
        ],
    )
    def test_one_about_the_connection_has_no_number(
        self, kind: Any, content: Any, ids: dict[str, str], told: dict[str, Any]
    ) -> None:
        frame = orjson.loads(bare_frame(kind, content, **ids))
        assert frame == {"seq": None, "type": kind, "content": content, "final": False, **told}  # C13

    def test_one_of_a_session_has_the_number_of_the_log(self) -> None:
        assert orjson.loads(numbered(LoggedFrame(7, b'{"type":"state"}'))) == {
            "seq": 7,
            "type": "state",
        }  # C12


class Streaming:
    """An answer that is being written; the pace counts it while it is held."""


class TestPaceOfAnswers:
    def paced(self, answers: int) -> Pace:
        pace = Pace()
        self.held = [Streaming() for _ in range(answers)]
        pace.streaming.update(self.held)  # type: ignore[arg-type]
        return pace

    @pytest.mark.parametrize("answers", [0, 1, 10])
    def test_a_few_answers_write_at_once(self, answers: int) -> None:
        assert self.paced(answers).after(1.0) == 1.0  # C13

    @pytest.mark.parametrize(("answers", "pause"), [(11, 0.01), (100, 0.05), (400, 0.2)])
    def test_with_more_of_them_each_waits_its_share(self, answers: int, pause: float) -> None:
        assert self.paced(answers).after(1.0) == pytest.approx(1.0 + pause)  # C13

    @settings(max_examples=25)
    @given(st.integers(11, 200), st.floats(0, 1e6))
    def test_all_write_in_common_turns_and_never_more_than_a_core_can(
        self, answers: int, written: float
    ) -> None:
        again = self.paced(answers).after(written)
        assert again - written >= answers / TEXT_FRAMES_A_SECOND - 1e-6
        assert again - written <= answers / TEXT_FRAMES_A_SECOND + AT_ONCE_S + 1e-6


class StoodStill:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


class TestTokens:
    def test_one_is_its_users_until_it_ends(self) -> None:
        clock = StoodStill()
        tokens = Tokens(b"x" * 32, clock)
        token, ends = tokens.issue("acme", "ada è", 60)
        assert ends == clock.at + timedelta(seconds=60)  # C12, F43
        assert tokens.holder(token) == TokenHolder("acme", "ada è")
        assert tokens.holder(token).name == "ada è"
        clock.at += timedelta(seconds=59)
        assert tokens.holder(token).user == "ada è"
        clock.at += timedelta(seconds=1)
        with pytest.raises(CorrectTheInput):
            tokens.holder(token)

    def test_one_of_another_secret_or_with_another_payload_is_false(self) -> None:
        clock = StoodStill()
        token, _ = Tokens(b"x" * 32, clock).issue("acme", "ada", 60)
        payload, _, signature = token.partition(".")
        other, _, _ = Tokens(b"y" * 32, clock).issue("acme", "root", 60)[0].partition(".")
        for false in (
            f"{other}.{signature}",
            f"{payload}.{signature[:-2]}",
            payload,
            f".{signature}",
            "",
            ".",
        ):
            with pytest.raises(CorrectTheInput) as raised:
                Tokens(b"x" * 32, clock).holder(false)
            assert (raised.value.code, raised.value.detail) == (
                "token_invalid",
                "the token is not valid, or not any more",
            )  # F43

    @settings(max_examples=30)
    @given(st.text(max_size=40), st.text(max_size=40))
    def test_whatever_is_presented_it_is_refused_and_never_an_error(self, left: str, right: str) -> None:
        with pytest.raises(CorrectTheInput):
            Tokens(b"x" * 32, StoodStill()).holder(f"{left}.{right}")  # F36
