"""The table of codes is complete, and the page for designers is written from it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import flow_engine
from flow_engine.linting import CODES
from flow_engine.linting.page import written_anew
from flow_engine.templates.parsing import ERROR_CODES

PACKAGE = Path(flow_engine.__file__).parent
PAGE = PACKAGE.parent / "docs" / "lint.md"

CODE_ARGUMENTS = {"Finding": 1, "LintFinding": 1, "_Known": 1, "_repeated": 1, "PydanticCustomError": 0}
"""Calls that make a finding, with the position of its code."""
REPLACED = {"required_here"}
"""Told as `missing_property` at the place of the property."""


def sources() -> Iterator[ast.Module]:
    """Everything that makes findings; the table itself does not."""
    for path in (
        *(PACKAGE / "documents").glob("*.py"),
        *(PACKAGE / "linting").glob("*.py"),
        *(PACKAGE / "linting" / "rules").glob("*.py"),
        PACKAGE / "templates" / "parsing.py",
        PACKAGE / "conditions" / "review.py",
        PACKAGE / "use_cases" / "submissions.py",
    ):
        yield ast.parse(path.read_text("utf-8"))


def texts_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def codes_given() -> Iterator[str]:
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                position = CODE_ARGUMENTS.get(node.func.id, len(node.args))
                for argument in node.args[position : position + 1]:
                    if isinstance(argument, ast.Constant):
                        yield str(argument.value)


def test_every_code_that_is_given_is_in_the_table() -> None:  # F9
    assert set(codes_given()) - REPLACED <= CODES.keys()


def test_every_code_of_the_table_is_given_somewhere() -> None:  # F9
    assert CODES.keys() <= {text for tree in sources() for text in texts_in(tree)}


def test_templates_refuse_a_save_by_the_same_codes_as_the_table_says() -> None:  # F9
    of_templates = {code for code in CODES if code.startswith("template_")}
    assert {code for code in of_templates if CODES[code].severity == "error"} == ERROR_CODES


def test_every_row_says_what_it_means_and_what_to_do() -> None:  # F9
    for key, row in CODES.items():
        assert key == row.code
        assert row.example
        assert not row.title.endswith(".")
        for text in (row.why, row.advice):
            assert text.endswith("."), key
            assert text[0].isupper() or text[0] == "`", key


def kept_in_every_language(text: str) -> Counter[str]:
    """What a translation repeats: literals between backticks, and numbers without marks of thousands."""
    literals = re.findall(r"`[^`]+`", text)
    prose = re.sub(r"`[^`]*`", " ", text)
    return Counter(literals + re.findall(r"\d+", re.sub(r"(?<=\d)[.,](?=\d{3}\b)", "", prose)))


@pytest.mark.parametrize("language", ["it", "es"])
def test_every_code_is_explained_in_every_language_of_the_console(language: str) -> None:  # F9
    translated = tomllib.loads((PACKAGE / "linting" / f"codes.{language}.toml").read_text("utf-8"))
    assert list(translated) == list(CODES), "the same codes in the same order"
    for code, row in CODES.items():
        english = row.model_dump(include={"title", "why", "advice"})
        assert translated[code].keys() == english.keys(), code
        for field, text in translated[code].items():
            assert text == text.strip() != "", (code, field)
            assert text != english[field], (code, field)
            assert kept_in_every_language(text) == kept_in_every_language(english[field]), (code, field)
            assert text.endswith(".") == (field != "title"), (code, field)
            assert text[0].isupper() or text[0] == "`", (code, field)


def test_the_page_is_the_table() -> None:  # F9
    written = PAGE.read_text("utf-8")
    assert written == written_anew(written), "write it anew: python -m flow_engine.linting.page docs/lint.md"
