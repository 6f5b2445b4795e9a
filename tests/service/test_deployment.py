"""The samples of `deploy/` and the compose file keep to themselves what nobody outside needs (A17)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]


@pytest.mark.parametrize("path", ["/metrics", "/health/live", "/health/ready", "/health"])
def test_the_proxy_passes_nothing_on_that_operators_ask(path: str) -> None:  # A17
    nginx = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    (refused,) = re.findall(r"location ~ (\S+) \{\s+return 404;", nginx)
    assert re.match(refused, path)
    assert not re.match(refused, "/v1/prompt/metrics")


def test_no_key_is_in_clear_where_only_its_hash_is_needed() -> None:  # A17
    clear = {"secrets", "voice-key"}
    mounted = {
        name: {str(volume).partition(":")[0] for volume in service.get("volumes", ())} & clear
        for name, service in COMPOSE.items()
    }
    assert {name: volumes for name, volumes in mounted.items() if volumes} == {
        "keys": clear,
        "voice": {"voice-key"},
    }


def test_each_use_has_a_key_of_its_own(tmp_path: Path) -> None:  # A17
    command = COMPOSE["keys"]["command"][-1]
    for folder in ("secrets", "voice-key", "keys"):
        (tmp_path / folder).mkdir()
        command = command.replace(f'"/{folder}/', f'"{tmp_path}/{folder}/')
    exec(compile(command, "docker-compose.yml", "exec"), {})
    keys = yaml.safe_load((tmp_path / "keys" / "keys.json").read_text(encoding="utf-8"))["keys"]
    assert [(key["name"], key["scopes"]) for key in keys] == [
        ("admin", ["admin"]),
        ("tools", ["tools"]),
        ("voice", ["agent"]),
    ]
    assert len({key["sha256"] for key in keys}) == 3
