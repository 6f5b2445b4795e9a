"""`flow-engine mail check | explain | process | demo`, run as programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator

from adapters.models.fake_openai import FakeOpenAI
from adapters.models.scripted import CallsTools, Says
from channels.mail.config import MailConfig
from channels.mail.loading import load_config
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.models import ToolCall
from service.mail import check
from tests.channels.mail.mails import OWN, SERVER, dmarc, raw_mail

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "mail.yaml"


def _config(directory: Path, **changes: Any) -> Path:
    document: dict[str, Any] = {
        "mailbox": {
            "name": "main",
            "imap": {"host": "imap.example", "user": OWN, "password_env": "MAIL_PASSWORD"},
            "smtp": {"host": "smtp.example"},
        },
        "trusted_authserv_ids": [SERVER],
        "routing": {
            "rules": [
                {
                    "name": "customers",
                    "match": {"sender_domain": "customer.example"},
                    "route": "agent",
                    "profile": "pharmacy",
                }
            ]
        },
        "agent": {"profiles": {"pharmacy": {"system_prompt_file": "prompt.txt", "tools": ["send_reply"]}}},
        **changes,
    }
    (directory / "prompt.txt").write_text("You answer mails.")
    path = directory / "mail.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLOW_ENGINE", "GEMINI"))
    }
    command = [sys.executable, "-m", "service.cli", "mail", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, env={**kept, **environment}, cwd=ROOT, timeout=60, check=False
    )


# --- check -----------------------------------------------------------------------------------------

RULE = {"name": "r", "match": {"all": True}, "route": "pipeline"}
PROFILE = {"system_prompt_file": "prompt.txt", "tools": []}

MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"routing": {"rules": [{**RULE, "match": {}}]}}, ["/routing/rules/0/match"]),
    ({"routing": {"rules": [{**RULE, "match": {"all": False}}]}}, ["/routing/rules/0/match/all"]),
    ({"routing": {"rules": [{**RULE, "match": {"from": "x"}}]}}, ["/routing/rules/0/match/from"]),
    (
        {"routing": {"rules": [{**RULE, "match": {"subject_contains": ""}}]}},
        ["/routing/rules/0/match/subject_contains"],
    ),
    (
        {"routing": {"rules": [{**RULE, "match": {"sender_email": None}}]}},
        ["/routing/rules/0/match/sender_email"],
    ),
    (
        {"routing": {"rules": [{**RULE, "match": {"header_match": {}}}]}},
        ["/routing/rules/0/match/header_match"],
    ),
    (
        {"routing": {"rules": [{**RULE, "match": {"header_match": {"X-A": "(?=x)", "X-B": r"(a)\1"}}}]}},
        ["/routing/rules/0/match/header_match/X-A", "/routing/rules/0/match/header_match/X-B"],
    ),
    ({"routing": {"rules": [RULE, RULE]}}, ["/routing/rules/1/name"]),
    ({"routing": {"rules": [{**RULE, "route": "agent"}]}}, ["/routing/rules/0/profile"]),
    ({"routing": {"rules": [{**RULE, "route": "agent", "profile": "none"}]}}, ["/routing/rules/0/profile"]),
    ({"routing": {"rules": [{**RULE, "route": "drop"}]}}, ["/routing/rules/0/route"]),
    ({"agent": {"profiles": {"x": {**PROFILE, "tools": ["fly"]}}}}, ["/agent/profiles/x/tools/0"]),
    ({"agent": {"profiles": {"x": {"tools": []}}}}, ["/agent/profiles/x/system_prompt_file"]),
    ({"agent": {"profiles": {"x": {"system_prompt_file": "prompt.txt"}}}}, ["/agent/profiles/x/tools"]),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "system_prompt_file": "absent.txt"}}}},
        ["/agent/profiles/x/system_prompt_file"],
    ),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "preprocessor": "zendesk"}}}},
        ["/agent/profiles/x/preprocessor"],
    ),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "approval": {"fly": "allow"}}}}},
        ["/agent/profiles/x/approval/fly"],
    ),
    ({"agent": {"profiles": {"x": {**PROFILE, "model": "nothing"}}}}, ["/agent/profiles/x/model"]),
    ({"tools": {"t": {"type": "http", "url": "{{base_url}}/x"}}}, ["/base_url"]),
    ({"tools": {"send_reply": {"type": "http", "url": "https://x.example"}}}, ["/tools/send_reply"]),
    ({"tools": {"t": {"type": "builtin", "url": "https://x.example"}}}, ["/tools/t/type"]),
    ({"mailbox": None}, ["/mailbox"]),
    (
        {"mailbox": {"name": "m", "imap": {"host": "mail.example", "user": OWN, "tls": "none"}}},
        ["/mailbox/imap/tls"],
    ),
    ({"pipeline": {"labels": [{"name": "two words"}]}}, ["/pipeline/labels/0/name"]),
    ({"limits": {"replies_per_thread": -1}}, ["/limits/replies_per_thread"]),
    ({"colour": "blue"}, ["/colour"]),
]


@pytest.mark.parametrize(("changes", "pointers"), MISTAKES)
def test_a_mistake_is_found_at_its_place(
    tmp_path: Path, changes: dict[str, Any], pointers: list[str]
) -> None:
    keeps = {} if "agent" not in changes else {"routing": {}}
    with pytest.raises(CorrectTheInput) as refused:
        load_config(_config(tmp_path, **keeps, **changes))
    found = [finding.pointer for finding in refused.value.findings]
    assert set(pointers) <= set(found)  # M3, M4
    extra = [each for each in found if not any(each.startswith(known) for known in pointers)]
    assert not extra


def test_all_mistakes_are_printed_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _config(
        tmp_path,
        routing={"rules": [{**RULE, "match": {}}, {**RULE, "route": "agent"}]},
        agent={"profiles": {"x": {"system_prompt_file": "absent.txt", "tools": ["fly"]}}},
    )
    assert check(path) == 2
    told = capsys.readouterr().out
    for place in ("rules/0/match", "rules/1/name", "rules/1/profile", "x/tools/0", "x/system_prompt_file"):
        assert place in told


def test_commands_refuse_a_config_with_mistakes(tmp_path: Path) -> None:
    path = _config(tmp_path, colour="blue")
    (tmp_path / "a.eml").write_bytes(raw_mail())
    for command in ("explain", "process"):
        done = _run(command, "--config", path, tmp_path / "a.eml", "--json")
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"/colour" in done.stderr


@pytest.mark.parametrize("content", [b"", b"- a", b"a: [", b"a: 1\na: 2", b"\xff"])
def test_what_is_no_config_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mail.yaml"
    path.write_bytes(content)
    assert check(path) == 2
    assert check(tmp_path / "absent.yaml") == 2


def test_the_example_can_be_run_and_fits_the_published_schema() -> None:
    assert _run("check", "--config", EXAMPLE).returncode == 0
    schema = orjson.loads(_run("schema").stdout)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(yaml.safe_load(EXAMPLE.read_text()))
    assert set(schema["properties"]) == set(MailConfig.model_fields)


# --- explain and process ---------------------------------------------------------------------------


def test_explain_tells_of_each_mail_in_one_line(tmp_path: Path) -> None:
    first, second = tmp_path / "a.eml", tmp_path / "b.eml"
    first.write_bytes(raw_mail(Authentication_Results=dmarc()))
    second.write_bytes(raw_mail(From="eve@evil.example", Precedence="bulk"))
    done = _run("explain", "--config", _config(tmp_path), "--json", first, second, tmp_path / "absent.eml")
    assert done.returncode == 2  # the last one cannot be read
    one, two = map(orjson.loads, done.stdout.splitlines())
    assert one == {
        "file": str(first),
        "rule": "customers",
        "route": "agent",
        "profile": "pharmacy",
        "trust": "authenticated",
        "send": "allow",
        "automatic": None,
        "rules": [{"name": "customers", "matched": True, "why": one["rules"][0]["why"]}],
        "reads": one["reads"],
    }  # M4
    assert "Hello." in one["reads"]
    assert (two["rule"], two["route"], two["trust"]) == (None, "pipeline", "spoofable")
    assert two["automatic"]


@pytest.mark.anyio
async def test_process_tells_what_would_be_sent(tmp_path: Path) -> None:
    file, letter = tmp_path / "a.eml", {"to": "anna@customer.example", "subject": "Re: A", "body": "Yes."}
    file.write_bytes(raw_mail(Authentication_Results=dmarc()))
    robot = tmp_path / "b.eml"
    robot.write_bytes(raw_mail(Auto_Submitted="auto-replied"))
    steps = [CallsTools([ToolCall("c1", "send_reply", letter)]), Says("Done.")]
    async with FakeOpenAI(steps).running() as server:
        done = await asyncio.to_thread(
            _run,
            *("process", "--config", _config(tmp_path), "--json", file, robot),
            FLOW_ENGINE_LLM_MODEL="local:scripted",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="x",
        )
    assert done.returncode == 0, done.stderr
    one, two = map(orjson.loads, done.stdout.splitlines())
    assert (one["status"], one["label"]) == ("completed", None)
    [line] = one["tool_calls"]
    assert (line["tool_name"], line["arguments"], line["iteration"]) == ("send_reply", letter, 1)  # M7
    assert one["outbox"] == [
        {"action": "send", "to": ["anna@customer.example"], "subject": "Re: A", "text": "Yes."}
    ]
    assert (two["status"], two["outbox"], bool(two["automatic"])) == (None, [], True)


def test_without_a_model_a_run_ends_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "a.eml"
    file.write_bytes(raw_mail())
    done = _run("process", "--config", _config(tmp_path), "--json", file)
    told = orjson.loads(done.stdout)
    assert (done.returncode, told["status"], told["rule"]) == (1, "error", "customers")
    assert "not_configured" in told["error"]


def test_the_demonstration_runs_offline_from_a_wheel_without_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE")}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "mail", "demo"],
        capture_output=True,
        env={**kept, "PYTHONPATH": str(installed)},
        cwd=installed,
        timeout=120,
        check=False,
    )
    told = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    for words in ("manage_reservation", "send to info@dostupnost-leku.example", "draft to", "never answered"):
        assert words in told
    assert "sender spoofable, answers become drafts" in told
    assert "| Dobrý den," in told
