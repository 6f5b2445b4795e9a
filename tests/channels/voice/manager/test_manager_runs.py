"""The manager with real processes: it keeps one for each agent of the list, and none besides."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
from structlog.testing import capture_logs

from channels.voice.manager import manager as manager_module
from channels.voice.manager.configs import shipped_template
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.script import Say, Script
from channels.voice.testing.signals import stretches
from flow_engine.ports.outbound import OutboundReply
from service.cli.voice import AGENT_COMMAND, SIP_BRIDGE_COMMAND
from tests.channels.voice.business_server import business_server
from tests.channels.voice.manager.manager_bench import API, LIMITS, TEMPLATE, Bench, entry, sip_entry, until
from tests.channels.voice.manager.manager_processes import alive, gone, script
from tests.channels.voice.sip_bridge.fake_trunk import FakeTrunk, TrunkCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def runs(bench: Bench, *agent_ids: str) -> None:
    for agent_id in agent_ids:
        await until(lambda agent_id=agent_id: bench.state_of(agent_id) == "running", f"{agent_id} runs")


async def test_each_agent_of_the_list_has_a_process_a_port_and_a_config(bench: Bench) -> None:  # V13
    bench.listed.answer = {"agents": [entry("a"), entry("b")]}
    async with bench.running():
        await runs(bench, "a", "b")
        told = bench.status()["agents"]
        assert [each["id"] for each in told] == ["a", "b"]
        assert len({each["port"] for each in told}) == 2
        for each in told:
            assert each["port"] >= bench.first_port
            assert [each["pid"]] == bench.starts(each["id"])
            config = bench.state / "configs" / f"{each['id']}.json"
            assert f'"id": "{each["id"]}"' in config.read_text()
            assert config.stat().st_mode & 0o777 == 0o600
        assert bench.log("a")[0].split()[2:4] == [str(told[0]["port"]), API]


async def test_a_changed_config_waits_for_the_calls_and_the_unchanged_agent_is_not_touched(
    bench: Bench,
) -> None:  # V13
    bench.listed.answer = [entry("a"), entry("b", type="other")]
    bench.write_template(TEMPLATE, "other")
    async with bench.running() as manager:
        await runs(bench, "a", "b")
        port, before = bench.agent("a")["port"], bench.starts("b")
        bench.mood("a", "calls=1")
        bench.write_template({**TEMPLATE, "base_url": "https://new.example"})
        manager.refresh_now()
        await until(lambda: bench.log("a")[-1] == "drained", "a is asked to drain")
        await until(lambda: bench.agent("a")["liveCalls"] == 1, "the call is seen")
        await asyncio.sleep(0.5)
        assert (bench.state_of("a"), len(bench.starts("a"))) == ("draining", 1)
        bench.mood("a", "calls=0")
        await until(lambda: len(bench.starts("a")) == 2, "a is started anew")
        await runs(bench, "a")
        assert "https://new.example" in bench.log("a")[-1]
        assert bench.agent("a")["port"] == port
        assert bench.starts("b") == before
        assert "drained" not in bench.log("b")


async def test_an_agent_that_can_takes_up_a_changed_config_while_it_runs(  # V13, voice-smaller
    bench: Bench,
) -> None:
    bench.listed.answer = [entry("a"), entry("b")]
    for name in "ab":
        bench.mood(name, "calls=1 reloads")
    async with bench.running() as manager:
        await runs(bench, "a", "b")
        await until(lambda: bench.agent("a")["liveCalls"] == bench.agent("b")["liveCalls"] == 1, "calls")
        bench.write_template({**TEMPLATE, "base_url": "https://new.example"})
        manager.refresh_now()
        for name in "ab":
            await until(lambda name=name: bench.log(name)[-1].startswith("reloaded"), f"{name} reloads")
            await runs(bench, name)
            assert bench.log(name)[1:] == ["reloaded https://new.example"]
        await asyncio.sleep(0.3)
        assert [len(bench.log(name)) for name in "ab"] == [2, 2], "told once"


async def test_calls_by_sip_reach_a_real_agent_that_takes_up_a_changed_template_without_a_busy_tone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:  # 23, V13, voice-7, voice-smaller
    shipped = shipped_template("standard")
    script = Script.of(Say("Good morning", 300))
    async with (
        FakeTrunk({"user-a": "s3cret-of-sip"}) as trunk,
        FakeRealtime(script) as model,
        business_server() as business,
        httpx.AsyncClient() as http,
    ):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        monkeypatch.setenv("FLOW_ENGINE_REALTIME_URL", model.url)
        bench.agent_command, bench.bridge = (
            tuple(shlex.split(AGENT_COMMAND)),
            tuple(shlex.split(SIP_BRIDGE_COMMAND)),
        )
        bench.api, bench.limits = business.url, replace(LIMITS, drain_s=0.5)  # offers keep places for 15 s
        bench.write_template(shipped, "standard")
        bench.listed.answer = [{**sip_entry("a"), "type": "standard", "sipDomain": trunk.domain}]
        async with bench.running() as manager:
            await until(lambda: "user-a" in trunk.registered, "the bridge registers", within_s=60)
            before = bench.agent("a")
            health, offer = (
                f"http://127.0.0.1:{before['port']}/{path}" for path in ("healthz", "incoming-call")
            )
            first = await trunk.call("user-a")
            await until(lambda: heard_ms(first) == 300, "the agent is heard")
            running = (await http.get(health)).json()["config"]
            bench.write_template({**shipped, "max_duration_s": 600.0}, "standard")
            manager.refresh_now()
            while (await http.get(health)).json()["config"] == running:
                assert "<Connect" in (await http.post(offer, data={"From": "+33612345678"})).text
            await until(lambda: bench.state_of("a") == "running", "it is settled")
            assert (bench.agent("a")["pid"], bench.agent("a")["restarts"]) == (before["pid"], 0)
            second = await trunk.call("user-a")
            await until(lambda: heard_ms(second) == 300, "the next caller hears it too")
            assert (first.is_over, first.statuses[-1], second.statuses[-1]) == (False, 200, 200)
            for call in (first, second):
                await call.hang_up()
            await until(lambda: business.count("/api/calls") >= 2, "the books are kept")
            bench.listed.answer = []
            for times in (2, 3):
                manager.refresh_now()
                await until(lambda times=times: bench.listed.asked == times + 1, "the list is asked for")
            await until(lambda: bench.state_of("a") is None, "a is gone")
            assert (trunk.registered, trunk.refused) == ({}, 0)


def heard_ms(call: TrunkCall) -> float:
    return sum(
        each.ends_ms - each.begins_ms for each in stretches(bytes(call.heard)) if each.item is not None
    )


async def test_a_call_without_end_is_not_waited_for_longer_than_the_limit(bench: Bench) -> None:  # V13
    bench.limits = replace(LIMITS, drain_s=0.5)
    bench.listed.answer = [entry("a"), entry("b")]
    async with bench.running() as manager:
        await runs(bench, "a", "b")
        bench.mood("a", "calls=1")
        bench.listed.answer = [entry("b")]
        manager.refresh_now()
        await until(lambda: bench.state_of("a") is None, "a is gone")
        assert bench.log("a")[-2:] == ["drained", "terminated"]


async def test_a_removed_agent_is_drained_and_stopped_and_gets_its_port_back_later(
    bench: Bench,
) -> None:  # V13
    bench.listed.answer = [entry("a"), entry("b")]
    async with bench.running() as manager:
        await runs(bench, "a", "b")
        port = bench.agent("a")["port"]
        bench.listed.answer = [entry("b")]
        manager.refresh_now()
        await until(lambda: bench.state_of("a") is None, "a is gone")
        assert bench.log("a")[-2:] == ["drained", "terminated"]
        assert not (bench.state / "configs" / "a.json").exists()
        bench.listed.answer = [entry("c"), entry("b"), entry("a")]
        manager.refresh_now()
        await runs(bench, "a", "b", "c")
        assert bench.agent("a")["port"] == port
        assert bench.agent("c")["port"] != port


async def test_a_deaf_agent_is_killed_in_the_end(bench: Bench) -> None:  # V13
    bench.limits = replace(LIMITS, stop_s=0.5)
    bench.listed.answer = [entry("a")]
    bench.mood("a", "deaf")
    async with bench.running() as manager:
        await runs(bench, "a")
        manager.stop()
        await until(lambda: bench.state_of("a") is None, "a is gone")
        assert gone(bench.starts("a")[0])


async def test_a_crashed_agent_comes_back_on_its_port(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a")]
    async with bench.running():
        await runs(bench, "a")
        port = bench.agent("a")["port"]
        os.kill(bench.starts("a")[0], signal.SIGKILL)
        await until(lambda: len(bench.starts("a")) == 2, "a is started again")
        await runs(bench, "a")
        told = bench.agent("a")
        assert (told["port"], told["restarts"], told["pid"]) == (port, 1, bench.starts("a")[1])


async def test_a_crash_loop_is_told_and_the_other_agents_run_on(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a"), entry("b")]
    bench.mood("a", "crash")
    async with bench.running():
        await until(lambda: bench.agent("a").get("crashLoop"), "a is in a crash loop")
        await runs(bench, "b")
        bench.mood("a", "")
        await runs(bench, "a")


async def test_an_agent_that_does_not_answer_is_started_anew(bench: Bench) -> None:  # V13
    """Here the fake holds its answers back; the check's own limit is seconds, so this takes some."""
    bench.limits = replace(LIMITS, failures=1)
    bench.listed.answer = [entry("a")]
    async with bench.running():
        await runs(bench, "a")
        bench.mood("a", "mute")
        await until(lambda: "terminated" in bench.log("a"), "a is ended")
        bench.mood("a", "")
        await runs(bench, "a")
        assert bench.agent("a")["restarts"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        OutboundReply(500, b"[]"),
        OutboundReply(204, b""),
        OutboundReply(200, b""),
        OutboundReply(200, b"<html>"),
        OutboundReply(200, b'{"agents": null}'),
        OutboundReply(200, b'{"error": "later"}'),
        OutboundReply(200, b"[]"),
        OutboundReply(200, b'[{"name": "who?"}]'),
        OutboundReply(200, b'[{"id": "a"}]'),
    ],
    ids=lambda reply: f"{reply.status} {reply.body.decode()}",
)
async def test_a_list_that_could_not_be_had_stops_nobody(bench: Bench, answer: OutboundReply) -> None:  # V13
    bench.listed.answer = [entry("a")]
    async with bench.running() as manager:
        await runs(bench, "a")
        bench.listed.answer, asked = answer, bench.listed.asked
        manager.refresh_now()
        await until(lambda: bench.listed.asked > asked, "the list is asked for")
        await asyncio.sleep(0.5)
        assert bench.state_of("a") == "running"
        assert len(bench.log("a")) == 1


async def test_a_list_that_breaks_off_at_first_is_asked_for_again_soon(bench: Bench) -> None:  # V13
    bench.listed.breaks()
    async with bench.running():
        await until(lambda: bench.listed.asked == 1, "the list is asked for")
        await until(lambda: "broke off" in str(bench.status()["refreshed"]["error"]), "the failure is told")
        bench.listed.answer = [entry("a")]
        await runs(bench, "a")
        assert bench.status()["refreshed"]["error"] is None


async def test_a_list_that_was_never_read_is_asked_for_again_and_again_and_told_as_an_error(  # V13
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "FIRST_RETRY_S", 100.0)
    monkeypatch.setattr(manager_module, "UNREAD_RETRY_S", 0.1)
    bench.listed.breaks()
    with capture_logs() as logged:
        async with bench.running():
            await until(lambda: bench.listed.asked >= 4, "the list is asked for again")
            told = [line for line in logged if line["event"] == "agents_not_refreshed"]
            assert {(line["log_level"], line["agents"]) for line in told} == {("error", 0)}
            bench.listed.answer = [entry("a")]
            await runs(bench, "a")


async def test_an_empty_list_is_believed_the_second_time(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a")]
    async with bench.running() as manager:
        await runs(bench, "a")
        bench.listed.answer, asked = [], bench.listed.asked
        for times in (1, 2):
            manager.refresh_now()
            await until(lambda times=times: bench.listed.asked == asked + times, "the list is asked for")
        await until(lambda: bench.state_of("a") is None, "a is gone")


async def test_a_bad_entry_or_template_is_told_and_stops_nobody(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a"), entry("b", type="unknown"), entry("../c"), entry("d", name="")]
    async with bench.running() as manager:
        await runs(bench, "a")
        told = {each["id"]: each["problems"] for each in bench.status()["notAccepted"]}
        assert [problem["code"] for problem in told["b"]] == ["no_template"]
        assert [problem["pointer"] for problem in told["../c"]] == ["/2/id"]
        assert [problem["pointer"] for problem in told["d"]] == ["/3/name"]
        assert not bench.starts("b")
        bench.write_template({**TEMPLATE, "agent": {"id": 7}, "base_url": 3})
        manager.refresh_now()
        await until(lambda: "a" in {each["id"] for each in bench.status()["notAccepted"]}, "a is told of")
        pointers = {each["pointer"] for each in bench.status()["notAccepted"][1]["problems"]}
        assert pointers == {"/agent/id", "/agent/name", "/agent/type", "/base_url"}
        assert (bench.state_of("a"), len(bench.log("a"))) == ("running", 1)
        assert API in (bench.state / "configs" / "a.json").read_text()


async def test_a_taken_port_is_skipped(bench: Bench) -> None:  # V13
    with socket.create_server(("127.0.0.1", 0)) as other:
        bench.first_port = other.getsockname()[1]
        bench.listed.answer = [entry("a")]
        async with bench.running():
            await runs(bench, "a")
            assert bench.agent("a")["port"] > bench.first_port


async def test_an_agent_whose_port_was_taken_meanwhile_moves(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a")]
    async with bench.running():
        await runs(bench, "a")
        port = bench.agent("a")["port"]
    with socket.create_server(("127.0.0.1", port)):
        async with bench.running():
            await runs(bench, "a")
            moved = bench.agent("a")["port"]
            assert moved != port
    async with bench.running():
        await runs(bench, "a")
        assert bench.agent("a")["port"] == moved


async def test_an_agent_that_moves_is_told_where_it_is_reached_now(bench: Bench) -> None:  # 23, V13
    bench.listed.answer, bench.public_url = [entry("a")], "https://voice.example:${port}"
    with socket.create_server(("127.0.0.1", bench.first_port)):
        (bench.home / "state").mkdir()
        (bench.home / "state" / "state.json").write_bytes(orjson.dumps({"ports": {"a": bench.first_port}}))
        async with bench.running() as manager:
            await runs(bench, "a")
            told = bench.agent("a")
            assert told["port"] != bench.first_port
            environment = psutil.Process(told["pid"]).environ()
            assert environment["FLOW_ENGINE_PUBLIC_URL"] == f"https://voice.example:{told['port']}"
            asked = bench.listed.asked
            manager.refresh_now()
            await until(lambda: bench.listed.asked > asked, "the list is asked for again")
            await asyncio.sleep(0.5)
            assert (bench.state_of("a"), len(bench.starts("a"))) == ("running", 1), "nothing has changed"


async def test_ports_stay_with_their_agents_over_a_restart_of_the_manager(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a"), entry("b")]
    async with bench.running():
        await runs(bench, "a", "b")
        before = {each["id"]: each["port"] for each in bench.status()["agents"]}
    bench.listed.answer = [entry("c"), entry("b"), entry("a")]
    async with bench.running():
        await runs(bench, "a", "b", "c")
        after = {each["id"]: each["port"] for each in bench.status()["agents"]}
    assert {"a": after["a"], "b": after["b"]} == before


async def test_stopping_waits_for_calls_and_insisting_does_not(bench: Bench) -> None:  # V13
    bench.listed.answer = [entry("a")]
    bench.mood("a", "calls=1")
    async with bench.running() as manager:
        await until(lambda: bench.agent("a").get("liveCalls") == 1, "the call is seen")
        manager.stop()
        await until(lambda: bench.log("a")[-1] == "drained", "a is asked to drain")
        await asyncio.sleep(0.5)
        assert alive(bench.starts("a")[0])
        manager.stop()
        await until(lambda: bench.log("a")[-1] == "terminated", "a is ended")
    assert bench.status()["agents"] == []


class TestBridge:
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        told = str(tmp_path / "bridge")
        names = (
            "SIP_DOMAIN",
            "SIP_USERNAME",
            "SIP_PASSWORD",
            "AGENT_PORT",
            "OPENAI_API_KEY",
            "FLOW_ENGINE_X",
        )
        command = script(
            tmp_path / "bridge.py",
            f"told = [os.environ.get(name) for name in {names!r}]",
            f"with open({told!r}, 'a') as file: print(os.getpid(), sys.argv[1:], *told, file=file)",
            "while True: time.sleep(0.1)",
        )
        return Bench(tmp_path, bridge=(*command, "--own", "option"))

    @pytest.fixture(autouse=True)
    def environment_with_secrets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        monkeypatch.setenv("FLOW_ENGINE_X", "x")

    @staticmethod
    def told(bench: Bench) -> list[str]:
        path = bench.home / "bridge"
        return path.read_text().splitlines() if path.exists() else []

    async def test_it_gets_its_account_by_environment_and_nothing_else(self, bench: Bench) -> None:  # V13
        bench.listed.answer = [sip_entry("a"), entry("b")]
        with capture_logs() as logs:
            async with bench.running():
                await until(lambda: self.told(bench), "the bridge is started")
                await runs(bench, "a", "b")
                await until(lambda: (bench.agent("a")["bridge"] or {}).get("pid"), "the bridge is told of")
                port = bench.agent("a")["port"]
                (line,) = self.told(bench)
                pid, _, rest = line.partition(" ")
                account = f"sip.example user-a s3cret-of-sip {port}"
                assert rest == f"['--own', 'option'] {account} None None"
                assert bench.agent("a")["bridge"]["pid"] == int(pid)
                assert bench.agent("b")["bridge"] is None
                assert bench.log("a")[0].endswith("[]"), "an agent learns of no account"
        assert "s3cret-of-sip" not in repr(logs)
        for path in bench.state.rglob("*"):
            assert path.is_dir() or b"s3cret-of-sip" not in path.read_bytes(), path

    async def test_its_crash_leaves_the_agent_alone(self, bench: Bench) -> None:  # V13
        bench.listed.answer = [sip_entry("a")]
        async with bench.running():
            await until(lambda: len(self.told(bench)) == 1, "the bridge is started")
            os.kill(int(self.told(bench)[0].split()[0]), signal.SIGKILL)
            await until(lambda: len(self.told(bench)) == 2, "the bridge is started again")
            assert len(bench.log("a")) == 1

    async def test_it_stays_while_its_agent_comes_back(self, bench: Bench) -> None:  # V13
        bench.listed.answer = [sip_entry("a")]
        async with bench.running():
            await until(lambda: len(self.told(bench)) == 1, "the bridge is started")
            os.kill(bench.starts("a")[0], signal.SIGKILL)
            await until(lambda: len(bench.starts("a")) == 2, "a is started again")
            await runs(bench, "a")
            assert len(self.told(bench)) == 1

    async def test_a_new_password_waits_for_the_calls(self, bench: Bench) -> None:  # V13
        bench.listed.answer = [sip_entry("a")]
        bench.mood("a", "calls=1")
        async with bench.running() as manager:
            await until(lambda: len(self.told(bench)) == 1, "the bridge is started")
            bench.listed.answer = [sip_entry("a", "another")]
            manager.refresh_now()
            await until(lambda: bench.log("a")[-1] == "drained", "a is asked to drain")
            await asyncio.sleep(0.4)
            assert alive(int(self.told(bench)[0].split()[0]))
            bench.mood("a", "")
            await until(lambda: len(self.told(bench)) == 2, "the bridge is started with the new one")
            assert " another " in self.told(bench)[1]
            assert gone(int(self.told(bench)[0].split()[0]))

    async def test_without_a_command_the_agent_is_served_without_and_that_is_said(
        self, bench: Bench
    ) -> None:  # V13
        bench.bridge = ()
        bench.listed.answer = [sip_entry("a")]
        with capture_logs() as logs:
            async with bench.running() as manager:
                await runs(bench, "a")
                manager.refresh_now()
                await until(lambda: bench.listed.asked == 2, "the list is asked for")
        warnings = [log for log in logs if log["event"] == "sip_bridge_missing"]
        assert [log["agent_id"] for log in warnings] == ["a"]
        assert not self.told(bench)
