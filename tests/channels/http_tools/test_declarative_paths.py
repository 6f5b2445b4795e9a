"""JSONPath: what it finds, and that an argument stays a value in it."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from channels.http_tools.json_paths import JsonPath, PathMistake
from channels.http_tools.scope import Scope
from flow_engine.conditions.lexing import Mistake
from flow_engine.values import JsonValue

ORDERS: JsonValue = {
    "orders": [
        {"orderNumber": 41, "id": "a", "by": "Ada"},
        {"orderNumber": 42, "id": "b", "by": 'it\'s "Bo"'},
        {"orderNumber": "43", "id": "c", "by": None},
        {"orderNumber": 42, "id": "d"},
    ],
    "current": 43,
    "names": ["x", "y"],
}
X = "{{args.x}}"
SELECTIONS = (f"[{X}]", f"[?@=={X}]", f"[?length({X})>1]", f"[?count(@.*)>={X}]", f"[?value(@.a)!={X}]")
SIGNS = ("[", "]", "[?", "@", "@.a", "==", "<", "!", "&&", "1", ",", ":", "*", "(", ")", ".a", "..")
PIECES = (*SELECTIONS, *SIGNS, X, f"'{X}'")
BY_NUMBER = JsonPath.parse("$.orders[?(@.orderNumber == {{args.n}})]")


def found_id(path: JsonPath, **args: JsonValue) -> JsonValue:
    order = path.first(ORDERS, Scope(args=args))
    return order["id"] if isinstance(order, dict) else order


class TestAPath:
    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("$", ORDERS),
            ("$.current", 43),
            ("$.gone", None),
            ("$.orders[1].id", "b"),
            ("$.orders[-1].id", "d"),
            ("$['orders'][0]['id']", "a"),
            ("$.orders[*].id", "a"),
            ("$..id", "a"),
            ("$.orders[?@.orderNumber == 42].id", "b"),
            ("$.orders[?(@.orderNumber == 42)].id", "b"),
            ("$.orders[?@.orderNumber == 42 && @.id != 'b'].id", "d"),
            ("$.orders[?@.id == 'z']", None),
            ("$.orders[?@.orderNumber == '42']", None),
            ("$.orders[?length(@.by) == 3].id", "a"),
            ("$.orders[?@.orderNumber == $.current]", None),
            ("$.names", ["x", "y"]),
        ],
    )
    def test_gives_the_first_that_it_finds(self, path: str, value: JsonValue) -> None:  # V9
        assert JsonPath.parse(path).first(ORDERS) == value

    @pytest.mark.parametrize("document", [None, 1, "text", [], {}, True])
    def test_finds_nothing_in_what_it_does_not_fit(self, document: JsonValue) -> None:  # V9
        assert JsonPath.parse("$.orders[?@.a == 1].id").first(document) is None

    def test_gives_null_for_a_document_too_deep_to_be_searched(self) -> None:  # V9
        one: JsonValue = {}
        other: JsonValue = {}
        for _ in range(3000):
            one, other = {"a": one}, {"a": other}
        assert JsonPath.parse("$..id").first(one) is None
        assert (
            JsonPath.parse("$.list[?@.one == @.other]").first({"list": [{"one": one, "other": other}]})
            is None
        )


class TestAnArgumentInAFilter:
    @pytest.mark.parametrize(
        ("argument", "order"),
        [
            (42, "b"),
            ("42", "b"),
            (42.0, "b"),
            (" 42 ", "b"),
            ("43", "c"),
            (43, "c"),
            ("042", None),
            ("x", None),
        ],
    )
    def test_equals_as_a_number_and_as_its_text(self, argument: JsonValue, order: JsonValue) -> None:  # V9
        assert found_id(BY_NUMBER, n=argument) == order

    @pytest.mark.parametrize("argument", [True, False, None, [], {}, [42], "", "null", "true"])
    def test_of_another_kind_equals_nothing(self, argument: JsonValue) -> None:  # V9
        assert found_id(BY_NUMBER, n=argument) is None

    def test_is_the_text_in_quotes(self) -> None:  # V9
        path = JsonPath.parse("$.orders[?@.by == '{{args.who}}'].id")
        assert path.first(ORDERS, Scope(args={"who": 'it\'s "Bo"'})) == "b"
        assert path.first(ORDERS, Scope()) is None

    def test_may_be_a_part_of_the_text_in_quotes(self) -> None:  # V9
        path = JsonPath.parse('$.orders[?@.by == "it\'s \\"{{args.who}}\\""].id')
        assert path.first(ORDERS, Scope(args={"who": "Bo"})) == "b"

    def test_takes_filters_with_quotes_of_their_own(self) -> None:  # V8
        path = JsonPath.parse("$.orders[?@.id == {{args.id | default('d')}}].orderNumber")
        assert path.first(ORDERS) == 42
        assert path.first(ORDERS, Scope(args={"id": "a"})) == 41

    def test_may_order_too(self) -> None:  # V9
        path = JsonPath.parse("$.orders[?@.orderNumber > {{args.n}}].id")
        assert path.first(ORDERS, Scope(args={"n": "41"})) == "b"

    def test_may_stand_first(self) -> None:  # V9
        path = JsonPath.parse("$.orders[?{{args.n}} == @.orderNumber].id")
        assert path.first(ORDERS, Scope(args={"n": "42"})) == "b"

    def test_a_literal_of_the_config_is_compared_strictly(self) -> None:
        """The negative of the rule for arguments."""
        assert JsonPath.parse("$.orders[?@.orderNumber == '42'].id").first(ORDERS) is None  # V9

    @given(
        st.text(alphabet="'\"\\]) ||&=@.$*?1trueorderNumber{}\ue000\ue0010\n", max_size=25)
        | st.text(max_size=20)
    )
    def test_is_never_syntax(self, text: str) -> None:  # V8
        """Found is the order whose name is exactly the text, and never another one."""
        assume(text != "decoy")
        named: list[JsonValue] = [{"by": "decoy"}, {"by": None}, {}, {"by": [text]}, {"by": text, "id": "it"}]
        scope = Scope(args={"who": text})
        for path in (
            "$[?@.by == {{args.who}}].id",
            "$[?(@.by == '{{args.who}}')].id",
            '$[?@.by == "{{args.who}}"].id',
        ):
            assert JsonPath.parse(path).first(named, scope) == "it"
        assert JsonPath.parse("$[?@.by == {{args.who}}].id").first(named[:-1], scope) is None

    def test_spelled_as_an_attack_is_compared_as_text(self) -> None:  # V8
        attack = "42 || true"
        assert found_id(BY_NUMBER, n=attack) is None
        naive = f"$.orders[?(@.orderNumber == {attack.replace('true', '@.id')})].id"
        assert JsonPath.parse(naive).first(ORDERS) == "a", "put into the text, it would have found an order"


class TestAnArgumentInBrackets:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("current", 43),
            ("gone", None),
            (None, None),
            (True, None),
            (["current"], None),
            ("*", None),
            ("'current'", None),
        ],
    )
    def test_is_a_name(self, key: JsonValue, value: JsonValue) -> None:  # V8
        assert JsonPath.parse("$[{{args.key}}]").first(ORDERS, Scope(args={"key": key})) == value
        if isinstance(key, str):
            assert JsonPath.parse("$['{{args.key}}']").first(ORDERS, Scope(args={"key": key})) == value

    @pytest.mark.parametrize(
        ("index", "value"), [(0, "x"), ("1", "y"), (-1, "y"), (2, None), ("9" * 30, None), (0.0, None)]
    )
    def test_is_an_index(self, index: JsonValue, value: JsonValue) -> None:  # V8
        assert JsonPath.parse("$.names[{{args.i}}]").first(ORDERS, Scope(args={"i": index})) == value

    def test_may_be_a_part_of_a_name(self) -> None:  # V8
        document: JsonValue = {"day-3": "open", "day-": "?"}
        assert JsonPath.parse("$['day-{{args.n}}']").first(document, Scope(args={"n": 3})) == "open"


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "at"),
        [
            ("", 1),
            ("orders", 1),
            ("$.", 3),
            ("$.orders[", 10),
            ("$.orders[?(@.a == 1]", 20),
            ("$.a[?@.b = 1]", 10),
            ("$.a[?match(@.b, 'x')]", 6),
            ("$.a[?search(@.b, 'x')]", 6),
            ("$.{{args.a}}", 3),
            ("$.a[?{{args.a}}]", 7),
            ("$.a[?@.b == {{args.a}} x", 24),
            ("$.a[?@.b == {{args.a]", 21),
            ("$..a..b", 1),
            ("$..a[?@..b]", 1),
            ("$.a[?@.b == 1 || $.c[*]]", 18),
            ("$.a[?@.b == 1e999]", 1),
            ("$.a\ue000", 1),
            ("$['\\ue0000\\ue001']", 1),
            ("$" + "[?(" * 40, 1),
            ("$" + ".a" * 600, 1001),
        ],
    )
    def test_are_found_when_it_is_read(self, text: str, at: int) -> None:  # V1
        with pytest.raises(Mistake) as caught:
            JsonPath.parse(text)
        assert caught.value.at == at
        assert "accepted" in str(caught.value)

    @given(st.text(alphabet="$.[]?@'\"*:,-19ab=<!&|(){}\\u ", max_size=25).map(lambda text: "$" + text))
    def test_are_all_there_is_beside_paths(self, text: str) -> None:  # V1
        try:
            path = JsonPath.parse(text)
        except Mistake:
            return
        path.first(ORDERS)

    @given(
        st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: "$" + "".join(pieces)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3
        ),
    )
    def test_are_all_there_is_whatever_an_argument_holds(self, text: str, value: JsonValue) -> None:  # V8
        try:
            path = JsonPath.parse(text)
        except Mistake:
            return
        path.first(ORDERS, Scope(args={"x": value}))
        path.first([[1, "1", None, True], {"a": {"a": [1.5]}}], Scope(args={"x": value}))

    def test_that_would_look_at_the_same_again_and_again_are_refused(self) -> None:  # V9
        with pytest.raises(PathMistake, match="at most 3 commas"):
            JsonPath.parse("$" + "[*,*]" * 20 + ".x")
        assert JsonPath.parse("$.orders[0]['a,b,c,d,e','id']").first(ORDERS) == "a"

    def test_name_the_place_behind_a_placeholder_in_the_text_as_written(self) -> None:  # V1
        with pytest.raises(PathMistake, match="character 34"):
            JsonPath.parse("$.a[?@.b == {{args.order_number}}%]")


@pytest.mark.parametrize(
    "path", ["$..[?@.b == {{args.x}}]", "$..[?@.a[?@.b]]", "$[?count(@..*) > 100000000]"]
)
def test_a_reply_of_a_megabyte_is_searched_in_seconds(path: str) -> None:  # V9
    document: JsonValue = [{"a": [{"a": i}, {"b": str(i)}], "c": {"d": [i]}} for i in range(15_000)]
    started = time.process_time()
    JsonPath.parse(path).first(document, Scope(args={"x": "none"}))
    assert time.process_time() - started < 10
