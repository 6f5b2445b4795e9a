"""docs/voice-manager.md says what is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import orjson
import pytest

from channels.voice.config.loader import load_config
from channels.voice.manager.agents_list import read_agents
from channels.voice.manager.configs import ConfigFiles, placeholders
from service.cli.voice import manage
from tests.channels.voice.manager.manager_bench import Bench, sip_entry, until
from tests.channels.voice.manager.manager_processes import script
from tests.service_process import ROOT

PAGE = (ROOT / "docs" / "voice-manager.md").read_text(encoding="utf-8")
LIST, TEMPLATE, STATUS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_list_and_the_template_of_the_page_make_a_config(tmp_path: Path) -> None:  # V13
    fetched = read_agents(LIST.encode())
    assert (len(fetched.agents), fetched.refused) == (2, ())
    (tmp_path / "restaurant.json").write_text(TEMPLATE)
    files = ConfigFiles(tmp_path, tmp_path, "https://app.example.com", ())
    for agent in fetched.agents:
        assert load_config(files.make(agent), builders=()).config.agent.name == agent.name


def test_all_placeholders_and_options_are_on_the_page() -> None:  # V13
    agent = read_agents(LIST.encode()).agents[0]
    rows = re.findall(r"^\| `[A-Z].*?\|", PAGE.partition("## An agent")[0], re.MULTILINE)
    assert set(placeholders(agent, "")) == set(re.findall(r"`(.*?)`", "".join(rows)))
    table = PAGE.partition("## Options")[2].partition("`FLOW_ENGINE_MANAGER_STOP_S`")[0]
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(manage).parameters}
    assert set(re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE)) == options


@pytest.mark.anyio
async def test_the_status_has_the_properties_of_the_page(tmp_path: Path) -> None:  # V13
    shown = orjson.loads(STATUS)
    bridge = script(tmp_path / "bridge.py", "while True: time.sleep(0.1)")
    bench = Bench(tmp_path, bridge=tuple(bridge))
    bench.listed.answer = [sip_entry("a"), {"id": "b", "name": "B", "type": "none"}]
    async with bench.running():
        await until(lambda: (bench.agent("a")["bridge"] or {}).get("pid"), "the bridge runs")
        status = bench.status()
        ports = orjson.loads((bench.state / "state.json").read_bytes())
    assert list(status) == list(shown)
    assert list(status["refreshed"]) == list(shown["refreshed"])
    assert list(status["agents"][0]) == list(shown["agents"][0])
    assert list(status["agents"][0]["bridge"]) == list(shown["agents"][0]["bridge"])
    assert list(status["notAccepted"][0]) == list(shown["notAccepted"][0])
    assert list(status["notAccepted"][0]["problems"][0]) == list(shown["notAccepted"][0]["problems"][0])
    assert list(ports) == ["version", "ports"]
