"""Versions for the diagrams: the samples, hostile names, and drafts that lack things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from flow_engine.documents import FlowVersion, parse_version
from tests.api.harness import clinic, needs, over_many_contacts
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version, variables

SAMPLES = Path(__file__).resolve().parents[3] / "flows" / "samples"

HOSTILE_NAMES = (
    'a "quoted" name',
    "back\\slash \\n \\",
    "line\nbreak\r\ntab\tnull\x00 next\u2028para\u2029",
    "colon: semi; hash #quot; #35; percent %% arrow --> t0",
    "brackets [*] {x} (y) <b>bold</b> &amp; &lt;",
    "</text></svg><script>alert(1)</script>",
    "state end note direction class classDef style click",
    "style x:#fff;",
    "`markdown` *x* __y__ $$\\frac$$ 1. list - item",
    "]]> <!-- --> <![CDATA[ <?xml?> <!DOCTYPE a>",
    "Perché no? Größe, Ελληνικά, 日本語, العربية, 👩\u200d⚕️",
    "\u202eright to left\u202c \ufeff\ufffe\u0085",
    "__proto__",
    "constructor",
    "*",
    "a.b.c",
    ".inner",
    "#id",
    "%41",
    "x" * 5_000,
    " ",
)

_TEXT = st.one_of(
    st.sampled_from(HOSTILE_NAMES),
    st.text(st.sampled_from("\"'#;:%{}[]()<>-*`~|&\\/\n\r\t$@! .,aé_1日"), max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def sample(name: str) -> dict[str, Any]:
    return json.loads((SAMPLES / name).read_text("utf-8"))["version"]


def samples() -> dict[str, FlowVersion]:
    return {path.name: parse_version(sample(path.name)) for path in sorted(SAMPLES.glob("*.json"))}


def clinics() -> dict[str, FlowVersion]:
    return {"one contact": parse_version(clinic()), "many contacts": parse_version(over_many_contacts())}


def draft(**changes: Any) -> FlowVersion:
    return parse_version({"draft": True, **changes})


@st.composite
def versions_with_any_names(draw: st.DrawFn) -> FlowVersion:
    """A draft, since drafts may call their tasks anything: the worst that can be stored."""
    ids = draw(st.lists(_TEXT, min_size=1, max_size=5, unique=True))
    known = [{**variable, "name": draw(_TEXT)} for variable in variables()]
    tasks = [
        draw(st.sampled_from((aio_task, hum_task)))(
            task_id,
            name=draw(_TEXT),
            connectedTasks=draw(st.lists(st.sampled_from([*ids, "nowhere"]), max_size=4)),
            transitionParameters=needs(*draw(st.lists(_TEXT, max_size=2)), "var_string"),
            channels=draw(st.sampled_from((None, [], ["phone"], ["phone", "chat"]))),
        )
        for task_id in ids
    ]
    return draft(tasks=tasks, variables=known, firstTask=draw(st.sampled_from([*ids, "elsewhere"])))


@st.composite
def runnable_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A version that can run, with ids that mean something to XState or to JavaScript."""
    odd = st.sampled_from([*HOSTILE_NAMES, "a", "b", "back", "active", "closed", ""])
    ids = draw(st.lists(odd, min_size=1, max_size=6, unique=True))
    several = {"multiContact": True, "conversationTimeLimit": 60, "customHandler": "https://a.example/x"}
    tasks: list[dict[str, Any]] = []
    for number, task_id in enumerate(ids):
        kind = draw(st.sampled_from(("AIO", "AIS", "HUM")))
        make = aio_task if kind == "AIO" else hum_task
        tasks.append(
            make(
                task_id,
                name=f"task number {number}",
                type=kind,
                connectedTasks=draw(st.lists(st.sampled_from(ids), max_size=6)),
                transitionParameters=needs(*draw(st.sets(st.sampled_from(("var_string", "var_number"))))),
                channels=draw(st.sampled_from((None, [], ["phone"], ["chat", "phone"]))),
                closureConfig=draw(st.sampled_from(({"multiContact": False}, several))),
            )
        )
    return minimal_version(tasks=tasks, firstTask=draw(st.sampled_from(ids)))
