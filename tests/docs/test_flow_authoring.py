"""The page for flow authors: what it shows is run, and it names all that a document may hold."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from adapters.models.tools import Approval
from channels.engine_client.client import Contact, FlowChoice, NewContact
from channels.engine_client.toolbox import Toolbox
from flow_engine.documents import DocumentLimits
from flow_engine.documents.json_schema import version_schema
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.models import ToolCall
from flow_engine.use_cases.submissions import Submission, Submissions
from service.scenarios import run_tests
from system_prompts.loader import load_system_prompts
from tests.api.harness import open_scene
from tests.channels.engine_client.engine_doubles import client_of
from tests.channels.engine_client.test_mcp_connections import connections, running
from tests.service_process import ROOT

PAGE = (ROOT / "docs" / "flow-authoring.md").read_text(encoding="utf-8")
LLMS = (ROOT / "llms.txt").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOW = datetime(2026, 1, 15, tzinfo=UTC)


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def checked(document: Any) -> Submission:
    submissions = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version-1")
    return submissions.check(orjson.dumps(document), flow_id="tea", created_by="ada", now=NOW)


def test_the_flow_of_the_page_is_saved_without_a_warning() -> None:  # console: flow authoring
    assert checked(json.loads(block("json"))).warnings == ()


def test_an_unknown_property_is_an_error_in_the_version_and_a_warning_inside_it() -> None:  # F2 F9
    assert "version\nitself is closed" in PAGE
    assert "warning `unknown_property`" in PAGE
    document = json.loads(block("json"))
    document["tasks"][0]["promt"] = "Say hello."
    assert [found.code for found in checked(document).warnings] == ["unknown_property"]
    with pytest.raises(CorrectTheInput) as refusal:
        checked({**document, "globalPromt": "Be kind."})
    assert [(found.pointer, found.code) for found in refusal.value.findings] == [
        ("/globalPromt", "unknown_property")
    ]


def test_the_tests_of_the_page_pass_and_enter_every_task() -> None:
    verdict = run_tests(checked(json.loads(block("json"))), "tea", block("yaml").encode())
    assert [row["failure"] for row in verdict["scenarios"]] == [None] * 3
    assert verdict["coverage"]["tasks"]["leftOut"] == ()


@pytest.mark.anyio
async def test_an_agent_runs_the_tool_of_the_page_as_it_says() -> None:  # F28, V2
    page: dict[str, Any] = {"__name__": "page"}
    exec(block("python"), page)
    document = {**json.loads(block("json")), "_id": "version-1", "firstTask": "sale"}
    async with running(page["shop"]) as (url, _), connections() as servers:
        document["mcpServers"][0]["url"] = url
        async with open_scene(document) as scene:
            engine, contact = client_of(scene), Contact("tea-1", "call-1")
            data = await engine.new_contact(NewContact(contact, FlowChoice(version_id="version-1"), "phone"))

            async def ran(tool: object, answer: object) -> None:
                """Nothing follows here."""

            tools = await Toolbox(engine, servers, ran, Approval()).of_task(data)
            [tool] = tools.tools
            assert tool.parameters["properties"] == {}
            lacking = await tools.registry.run(ToolCall("1", "place_order", {}))
            assert lacking == {"error": "no value yet for: tea, grams", "missing": ["tea", "grams"]}
            await engine.put_memory(contact, "till", {"tea": "sencha", "grams": 200}, frozenset())
            answer = await tools.registry.run(ToolCall("2", "place_order", {}))
            order = {"number": "T-7", "what": "200 g of sencha"}
            assert orjson.loads(str(answer)) == {"order": order}
            memory = await engine.memory("tea-1")
            assert memory.value_of("order") == order


@pytest.mark.parametrize("condition", block("conditions").strip().splitlines())
def test_each_condition_of_the_page_is_one(condition: str) -> None:
    document = json.loads(block("json"))
    document["tasks"][1]["entryCondition"] = {"when": condition, "reason": "as the page has it"}
    assert checked(document).entry.version_id == "version-1"


def test_every_property_of_version_task_and_variable_is_on_the_page() -> None:
    schema = version_schema()
    definitions = schema["$defs"]
    set_by_server = {"schemaVersion", "apiVersion"}
    parts = [definitions[name] for name in ("Task", "Variable")]
    for properties in (schema["properties"], *(part["properties"] for part in parts)):
        missing = [name for name in properties if f"`{name}" not in PAGE and name not in set_by_server]
        assert missing == []


def test_the_overview_for_models_and_the_readme_lead_to_every_page() -> None:  # console: llms.txt
    links = re.findall(r"\]\(([^)]+)\)", LLMS)
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).is_file(), link
    assert re.match(r"# Flow Engine\n\n> .+", LLMS)
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")}
    assert pages - set(links) == set()
    assert [page for page in pages if f"({page})" not in README] == []


@pytest.mark.anyio
async def test_the_overview_for_models_is_served_as_it_stands() -> None:
    async with open_scene() as scene:
        reply = await scene.http.get("/llms.txt")
        assert (reply.status_code, reply.text) == (200, LLMS)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        addresses = re.findall(r"`(/[\w./-]+)`", LLMS)
        assert {"/openapi.json", "/schemas/flow-version.json", "/mcp"} <= set(addresses)
        for address in addresses:
            assert (await scene.http.get(address)).status_code in {200, 405}, address


@pytest.mark.anyio
async def test_the_api_reference_leads_to_the_pages() -> None:  # F27
    async with open_scene() as scene:
        told = (await scene.http.get("/openapi.json")).json()["info"]["description"]
        links = re.findall(r"\]\(([^)]+)\)", told)
        assert links == ["README.md", "llms.txt", "schemas/flow-version.json"]
        assert [(await scene.http.get(f"/{link}")).status_code for link in links] == [200] * 3


@pytest.mark.anyio
async def test_every_page_that_the_overview_or_a_page_leads_to_is_served() -> None:  # console: llms.txt
    async with open_scene() as scene:
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/decisions").glob("*.md")]
        linked = set(re.findall(r"\]\(([^)]+)\)", LLMS))
        for page in pages:
            path, text = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
            reply = await scene.http.get(f"/{path}")
            assert (reply.status_code, reply.text) == (200, text), path
            assert reply.headers["content-type"] == "text/markdown; charset=utf-8"
            links = re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text)
            linked |= {(page.parent / link).resolve().relative_to(ROOT).as_posix() for link in links}
        linked = {link for link in linked if link.startswith(("docs/", "README"))}
        assert len([link for link in linked if link.startswith("docs/decisions/")]) > 30
        assert [link for link in linked if (await scene.http.get(f"/{link}")).status_code != 200] == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["voic.md", "..%2Freadme.md", "decisions", "decisions/no.md", "images", "%00.md"]
)
async def test_a_page_that_is_none_is_not_there(name: str) -> None:  # console: llms.txt
    async with open_scene() as scene:
        reply = await scene.http.get(f"/docs/{name}")
        assert reply.status_code == 404
        assert name != "voic.md" or "'voice'" in reply.json()["detail"]


def test_an_installation_has_the_pages_beside_the_service() -> None:  # console: llms.txt
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    shipped = build["targets"]["wheel"]["force-include"]
    wanted = {name: f"api/pages/{name}" for name in ("llms.txt", "README.md", "docs")}
    assert wanted.items() <= shipped.items()
