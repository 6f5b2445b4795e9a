"""Addresses: an argument is one segment, or one value of the query, whatever it holds."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.http_tools.scope import Scope
from channels.http_tools.templates import TemplateMistake, Unresolved, UrlTemplate
from flow_engine.values import JsonValue

STEPS = (".", "..")
ROOT = {"base_url": "https://api.example/v1"}


def address(text: str, base: str = "https://api.example/v1", **args: JsonValue) -> str:
    return UrlTemplate.parse(text).render(Scope(root={"base_url": base}, args=args))


class TestThePath:
    @pytest.mark.parametrize(
        ("value", "segment"),
        [
            ("r-7", "r-7"),
            (12, "12"),
            (True, "true"),
            ("a b", "a%20b"),
            ("a/b", "a%2Fb"),
            ("../../admin", "..%2F..%2Fadmin"),
            ("...", "..."),
            ("a?b#c", "a%3Fb%23c"),
            ("%2e%2e", "%252e%252e"),
            ("é", "%C3%A9"),
            ("\ud800", "%3F"),
            ("{{ctx.x}}", "%7B%7Bctx.x%7D%7D"),
        ],
    )
    def test_takes_an_argument_as_one_segment(self, value: JsonValue, segment: str) -> None:  # V8
        assert (
            address("{{base_url}}/orders/{{args.id}}/x", id=value)
            == f"https://api.example/v1/orders/{segment}/x"
        )

    @given(st.text(min_size=1).filter(lambda value: value not in STEPS))
    def test_has_as_many_segments_whatever_the_argument(self, value: str) -> None:  # V8
        parts = urlsplit(address("{{base_url}}/orders/{{args.id}}/x", id=value))
        assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("https", "api.example", "", "")
        assert parts.path.count("/") == 4
        segment = parts.path.split("/")[3]
        assert segment not in (".", "..")
        assert unquote(segment) == value.encode("utf-8", "replace").decode()

    @given(st.text(alphabet="./", min_size=1, max_size=3), st.text(alphabet="./", min_size=1, max_size=3))
    def test_takes_no_step_up_in_a_segment_of_several_parts(self, one: str, other: str) -> None:  # V8
        if one + other in STEPS:
            with pytest.raises(Unresolved, match=r"args\.a"):
                address("{{base_url}}/o/{{args.a}}{{args.b}}", a=one, b=other)
            return
        path = urlsplit(address("{{base_url}}/o/{{args.a}}{{args.b}}", a=one, b=other)).path
        assert path.split("/")[3] not in (".", "..")
        assert path.count("/") == 3

    @pytest.mark.parametrize("value", STEPS)
    def test_takes_no_step_that_servers_read_in_percent_signs_too(self, value: str) -> None:  # V8
        with pytest.raises(Unresolved, match=r"args\.id"):
            address("{{base_url}}/orders/{{args.id}}", id=value)

    @pytest.mark.parametrize("value", [None, ""])
    def test_lacking_a_value_names_nothing_else(self, value: JsonValue) -> None:  # V8
        with pytest.raises(Unresolved, match=r"args\.id"):
            address("{{base_url}}/orders/{{args.id}}", id=value)

    def test_takes_a_default(self) -> None:  # V8
        assert address("{{base_url}}/o/{{args.id | default('all')}}") == "https://api.example/v1/o/all"


class TestTheBase:
    def test_is_inserted_as_it_is(self) -> None:  # V8
        assert address("{{base_url}}/a", base="http://localhost:3000") == "http://localhost:3000/a"

    def test_may_end_with_a_slash(self) -> None:  # V8
        assert address("{{base_url}}/a", base="http://localhost:3000/") == "http://localhost:3000/a"

    def test_may_be_all_there_is(self) -> None:  # V8
        assert address("{{base_url}}") == "https://api.example/v1"

    def test_may_be_written_out(self) -> None:  # V8
        assert address("HTTPS://api.example:8443/a/{{args.x}}", x=1) == "HTTPS://api.example:8443/a/1"

    @pytest.mark.parametrize("base", [None, "", 5, "https://", "https:///", "https:", "ftp://h", "h", "/"])
    def test_without_a_host_names_nothing(self, base: JsonValue) -> None:  # V8
        with pytest.raises(Unresolved, match="base_url"):
            UrlTemplate.parse("{{base_url}}/{{args.x}}").render(
                Scope(root={"base_url": base}, args={"x": "evil"})
            )

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "/a",
            "api.example/a",
            "ftp://api.example/a",
            "https://{{args.host}}/a",
            "https://api{{args.x}}/a",
            "https://api.example{{args.x}}",
            "{{args.url}}",
            "{{ctx.url}}/a",
            "{{session.url}}/a",
            "{{caller_phone}}/a",
            "{{base_url}}a",
            "{{base_url}}{{args.x}}",
            "{{base_url}}/a#b",
            "https://api.example/a#{{args.x}}",
            "https://",
        ],
    )
    def test_is_never_the_argument_of_a_model(self, text: str) -> None:  # V8
        with pytest.raises(TemplateMistake):
            UrlTemplate.parse(text)


class TestTheQuery:
    @given(st.text())
    def test_takes_an_argument_as_one_value(self, value: str) -> None:  # V8
        query = urlsplit(address("{{base_url}}/a?fixed=1&q={{args.q}}", q=value)).query
        expected = value.encode("utf-8", "replace").decode()
        assert parse_qsl(query, keep_blank_values=True) == [("fixed", "1"), ("q", expected)]

    def test_leaves_out_what_is_not_there(self) -> None:  # V8
        assert address("{{base_url}}/a?x={{args.x}}&y=1&flag&z=a{{args.x}}").endswith("/a?y=1&flag&z=a")

    def test_repeats_lists_and_goes_on_with_the_parameters(self) -> None:  # V8
        url = UrlTemplate.parse("{{base_url}}/a?x={{args.x}}").render(
            Scope(root={"base_url": "https://h"}, args={"x": [1, None, "b c"]}),
            [("p", True), ("q", None), ("r", [1.5, "é"]), ("s", {"a": 1}), ("t&u", "=")],
        )
        assert url == "https://h/a?x=1&x=b%20c&p=true&r=1.5&r=%C3%A9&s=%7B%22a%22%3A1%7D&t%26u=%3D"

    def test_a_question_mark_of_an_argument_begins_no_query(self) -> None:  # V8
        assert address("{{base_url}}/{{args.a}}?b={{args.b}}", a="x?y=1", b="1?&2").endswith(
            "/x%3Fy%3D1?b=1%3F%262"
        )
