"""The samples for Kubernetes in `deploy/` run this release's commands, by its settings, paths and times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from channels.voice.server.serving import END_WITHIN_S
from channels.voice.server.settings import VoiceSettings
from channels.voice.server.settings import variable_of as voice_variable_of
from service.cli import app
from service.running import FINISHED_WITHIN_S
from service.settings import Settings, variable_of
from tests.api.harness import open_scene
from tests.channels.voice.server.front_desk import open_desk

ROOT = Path(__file__).parents[2]
TEXTS = [
    (ROOT / "deploy" / f"kubernetes{which}.yaml").read_text(encoding="utf-8") for which in ("", "-voice")
]
DOCUMENTS: list[dict[str, Any]] = [each for text in TEXTS for each in yaml.safe_load_all(text)]
PODS: dict[str, dict[str, Any]] = {
    each["metadata"]["name"]: each["spec"]["template"]
    for each in DOCUMENTS
    if "template" in each.get("spec", {})
}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def of_kind(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container(pod: str) -> dict[str, Any]:
    (only,) = PODS[pod]["spec"]["containers"]
    return only


def probed(pod: str) -> dict[str, str]:
    run = container(pod)
    return {probe: run[probe]["httpGet"]["path"] for probe in PROBES if "httpGet" in run.get(probe, {})}


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_runs_a_command_of_this_release_as_the_user_of_its_image(pod: str) -> None:  # F42
    (release,) = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    run = container(pod)
    assert run["image"] == f"flow-engine:{release}"
    program, *rest = run["args"]
    assert program == "flow-engine"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(pod, rest)  # refuses options that there are not
    user = PODS[pod]["spec"]["securityContext"]["runAsUser"]
    assert f"useradd --system --uid {user} " in (ROOT / "Dockerfile").read_text()


def test_what_is_set_are_settings_of_the_program() -> None:  # F42
    own = {variable_of(name) for name in Settings.model_fields}
    of_voice = {voice_variable_of(name) for name in VoiceSettings.model_fields} | {"FLOW_ENGINE_API_KEY"}
    for pod in PODS:
        known = of_voice if pod.endswith("voice") else own
        assert {variable["name"] for variable in container(pod)["env"]} <= known
    assert of_kind("ConfigMap", "flow-engine")["data"].keys() <= own
    for text, known in zip(TEXTS, (own, of_voice), strict=True):
        assert {*re.findall(r"--from-literal=([A-Z_]+)=", text)} <= known


def test_what_is_secret_is_made_by_hand_and_named_where_it_is_taken() -> None:  # F43
    assert all(each["kind"] != "Secret" for each in DOCUMENTS)
    made = {name for text in TEXTS for name in re.findall(r"create (?:secret generic|configmap) (\S+)", text)}
    made |= {each["metadata"]["name"] for each in DOCUMENTS if each["kind"] == "ConfigMap"}
    for pod in PODS:
        taken = [source for each in container(pod)["envFrom"] for source in each.values()]
        assert {source["name"] for source in taken} <= made
    keys, run = PODS["flow-engine"]["spec"]["volumes"][0], container("flow-engine")
    assert keys["secret"]["secretName"] in made
    (mount,) = run["volumeMounts"]
    assert (mount["name"], mount["readOnly"]) == (keys["name"], True)
    (file,) = (each["value"] for each in run["env"] if each["name"] == "FLOW_ENGINE_API_KEYS_FILE")
    assert file == f"{mount['mountPath']}/keys.json"
    assert "--from-file=keys.json" in TEXTS[0]


@pytest.mark.anyio
async def test_what_is_probed_answers_and_a_store_that_is_away_stops_nobody() -> None:  # F13, F36
    asked = probed("flow-engine")
    async with open_scene() as scene:
        for path in asked.values():
            assert (await scene.http.get(path)).status_code == 200
    assert asked == dict(zip(PROBES, ("/health/ready", "/health/live", "/health/live"), strict=True))
    async with open_desk() as desk:
        for path in probed("flow-engine-voice").values():
            assert (await desk.http.get(path)).status_code == 200
    assert "httpGet" not in container("flow-engine-voice")["livenessProbe"]  # 503 while it drains


@pytest.mark.parametrize("name", ["flow-engine", "flow-engine-voice"])
def test_a_service_leads_to_the_port_that_its_program_listens_on(name: str) -> None:  # F42
    run, service = container(name), of_kind("Service", name)["spec"]
    (port,) = run["ports"]
    assert run["args"][run["args"].index("--port") + 1] == str(port["containerPort"])
    assert service["selector"] == PODS[name]["metadata"]["labels"]
    assert service["ports"] == [{"name": "http", "port": port["containerPort"], "targetPort": port["name"]}]
    assert {
        run[probe].get("httpGet", run[probe].get("tcpSocket"))["port"] for probe in PROBES if probe in run
    } == {port["name"]}
    if name == "flow-engine":
        public = of_kind("ConfigMap", name)["data"]["FLOW_ENGINE_PUBLIC_URL"]
        assert public == f"http://{name}:{port['containerPort']}"


def test_a_worker_has_its_metrics_where_prometheus_reaches_them() -> None:  # F36
    run = container("flow-engine-worker")
    set_to = {variable["name"]: variable["value"] for variable in run["env"]}
    assert set_to["FLOW_ENGINE_WORKER_METRICS_HOST"] == "0.0.0.0"
    assert set_to["FLOW_ENGINE_WORKER_METRICS_PORT"] == str(run["ports"][0]["containerPort"])


def test_a_pod_that_is_told_to_end_has_the_time_that_its_program_takes() -> None:  # F42, V12
    given = {pod: PODS[pod]["spec"]["terminationGracePeriodSeconds"] for pod in PODS}
    (pause,) = container("flow-engine")["lifecycle"]["preStop"]["exec"]["command"][1:]
    assert given["flow-engine"] >= int(pause) + 2 * FINISHED_WITHIN_S
    assert given["flow-engine-worker"] >= 2 * FINISHED_WITHIN_S
    assert given["flow-engine-voice"] > VoiceSettings.model_fields["voice_drain_s"].default + END_WITHIN_S


def test_what_grows_and_what_may_be_away_is_the_service() -> None:  # F42
    grown = of_kind("HorizontalPodAutoscaler", "flow-engine")["spec"]
    deployment = of_kind("Deployment", "flow-engine")
    assert grown["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # applied again, it would undo what has grown
    assert "cpu" in container("flow-engine")["resources"]["requests"]  # of which it takes a share
    kept = of_kind("PodDisruptionBudget", "flow-engine")["spec"]["selector"]["matchLabels"]
    for each in (kept, deployment["spec"]["selector"]["matchLabels"]):
        assert each == PODS["flow-engine"]["metadata"]["labels"]
