"""The diagram of a stored version over HTTP."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.api.harness import Scene, clinic, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task

pytestmark = pytest.mark.anyio


async def saved(scene: Scene, document: JsonObject) -> str:
    flow = {"name": "Clinic", "campaignId": "campaign-1", "updatedBy": "ada"}
    flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
    return f"/v1/flows/{flow_id}/versions/{await scene.save(flow_id, document)}/diagram"


async def test_each_format_has_its_media_type() -> None:  # F27
    async with open_scene() as scene:
        url = await saved(scene, clinic())
        plain = await scene.http.get(url)
        assert plain.headers["content-type"] == "text/vnd.mermaid; charset=utf-8"
        assert plain.text == (await scene.http.get(f"{url}?format=mermaid")).text
        assert plain.text.startswith("stateDiagram-v2\n")
        machine = await scene.http.get(f"{url}?format=xstate")
        assert machine.headers["content-type"] == "application/json"
        assert list(machine.json()["states"]) == ["active", "closed"]


async def test_an_image_may_run_and_load_nothing() -> None:  # F27
    async with open_scene() as scene:
        image = await scene.http.get(f"{await saved(scene, clinic())}?format=svg")
        if image.status_code == 501:
            pytest.skip("Graphviz is not on this machine")
        assert image.headers["content-type"] == "image/svg+xml"
        assert image.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert image.headers["x-content-type-options"] == "nosniff"
        root = ElementTree.fromstring(image.content)
        assert not [element for element in root.iter() if element.tag.endswith("script")]


async def test_without_graphviz_an_image_is_not_implemented_here(  # F27
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_scene() as scene:
        url = await saved(scene, clinic())
        monkeypatch.setenv("PATH", str(tmp_path))
        refused = await scene.http.get(f"{url}?format=svg")
        assert (refused.status_code, refused.json()["code"]) == (501, "graphviz_missing")
        assert "'dot'" in refused.json()["detail"]
        assert refused.headers["content-type"] == "application/problem+json"


async def test_a_draft_is_drawn_as_far_as_it_goes() -> None:  # F8
    async with open_scene() as scene:
        url = await saved(scene, {"draft": True, "tasks": [aio_task(connectedTasks=["later"])]})
        assert "later · missing" in (await scene.http.get(url)).text
        refused = await scene.http.get(f"{url}?format=xstate")
        assert (refused.status_code, refused.json()["code"]) == (409, "draft_incomplete")
        assert refused.json()["accepted"] == ["mermaid", "svg"]
        empty = await scene.http.get(await saved(scene, {"draft": True}))
        assert (empty.status_code, empty.json()["code"]) == (409, "nothing_to_draw")


async def test_an_unknown_format_or_version_is_refused() -> None:
    async with open_scene() as scene:
        url = await saved(scene, clinic())
        unknown = await scene.http.get(f"{url}?format=png")
        assert (unknown.status_code, unknown.json()["code"]) == (422, "format_invalid")
        assert (await scene.http.get("/v1/flows/none/versions/none/diagram")).status_code == 404
