"""YAML from nobody knows whom: values are what they look like, and small files stay small."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.testing.yaml_text import MAX_BYTES, MAX_DEPTH, FileRejected, read_yaml

# Characters that a JSON text escapes or that YAML takes as they are.
TEXT = st.text(
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=40
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(-1e15, 1e15, allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def rejected(text: str | bytes) -> tuple[int, str]:
    with pytest.raises(FileRejected) as caught:
        read_yaml(text if isinstance(text, bytes) else text.encode())
    [mistake] = caught.value.mistakes
    return mistake.line, mistake.code


@given(JSON)
def test_every_json_document_reads_as_itself(value: object) -> None:
    node, mistakes = read_yaml(json.dumps(value).encode())
    assert not mistakes
    assert node.value == value


@pytest.mark.parametrize(
    "text", ["no", "12:30", "2026-03-01", "007", "+39 06", "0x1F", "1_000", ".inf", "y", "1e", "=", "<<"]
)
def test_an_unquoted_text_keeps_every_character(text: str) -> None:
    node, _ = read_yaml(f"key: {text}".encode())
    assert node.value == {"key": text}


def test_constants_and_numbers_are_those_of_json() -> None:
    node, _ = read_yaml(b"[~, null, true, FALSE, 12, -3, 1.5, 2e3, '12', \"true\"]")
    assert node.value == [None, None, True, False, 12, -3, 1.5, 2000.0, "12", "true"]


def test_keys_are_always_text() -> None:
    node, _ = read_yaml(b"1: a\ntrue: b\n")
    assert node.value == {"1": "a", "true": "b"}


def test_an_alias_repeats_its_anchor_and_has_a_line_of_its_own() -> None:
    node, _ = read_yaml(b"a: &basket {x: 1}\nb: *basket\n")
    assert node.value == {"a": {"x": 1}, "b": {"x": 1}}
    assert node.line_of(("b",)) == 2


def test_a_key_given_twice_is_a_mistake_that_names_both_lines() -> None:
    node, [mistake] = read_yaml(b"a: 1\nb: {c: 1,\n c: 2}\n")
    assert node.value == {"a": 1, "b": {"c": 1}}
    assert (mistake.line, mistake.pointer, mistake.code) == (3, "/b/c", "duplicate_key")
    assert "line 2" in mistake.message


def test_a_merge_key_merges_nothing() -> None:
    node, _ = read_yaml(b"a: &a {x: 1}\nb: {<<: *a, y: 2}\n")
    assert node.value == {"a": {"x": 1}, "b": {"<<": {"x": 1}, "y": 2}}


def test_numbers_that_would_lose_digits_are_mistakes() -> None:
    _, found = read_yaml(b"- 18446744073709551616\n- 1e999\n- " + b"9" * 5000)
    assert [(mistake.line, mistake.pointer) for mistake in found] == [(1, "/0"), (2, "/1"), (3, "/2")]


def test_a_bomb_of_aliases_is_refused_before_it_grows() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    line, code = rejected(bomb)
    assert code == "too_large"
    assert 4 <= line <= 8


def test_a_long_text_repeated_by_aliases_is_refused() -> None:
    assert rejected(f"- &a {'x' * 300_000}\n" + "- *a\n" * 100)[1] == "too_large"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"x" * (MAX_BYTES + 1), (1, "too_large")),
        ("[" * 100_000, (1, "too_deep")),
        ("- " * 100_000, (1, "too_deep")),
        ("a: 1\nb: !!python/object:os.system {}\n", (2, "tag")),
        ("!!str 5", (1, "tag")),
        ("a: *nobody", (1, "alias_unknown")),
        ("a: &a [*a]", (1, "alias_unknown")),
        ("? [a, b]\n: 1\n", (1, "key_not_text")),
        ("a: 1\n---\nb: 2\n", (2, "several_documents")),
        ("", (1, "empty")),
        ("# nothing\n", (1, "empty")),
        ("a: 1\nb: [\n", (3, "not_yaml")),
        ("a: 1\n\tb: 2\n", (2, "not_yaml")),
        (b"a: 1\nb: \xff\n", (2, "not_utf8")),
        ("a: \x07", (1, "not_yaml")),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str | bytes, expected: tuple[int, str]) -> None:
    assert rejected(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- say: It hurts: badly\n", "a text with a colon and a space in it stands in quotes"),
        ("a:\n\tb: 2\n", "indent by spaces, not tabs"),
        ("a: @b\n", "begins with @"),
    ],
)
def test_the_slips_that_people_make_are_told_with_what_helps(text: str, told: str) -> None:
    with pytest.raises(FileRejected) as refused:
        read_yaml(text.encode())
    assert told in refused.value.mistakes[0].message


def test_a_reader_may_take_longer_files() -> None:
    text = b"a: 1\n" + b"# " * MAX_BYTES
    assert read_yaml(text, 2 * len(text))[0].value == {"a": 1}
    many = b"[" + b"1," * MAX_BYTES + b"]"
    assert len(read_yaml(many, len(many))[0].children) == MAX_BYTES


def test_the_deepest_document_is_read() -> None:
    node, mistakes = read_yaml(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert not mistakes
    assert node.line == 1
