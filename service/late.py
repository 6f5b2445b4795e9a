"""Modules that take long to load, each loaded when a command first reads its name here.

`flow-engine flow validate` must not wait for servers, stores, model SDKs or MCP's SDK. This is the one place
that loads late: type checkers and the import contracts see the imports below, the process the table of those
from elsewhere.
"""

# What is imported here is used elsewhere.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters import extraction
    from adapters.models import providers as model_providers
    from adapters.outbound import policy as outbound_policy
    from channels.chat import settings as chat_settings
    from channels.gateway import cache as gateway_cache
    from channels.gateway import config as gateway_settings
    from channels.gateway import database as gateway_database
    from channels.gateway import usage as gateway_usage
    from channels.voice.flow import opening as voice_flows
    from channels.voice.server import settings as voice_settings
    from channels.workspace import assistant as workspace_settings
    from flow_engine.testing import recorded_test as recorded_tests
    from flow_engine.testing import replay_page as replay_reports
    from flow_engine.testing import report as scenario_results
    from flow_engine.testing import simulation_report as simulation_results
    from flows import mongo_archive, mongo_records, mongo_store
    from memory import in_process as in_process_memory
    from memory import redis_py
    from service import (
        background,
        chat,
        chat_terminal,
        gateway,
        mail,
        mail_demo,
        mail_serve,
        memory_notices,
        replaying,
        running,
        scenarios,
        simulated_calls,
        simulating,
        voice,
        voice_demo,
        voice_manager,
        voice_replay,
        workspace,
        workspace_run,
        workspace_terminal,
    )

_ELSEWHERE = {
    "extraction": "adapters.extraction",
    "chat_settings": "channels.chat.settings",
    "gateway_cache": "channels.gateway.cache",
    "gateway_database": "channels.gateway.database",
    "gateway_settings": "channels.gateway.config",
    "gateway_usage": "channels.gateway.usage",
    "in_process_memory": "memory.in_process",
    "model_providers": "adapters.models.providers",
    "mongo_archive": "flows.mongo_archive",
    "mongo_records": "flows.mongo_records",
    "mongo_store": "flows.mongo_store",
    "outbound_policy": "adapters.outbound.policy",
    "recorded_tests": "flow_engine.testing.recorded_test",
    "redis_py": "memory.redis_py",
    "replay_reports": "flow_engine.testing.replay_page",
    "scenario_results": "flow_engine.testing.report",
    "simulation_results": "flow_engine.testing.simulation_report",
    "voice_flows": "channels.voice.flow.opening",
    "voice_settings": "channels.voice.server.settings",
    "workspace_settings": "channels.workspace.assistant",
}


def __getattr__(name: str) -> object:
    """The module of that name; AttributeError where there is none."""
    path = _ELSEWHERE.get(name, f"service.{name}")
    if find_spec(path) is None:
        raise AttributeError(name)
    globals()[name] = import_module(path)
    return globals()[name]
