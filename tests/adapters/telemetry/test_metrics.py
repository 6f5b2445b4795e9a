"""Metrics after a small story, the table that documents them, the dashboard and the alerts (F36)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog.testing
import yaml
from prometheus_client import CollectorRegistry, Metric

from adapters.models.scripted import Answers, Fails
from api.gateway import Metrics
from channels.mail.metrics import MailMetrics
from channels.voice.metrics import Counting
from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from memory.keys import JOBS_KEY, PROCESSES_KEY, due_score
from memory.operations import OwnProcess
from service.observing import CHAT_COUNTED, COUNTED, CountingObserver, Watch, own_observer
from tests.adapters.telemetry.watched import Watched, watched
from tests.api.harness import T0, clinic, entry, over_many_contacts
from tests.api.test_migrations import renamed

pytestmark = pytest.mark.anyio

OWN = OwnProcess("here:1", "serve", "0.1.0", T0)
ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/flow-engine.json"
ALERTS = ROOT / "deploy/alerts.yml"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_THE_SCRAPE = {"job", "instance", "process"}
"""Labels that Prometheus adds, the last one by the rules of `deploy/prometheus.yml`."""
FINDS = Answers({"values": {"var_string": "ECG", "var_number": "abc", "x": 1}, "checkpoints": []})


def registry_of_serve() -> CollectorRegistry:
    observer = own_observer()
    Metrics(observer.registry)
    return observer.registry


def families() -> list[Metric]:
    return list(registry_of_serve().collect())


async def always_ready() -> None:
    return


def watch_of(w: Watched, **given: Any) -> Watch:
    probes: dict[str, Any] = {"ready": always_ready, "flows_ready": always_ready, **given}
    return Watch(w.observer, w.scene.memory.operations, OWN, w.scene.clock, **probes)


def family_name(metric: Metric) -> str:
    return metric.name + ("_total" if metric.type == "counter" else "")


class TestStory:
    async def test_changes_of_task_are_counted_by_outcome(self) -> None:  # F29
        async with watched(clinic()) as w:
            await w.scene.started()
            await w.scene.change("nowhere")
            await w.scene.change("visit")
            await w.scene.changed("operator")
            assert w.metric("task_changes_total", outcome="accepted") == 1
            assert w.metric("task_changes_total", outcome="task_unknown") == 1
            refused = [s for s in _samples(w, "flow_engine_task_changes_total") if s["outcome"] != "accepted"]
            assert len(refused) == 2

    async def test_a_migration_is_no_change_of_task(self) -> None:  # F29
        async with watched(clinic()) as w:
            await w.scene.started()
            flow_id = (await w.scene.http.get("/v1/flows")).json()[0]["id"]
            await w.scene.changed("operator")
            await w.scene.save(flow_id, {**renamed(clinic(), "operator", "desk"), "_id": "version-2"})
            order = {"fromVersionId": "version-1", "toVersionId": "version-2"}
            moved = await w.scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)
            assert moved.json()["counts"]["migrated"] == 1
            assert w.metric("task_changes_total", outcome="accepted") == 1

    async def test_contacts_are_counted_by_channel_and_by_how_they_end(self) -> None:  # F28, F30
        async with watched(over_many_contacts()) as w:
            await w.scene.started()
            await w.scene.started()  # the same again: nothing new
            await w.scene.started(contactId="chat-1", channel="chat")
            assert w.metric("contacts_started_total", channel="phone") == 1
            assert w.metric("contacts_started_total", channel="chat") == 1
            assert w.metric("contacts_ended_total", channel="phone", how="superseded") == 1
            await w.scene.end(contactId="chat-1")
            await w.scene.end(contactId="chat-1")
            assert w.metric("contacts_ended_total", channel="chat", how="ended") == 1

    async def test_a_conversation_that_begins_anew_has_a_new_contact(self) -> None:  # F28
        async with watched(clinic()) as w:
            await w.scene.started()
            await w.scene.end()
            await w.scene.started(contactId="call-2")
            assert w.metric("contacts_started_total", channel="phone") == 2
            assert w.metric("task_changes_total", outcome="accepted") == 0

    async def test_reading_along_is_counted_with_its_model_calls(self) -> None:  # F37
        async with watched(clinic(), Fails("timeout"), FINDS) as w:
            await w.scene.started()
            await w.scene.say("m-1", "An ECG please")
            await w.scene.prompt()
            await w.work()
            await w.work(after_s=10)
            await w.scene.prompt()
            assert w.metric("prompts_total", memory="stale") == 1
            assert w.metric("prompts_total", memory="fresh") == 1
            assert w.metric("values_mined_total", source="model") == 1
            assert w.metric("memory_writes_total", source="mining") == 1
            assert w.metric("mined_values_dropped_total", reason="variable_unknown") == 1
            assert w.metric("model_calls_total", purpose="mining", outcome="timeout") == 1
            assert w.metric("model_calls_total", purpose="mining", outcome="ok") == 1
            assert w.metric("model_calls_failed_total", purpose="mining", reason="timeout") == 1
            assert w.metric("model_tokens_total", purpose="mining", direction="input") > 100
            assert w.metric("model_call_seconds_count", purpose="mining") == 2
            assert w.metric("jobs_failed_total", kind="mine") == 1
            assert w.metric("jobs_done_total", kind="mine") == 1

    async def test_writes_replays_lost_commits_and_store_errors_are_counted(self) -> None:  # F15, F44
        async with watched(clinic()) as w:
            await w.scene.started()
            w.scene.http.headers["Idempotency-Key"] = "key-1"
            for _ in range(2):
                await w.scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
            del w.scene.http.headers["Idempotency-Key"]
            assert w.metric("memory_writes_total", source="tools") == 2
            assert w.metric("replays_total") == 1
            w.server.connected = False
            assert (await w.scene.http.get("/v1/prompt/conv-1")).status_code == 503
            w.server.connected = True
            assert w.metric("store_errors_total", store="memory") == 1
            assert w.metric("compiled_versions") == 1

    async def test_what_waits_is_seen_with_its_age(self) -> None:  # F41
        async with watched(clinic()) as w:
            watch = watch_of(w)
            await watch.measure_backlog()
            assert w.metric("jobs_waiting") == w.metric("jobs_oldest_seconds") == 0
            due = DueJob(Job("mine", ConversationRef("default", "conv-1")), w.scene.clock.now())
            await w.scene.memory.driver.client.zadd(JOBS_KEY, {due.job.name: due_score(due.due_at)})
            w.scene.clock.advance(seconds=42)
            await watch.measure_backlog()
            assert (w.metric("jobs_waiting"), w.metric("jobs_oldest_seconds")) == (1, 42)
            w.server.connected = False
            await watch.measure_backlog()
            assert w.metric("store_errors_total", store="memory") == 1
            w.server.connected = True

    async def test_that_nobody_does_the_jobs_is_logged_once_and_that_somebody_does(self) -> None:  # F41, F46
        async with watched(clinic()) as w:
            watch = watch_of(w)
            due = DueJob(Job("mine", ConversationRef("default", "conv-1")), w.scene.clock.now())
            client = w.scene.memory.driver.client
            await client.zadd(JOBS_KEY, {due.job.name: due_score(due.due_at)})
            with structlog.testing.capture_logs() as logged:
                for seconds in (30, 1, 5):
                    w.scene.clock.advance(seconds=seconds)
                    await watch.measure_backlog()
                await client.delete(JOBS_KEY)
                await watch.measure_backlog()
        assert [(line["event"], line["log_level"]) for line in logged] == [
            ("jobs_wait", "warning"),
            ("jobs_wait_no_more", "info"),
        ]

    async def test_why_the_store_is_not_ready_is_logged_once_and_that_it_is_again(self) -> None:  # F36, F46
        async with watched(clinic()) as w:
            memory = w.scene.memory
            watch = watch_of(w, ready=memory.ready)
            with structlog.testing.capture_logs() as logged:
                for is_there in (True, False, False, True, True):
                    w.server.connected = is_there
                    await watch.look_at_readiness()
            wrong, again = logged
            assert (wrong["event"], wrong["code"]) == ("memory_not_ready", "memory_unavailable")
            assert wrong["reason"] == "FakeRedis is emulating a connection error."
            assert (again["event"], again["log_level"]) == ("memory_ready_again", "info")

    async def test_a_flow_store_that_is_away_is_told_though_nobody_asks(self) -> None:  # F36, F46
        answers = iter([True, False, False, True])

        async def ready() -> None:
            if not next(answers):
                raise RetryLater("flow_store_unavailable", "away") from OSError("refused")

        async with watched(clinic()) as w:
            watch = watch_of(w, flows_ready=ready)
            with structlog.testing.capture_logs() as logged:
                for _ in range(4):
                    await watch.look_at_readiness()
            assert w.metric("store_errors_total", store="flows") == 2, "of which an alert tells"
        wrong, again = logged
        assert (wrong["event"], wrong["reason"]) == ("flow_store_not_ready", "refused")
        assert again["event"] == "flow_store_ready_again"

    @pytest.mark.parametrize("reachable", [True, False])
    async def test_a_process_that_ends_in_order_is_listed_no_more(self, reachable: bool) -> None:  # F36
        async with watched(clinic()) as w:
            operations = w.scene.memory.operations
            watch = watch_of(w)
            async with watch.running(), asyncio.timeout(10):
                while not await operations.processes():
                    await asyncio.sleep(0.001)
                w.server.connected = reachable
            w.server.connected = True
            assert bool(await operations.processes()) is not reachable

    async def test_a_store_that_refuses_is_asked_again(self) -> None:  # F36, F44
        async with watched(clinic()) as w:
            client, pauses = w.scene.memory.driver.client, asyncio.Queue[None]()

            async def pause(seconds: float) -> None:
                await pauses.get()

            operations = w.scene.memory.operations
            watch = watch_of(w, pause=pause)
            await client.set(PROCESSES_KEY, "somebody else's")
            async with watch.running():
                async with asyncio.timeout(10):
                    while not w.metric("store_errors_total", store="memory"):
                        await asyncio.sleep(0.001)
                    await client.delete(PROCESSES_KEY)
                    while not await operations.processes():
                        pauses.put_nowait(None)
                        await asyncio.sleep(0.001)

    async def test_the_lag_is_what_passes_beyond_the_time_asked_for(self) -> None:
        times = iter((10.0, 10.75))

        async def pause(seconds: float) -> None:
            assert seconds == 0.5

        async with watched(clinic()) as w:
            watch = watch_of(w, pause=pause, stopwatch=lambda: next(times))
            await watch.measure_lag()
            assert w.metric("event_loop_lag_seconds_sum") == 0.25

    async def test_what_is_not_held_is_counted_when_it_is_read(self) -> None:  # F36
        ref = ConversationRef("default", "conv-1")
        async with watched(clinic()) as w:
            await w.scene.started()
            holding = w.scene.memory.conversations.holding
            for reads in (0, 1, 1, 2):  # the second and the fourth prompt find nothing held
                if reads != w.metric("conversations_read_total"):
                    holding.forget(ref)
                assert w.metric("conversations_held") == len(holding)
                await w.scene.http.get("/v1/prompt/conv-1")
                assert w.metric("conversations_read_total") == reads
                assert w.metric("conversations_held") == 1
            assert (await w.scene.end()).json()["status"] == "closed"
            assert w.metric("conversations_held") == 0  # hardly anybody asks again

    async def test_no_label_holds_an_id_a_task_or_a_text(self) -> None:
        async with watched(clinic(), FINDS) as w:
            await w.scene.started(conversationId="secret-1")
            await w.scene.say("m-secret", "secret ECG", conversationId="secret-1")
            await w.scene.change("secret-task", conversationId="secret-1")
            await w.work()
            text = (await w.scene.http.get("/metrics")).text
            assert 'flow_engine_task_changes_total{outcome="task_unknown"} 1.0' in text
            for secret in ("secret", "ECG", "reception", "call-1", "var_string"):
                assert secret not in text, secret


def _samples(w: Watched, name: str) -> list[dict[str, str]]:
    found = w.observer.registry.collect()
    return [s.labels for metric in found for s in metric.samples if s.name == name]


class TestDocumented:
    def test_the_table_of_metrics_is_the_registry(self) -> None:  # F36
        table = re.findall(
            r"^\| `(flow_engine_\w+)` \| (\w+) \| (.+?) \| (.+) \|$",
            (ROOT / "docs/operations.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        documented = {name: (kind, meaning) for name, kind, _, meaning in table}
        assert documented == {family_name(m): (m.type, m.documentation) for m in families()}
        labels = {name: set(re.findall(r"`(\w+)`", cell)) for name, _, cell, _ in table}
        for name, (_, names) in COUNTED.items():
            assert labels[f"flow_engine_{name}_total"] == set(names), name

    def test_every_metric_has_a_meaning_and_the_services_prefix(self) -> None:
        for metric in families():
            assert metric.name.startswith("flow_engine_")
            assert metric.documentation.endswith(".")


def exported(*registries: CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each sample, by its name, as Prometheus has them: where the scrape has one of that name,
    the sample's own is renamed."""
    return {
        metric.name + suffix: {
            *(
                f"exported_{label}" if label in OF_THE_SCRAPE else label
                for label in vars(vars(registry)["_names_to_collectors"][metric.name])["_labelnames"]
            ),
            *({"le"} if suffix == "_bucket" else ()),
        }
        for registry in registries
        for metric in registry.collect()
        for suffix in SUFFIXES[metric.type]
    }


def metrics_named(expression: str, known: dict[str, set[str]]) -> set[str]:
    """By an expression that is whole and names only what is `known`, with labels that it has."""
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")
    bare = re.sub(r'"[^"]*"', "", expression)
    names = set(re.findall(r"\b(?:flow_engine_\w+|up)\b", bare))
    assert names, expression
    assert names <= known.keys(), (expression, names - known.keys())
    for name, selector in re.findall(r"(\w+)\{([^}]*)\}", bare):
        assert set(re.findall(r"\w+", selector)) <= known[name] | OF_THE_SCRAPE, expression
    of_any = set[str]().union(*(known[name] for name in names))
    of_the_scrape = OF_THE_SCRAPE - {label.removeprefix("exported_") for label in of_any}
    for grouped in re.findall(r"\bby \(([^)]*)\)", bare):
        assert set(re.findall(r"\w+", grouped)) <= of_any | of_the_scrape, expression
    return names


def panels(dashboard: Any) -> Iterator[Any]:
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


class TestDashboard:
    def test_every_expression_names_only_metrics_and_labels_that_exist(self) -> None:  # F36
        known = exported(registry_of_serve())
        used: set[str] = set()
        for panel in panels(orjson.loads(DASHBOARD.read_bytes())):
            for target in panel["targets"]:
                used |= metrics_named(target["expr"], known)
        shown = {m.name for m in families() if used & {m.name + suffix for suffix in SUFFIXES[m.type]}}
        assert shown == {m.name for m in families()}, "every metric is on the dashboard"

    def test_it_is_a_dashboard_that_asks_for_its_data_source(self) -> None:
        dashboard = orjson.loads(DASHBOARD.read_bytes())
        assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
        variables = {v["name"]: v for v in dashboard["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
            cells = {
                (place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells
        for panel in panels(dashboard):
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(s == {"type": "prometheus", "uid": "${datasource}"} for s in sources)
            refs = [target["refId"] for target in panel["targets"]]
            assert len(refs) == len(set(refs))

    def test_the_scrape_configuration_is_one(self) -> None:
        config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))
        (job,) = config["scrape_configs"]
        assert job["metrics_path"] == "/metrics"
        assert all(group["targets"] for group in job["static_configs"])


class TestAlerts:
    def test_every_rule_names_only_metrics_and_labels_that_exist(self) -> None:  # F36
        chat = CountingObserver(CollectorRegistry(), CHAT_COUNTED).registry
        mail = MailMetrics(CollectorRegistry()).registry
        known = exported(registry_of_serve(), Counting().registry, chat, mail) | {"up": set()}
        for rule in alert_rules():
            names = metrics_named(rule["expr"], known)
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", rule["expr"]))))
            of_up = OF_THE_SCRAPE if names == {"up"} else set[str]()
            assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= kept | of_up

    def test_every_rule_says_how_bad_it_is_and_where_stands_what_to_do(self) -> None:  # F36
        headings = re.findall(r"^### (\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
        alerts = [rule["alert"] for rule in alert_rules()]
        assert headings[headings.index(alerts[0]) :][: len(alerts)] == alerts
        for rule in alert_rules():
            assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
            assert re.fullmatch(r"\d+[mh]", rule["for"])
            assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"

    def test_the_chat_and_the_mail_agent_have_their_own(self) -> None:  # F36
        named = " ".join(rule["expr"] for rule in alert_rules())
        config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))
        scraped = {group["labels"]["process"] for group in config["scrape_configs"][0]["static_configs"]}
        for program in ("chat", "mail", "voice"):
            assert f"flow_engine_{program}_" in named
            assert program in scraped

    def test_prometheus_loads_them_and_sets_the_labels_that_they_name(self) -> None:
        config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))
        assert [ROOT / "deploy" / name for name in config["rule_files"]] == [ALERTS]
        (job,) = config["scrape_configs"]
        assert job["job_name"] == "flow-engine"
        assert [rule["target_label"] for rule in job["relabel_configs"]] == ["process"]


def alert_rules() -> list[Any]:
    return [
        rule
        for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
