"""Laws of the linter, on versions that nobody thought of."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_engine.documents import FlowVersion, parse_version
from flow_engine.errors import CorrectTheInput
from flow_engine.linting import CODES, lint, lint_errors
from flow_engine.linting.graph import Barriers, components, explore, explore_arrivals
from flow_engine.vocabulary import CHANNELS
from tests.flow_engine.documents.samples import ENVIRONMENT, full_version, minimal_version
from tests.flow_engine.linting.versions import JsonObject, sound_version

TEXTS = (
    "",
    " ",
    "x",
    "service",
    "size",
    "{{ $vars.service }}",
    "{{ $values.day }}",
    "{{ x",
    "{% set x = 1 %}",
    "vars.size == 'S'",
    "vars.size > 3",
    "entries('x') >",
    "$.a[0",
    "${vars.x}",
    "it",
    "fr-FR",
)
NAMES = "abcdef"

graphs = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=4), min_size=1, max_size=6
).map(lambda edges: {node: tuple(t for t in targets if t in edges) for node, targets in edges.items()})

bounded = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def _places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


@st.composite
def versions(draw: st.DrawFn) -> JsonObject:
    """Sound versions with a few values replaced, removed or repeated; most of them still parse."""
    raw: JsonObject = copy.deepcopy(
        draw(st.sampled_from([sound_version(), full_version(), minimal_version()]))
    )
    ids = [each["_id"] for each in raw["tasks"]]
    for each in raw["tasks"]:
        each["connectedTasks"] = draw(st.lists(st.sampled_from(ids), max_size=4))
        each["channels"] = draw(st.none() | st.lists(st.sampled_from(CHANNELS), max_size=3))
    for _ in range(draw(st.integers(0, 4))):
        *above, last = draw(st.sampled_from(list(_places(raw))))
        owner: Any = raw
        for key in above:
            owner = owner[key]
        value = owner[last]
        change = draw(st.sampled_from(["replace", "repeat", "remove"]))
        if change == "remove" and isinstance(value, list):
            owner[last] = []
        elif change == "repeat" and isinstance(value, list):
            owner[last] = value * 2
        elif isinstance(value, str):
            owner[last] = draw(st.sampled_from(TEXTS))
        elif isinstance(value, bool):
            owner[last] = not value
        elif isinstance(value, int | float):
            owner[last] = draw(st.sampled_from([0, -1, 1e300, 0.5]))
    return raw


def resolves(document: Any, pointer: str) -> bool:
    """Whether the pointer leads to something, or to a property that its owner lacks."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for number, part in enumerate(parts):
        if isinstance(document, dict) and part not in document:
            return number == len(parts) - 1
        document = document[int(part)] if isinstance(document, list) else document[part]
    return True


def parsed(raw: JsonObject) -> tuple[FlowVersion | None, set[str]]:
    """The version, or the codes it is refused with."""
    try:
        return parse_version(raw), set()
    except CorrectTheInput as refusal:
        return None, {finding.code for finding in refusal.findings}


@bounded
@given(versions())
def test_whatever_parses_is_linted_without_a_fault(raw: JsonObject) -> None:  # F9
    version, refused = parsed(raw)
    assert refused <= CODES.keys()
    if version is None:
        return
    findings = lint(version, ENVIRONMENT)
    assert findings == lint(version, ENVIRONMENT)
    for finding in findings:
        assert finding.code in CODES
        assert finding.reason
        assert resolves(raw, finding.pointer), finding


@bounded
@given(versions())
def test_what_is_read_of_a_document_has_the_errors_that_the_version_has(raw: JsonObject) -> None:  # F2
    version, _ = parsed(raw)
    told = list(lint_errors(raw))
    assert all(resolves(raw, finding.pointer) for finding in told)
    if version is not None:
        errors = [each.as_finding() for each in lint(version, ENVIRONMENT) if each.severity == "error"]
        assert sorted(told, key=str) == sorted(errors, key=str)


@bounded
@given(versions(), st.data())
def test_no_document_is_too_broken_to_be_read(raw: JsonObject, data: st.DataObject) -> None:  # F2
    for _ in range(data.draw(st.integers(1, 6))):
        *above, last = data.draw(st.sampled_from(list(_places(raw))))
        owner: Any = raw
        for key in above:
            owner = owner[key]
        owner[last] = data.draw(st.sampled_from([None, True, 5, "{{ x", [], {}, [None, {}], {"a/b": 5}]))
    assert all(finding.code in CODES for finding in lint_errors(raw))


@given(graphs)
def test_components_are_mutually_reachable_and_come_after_what_they_lead_to(  # F9
    edges: dict[str, tuple[str, ...]],
) -> None:
    found = components(edges)
    place = {node: number for number, component in enumerate(found) for node in component}
    assert sorted(node for component in found for node in component) == sorted(edges)
    reach = {node: explore(node, edges).keys() for node in edges}
    for one in edges:
        for other in edges:
            together = other in reach[one] and one in reach[other]
            assert (place[one] == place[other]) == together
            if other in reach[one] and not together:
                assert place[other] < place[one]


@given(
    graphs,
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES), max_size=1),
)
def test_the_analysis_finds_what_walking_every_path_finds(  # F9
    edges: dict[str, tuple[str, ...]], tools: set[str], needing: set[str], impossible: set[str]
) -> None:
    first = next(iter(edges))
    found = explore_arrivals(
        first, edges, Barriers(dict.fromkeys(tools, 1), dict.fromkeys(needing, 1), impossible)
    )
    seen = {(first, False)}
    # Twice the tasks is as long as a shortest path to any pair of task and history can be.
    paths = {(first, False)}
    for _ in range(2 * len(edges)):
        steps = {
            (target, history or task in tools)
            for task, history in paths
            for target in edges[task]
            if target not in impossible and (target not in needing or history or task in tools)
        }
        paths = steps - seen
        seen |= steps
    assert found.arrivals.keys() == seen
    for task, history in seen:
        for target in edges[task]:
            open_now = target not in impossible and (target not in needing or history or task in tools)
            assert (((task, history), target) in found.closed_moves) != open_now
            if open_now:
                assert found.can_follow((task, history), target)
