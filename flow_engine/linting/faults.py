"""Errors in the texts that have a language of their own: conditions, paths into results, templates.

Of a sound version they are found by its rules; of one that is refused for anything else, by what can be read
of the document, so that one kind of mistake does not hide the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flow_engine.conditions import language, review
from flow_engine.documents.findings import quoted
from flow_engine.documents.references import Texts
from flow_engine.json_paths import PathRefused, read_path
from flow_engine.linting.codes import LintFinding
from flow_engine.templates import lint_template, spaced_name
from flow_engine.variables import VariableIndex

_WORD = re.compile(r"[^\W\d]\w*")


def read_condition(
    place: str, when: str, names: review.Names | None
) -> tuple[language.Tree | None, list[LintFinding]]:
    """The condition, None where it cannot be read, and what is wrong with it. Without `names` nothing is said
    of those that it has. `place` is an RFC 6901 pointer."""
    tree, mistakes = language.read(when)
    spaced = "" if names is None else spaced_name(when, names.variables.resolve)
    faults = [
        LintFinding(place, "condition_unknown_name", f"{mistake}{_with_root(when, mistake.at, names)}")
        if isinstance(mistake, language.UnknownName)
        else LintFinding(place, "condition_syntax", f"{mistake}{spaced}")
        for mistake in mistakes
    ]
    if tree is not None and names is not None:
        faults += [LintFinding(place, code, reason) for code, reason in review.problems_of(tree, names)]
    return tree, faults


def _with_root(when: str, at: int, names: review.Names | None) -> str:
    """`; write vars.x` where a variable stands bare at that place, from 1; empty for all else."""
    word = _WORD.match(when, at - 1)
    if word is None or names is None or names.variables.resolve(word.group()) is None:
        return ""
    return f"; write vars.{word.group()}"


def path_faults(place: str, path: str) -> Iterator[LintFinding]:
    """What cannot be read would never be written. `place` is an RFC 6901 pointer."""
    try:
        read_path(path)
    except PathRefused as refused:
        yield LintFinding(place, "result_path_invalid", f"{quoted(path)}: {refused}")


def faults_of(texts: Texts) -> Iterator[LintFinding]:
    """The errors that the rules would find, in their order."""
    names = None
    if texts.variables is not None and texts.tasks is not None:
        names = review.Names(VariableIndex(texts.variables), texts.tasks)
    for condition in texts.conditions:
        yield from read_condition(condition.pointer, condition.text, names)[1]
    for path in texts.paths:
        yield from path_faults(path.pointer, path.text)
    for template in texts.templates:
        errors, _ = lint_template(template.text, (), template.pointer)
        yield from (LintFinding(each.pointer, each.code, each.message) for each in errors)
