"""Mermaid, Graphviz and SVG: what is drawn, and that no name gets out of its quotes."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from adapters.graphviz import Graphviz
from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.documents import FlowVersion, parse_version
from flow_engine.errors import CallTheOperator, CorrectTheInput, ReloadAndDecide
from tests.api.harness import needs
from tests.flow_engine.diagrams.conftest import JavaScript
from tests.flow_engine.diagrams.drawn import HOSTILE_NAMES, clinics, draft, samples, versions_with_any_names
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version

# Every line that a diagram may have. Labels hold no quote, colon, hash or bracket of their own.
_ID = r"(?:t\d+(?:_[a-z]+)?|active|between_contacts|closed|\[\*\])"
_TEXT = r"(?:[^\W_]|[ ,.()·]|#\d+;)+"
MERMAID_LINE = re.compile(
    rf'stateDiagram-v2|\s*(?:{_ID} --> {_ID}(?: : {_TEXT})?|state (?:"{_TEXT}" as {_ID}|active)(?: {{)?|}}'
    r"|classDef \w+ [-\w:#,]+|class (?:t\d+,?)+ \w+)"
)
SVG = "{http://www.w3.org/2000/svg}"


def hostile() -> FlowVersion:
    tasks = [
        hum_task(
            f"id {number}", name=name, transitionParameters=needs("v", name), connectedTasks=[name, "id 0"]
        )
        for number, name in enumerate(HOSTILE_NAMES)
    ]
    known = [{"_id": "v", "name": HOSTILE_NAMES[0], "type": "custom"}]
    return draft(tasks=tasks, variables=known, firstTask="id 0")


def svg_of(version: FlowVersion) -> ElementTree.Element:
    done = subprocess.run(["dot", "-Tsvg"], input=dot(version).encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return ElementTree.fromstring(done.stdout)


def texts(svg: ElementTree.Element) -> str:
    return " ".join(text.text or "" for text in svg.iter(f"{SVG}text"))


needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not on this machine")


class TestMermaid:
    def test_tasks_sub_states_and_conditions_are_drawn(self) -> None:  # F27
        drawn = mermaid(clinics()["many contacts"]).splitlines()
        assert drawn[0] == "stateDiagram-v2"
        lines = {line.strip() for line in drawn}
        assert {
            "[*] --> active",
            "[*] --> t0",
            'state "reception · AIO" as t0',
            'state "operator · HUM" as t2 {',
            "t2_routing --> t2_connected : connected",
            "t2_routing --> t2_failed : failed",
            "t3_ai --> t3_human : taken over",
            "t0 --> t1 : needs a string, a boolean",
            "t0 --> t4 : only on chat",
            "t1 --> t0",
            "active --> between_contacts : contact ended",
            "active --> closed : conversation closed",
            "closed --> [*]",
        } <= lines

    def test_one_contact_has_nothing_between_contacts(self) -> None:  # F10
        assert "between" not in mermaid(clinics()["one contact"])

    def test_where_only_some_tasks_wait_for_the_next_contact_they_are_named(self) -> None:  # F30
        drawn = mermaid(samples()["claim.es.json"])
        assert "active --> between_contacts : contact ended, but for cierre" in drawn

    def test_a_task_that_a_draft_names_and_lacks_is_drawn_as_missing(self) -> None:  # F8
        drawn = mermaid(draft(tasks=[aio_task(connectedTasks=["away"])]))
        assert 'state "away · missing" as t1' in drawn
        assert "[*] --> t" not in drawn

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(versions_with_any_names())
    def test_no_name_is_ever_part_of_the_grammar(self, version: FlowVersion) -> None:  # F27
        for line in mermaid(version).split("\n")[:-1]:
            assert MERMAID_LINE.fullmatch(line), line

    @pytest.mark.long
    def test_mermaid_itself_reads_every_diagram(  # F27
        self, javascript: Callable[[str], JavaScript]
    ) -> None:
        drawn = [mermaid(each) for each in (*samples().values(), *clinics().values(), hostile())]
        seen: list[str] = []

        @settings(
            max_examples=40,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(versions_with_any_names())
        def collect(version: FlowVersion) -> None:
            seen.append(mermaid(version))

        collect()
        assert [each for each in javascript("mermaid/parse.mjs")([*drawn, *seen]) if each] == []

    def test_what_a_label_lists_is_bounded(self) -> None:
        many = aio_task("many", transitionParameters=needs(*(f"v{n}" for n in range(500))))
        drawn = mermaid(draft(tasks=[aio_task(connectedTasks=["many"]), many], firstTask="reception"))
        assert "and 488 more" in drawn
        assert len(drawn) < 2_000

    def test_a_draft_without_tasks_is_refused(self) -> None:  # F8
        with pytest.raises(ReloadAndDecide, match="nothing_to_draw"):
            mermaid(draft())


@needs_dot
class TestGraphviz:
    @pytest.mark.parametrize("name", ["claim.es.json", "health-booking.it.json", "order.en.json"])
    def test_a_sample_is_an_image_with_all_its_tasks(self, name: str) -> None:  # F27
        version = samples()[name]
        said = texts(svg_of(version))
        for task in version.tasks:
            assert task.effective_name in said
        assert {"active", "closed"} <= set(said.split())

    def test_every_hostile_name_is_only_text(self) -> None:  # F27
        svg = svg_of(hostile())
        allowed = {"svg", "g", "title", "polygon", "polyline", "path", "ellipse", "text", "a"}
        assert {element.tag.removeprefix(SVG) for element in svg.iter()} <= allowed
        attributes = {name for element in svg.iter() for name in element.attrib}
        assert not {name for name in attributes if name.lower().startswith("on") or "href" in name}
        assert "<script>alert(1)</script>" in re.sub(r"\s", "", texts(svg))

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(versions_with_any_names())
    def test_any_names_give_well_formed_xml(self, version: FlowVersion) -> None:  # F27
        svg_of(version)

    def test_there_and_back_is_one_line(self) -> None:
        drawn = dot(parse_version(minimal_version()))
        assert "t0 -> t1 [dir=both]" in drawn
        assert "t1 -> t0" not in drawn


def test_needs_that_would_fill_the_memory_on_every_arrow_are_refused() -> None:  # F27
    variables = [{"_id": f"v{n}", "name": "€" * 58 + f"{n:02}", "type": "custom"} for n in range(12)]
    ids = [f"t{number}" for number in range(50)]
    needed = needs(*(str(each["_id"]) for each in variables))
    tasks = [aio_task(each, transitionParameters=needed) for each in ids]
    with pytest.raises(CorrectTheInput, match="diagram_too_large"):
        mermaid(draft(tasks=tasks, firstTask="t0", globalTasks=ids, variables=variables))


@pytest.mark.anyio
class TestRenderer:
    @needs_dot
    async def test_it_draws_svg(self) -> None:
        drawn = await Graphviz().svg(dot(clinics()["one contact"]))
        assert ElementTree.fromstring(drawn).tag == f"{SVG}svg"

    async def test_a_missing_program_is_named(self) -> None:
        with pytest.raises(CallTheOperator, match=r"graphviz_missing.*'dot-that-is-not-there'"):
            await Graphviz(("dot-that-is-not-there", "-Tsvg")).svg("digraph {}")

    async def test_what_takes_too_long_is_ended_and_refused(self) -> None:
        slow = Graphviz((sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.3)
        started = time.monotonic()
        with pytest.raises(CorrectTheInput, match="diagram_too_large"):
            await slow.svg("digraph {}")
        assert time.monotonic() - started < 10

    async def test_a_source_beyond_the_bound_is_not_begun(self) -> None:
        with pytest.raises(CorrectTheInput, match="diagram_too_large"):
            await Graphviz(("dot-that-is-not-there",)).svg("x" * 2_000_001)

    async def test_a_program_that_fails_is_an_operators_matter(self) -> None:
        broken = Graphviz((sys.executable, "-c", "import sys; sys.exit('no fonts')"))
        with pytest.raises(CallTheOperator, match=r"graphviz_failed.*no fonts"):
            await broken.svg("digraph {}")

    async def test_a_caller_who_leaves_takes_the_program_along(self) -> None:
        slow = Graphviz((sys.executable, "-c", "import time; time.sleep(60)"))
        drawing = asyncio.create_task(slow.svg("digraph {}"))
        await asyncio.sleep(0.2)
        drawing.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await drawing
        assert time.monotonic() - started < 10
