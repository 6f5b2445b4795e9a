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
from typer.testing import CliRunner, Result

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import Answers, CallsToolBadly, CallsTools, Says
from channels.mail.config import MailConfig
from channels.mail.loading import load_config
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.models import ToolCall
from service.cli import app
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


def _cli(*arguments: str | Path) -> Result:
    """A command that sets up no logging, in this process."""
    return CliRunner().invoke(app, ["mail", *map(str, arguments)])


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
IMAP = {"host": "imap.example", "user": OWN, "password_env": "P"}


def _by_token(url: str) -> dict[str, Any]:
    oauth2 = {"token_url": url, "client_id": "me", "refresh_token_env": "R"}
    return {"mailbox": {"name": "m", "imap": {"host": "imap.example", "user": OWN, "oauth2": oauth2}}}


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
        ["/mailbox/imap", "/mailbox/imap/tls"],
    ),
    ({"pipeline": {"labels": [{"name": "two words"}]}}, ["/pipeline/labels/0/name"]),
    ({"limits": {"replies_per_thread": -1}}, ["/limits/replies_per_thread"]),
    ({"colour": "blue"}, ["/colour"]),
    (
        {"mailbox": {"name": "m", "imap": {"host": "mail.example", "user": "info", "password_env": "P"}}},
        ["/mailbox"],
    ),
    (
        {"mailboxes": [{"name": "m", "imap": {"host": "mail.example", "user": OWN, "password_env": "P"}}]},
        ["/mailbox"],
    ),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "flow": {"engine_url": "http://e", "flow_id": "f"}}}}},
        ["/agent/profiles/x/flow"],
    ),
    ({"agent": {"profiles": {"x": {**PROFILE, "name": "y"}}}}, ["/agent/profiles/x/name"]),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "tools": ["escalate", "escalate"]}}}},
        ["/agent/profiles/x/tools/1"],
    ),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "tools": ["escalate"], "approval": {"escalate": "ask"}}}}},
        ["/agent/profiles/x/approval/escalate"],
    ),
    (
        {"agent": {"profiles": {"x": {**PROFILE, "allowed_recipients": ["nobody"]}}}},
        ["/agent/profiles/x/allowed_recipients/0"],
    ),
    ({"routing": {"rules": [{**RULE, "trust": "none"}]}}, ["/routing/rules/0/trust"]),
    ({"routing": {"rules": [{**RULE, "label": "two words"}]}}, ["/routing/rules/0/label"]),
    (
        {"routing": {"rules": [{**RULE, "match": {"sender_domain": "a@b.example"}}]}},
        ["/routing/rules/0/match/sender_domain"],
    ),
    ({"pipeline": {"labels": [{"name": "a"}, {"name": "a"}]}}, ["/pipeline/labels"]),
    ({"pipeline": {"draft": "yes"}}, ["/pipeline/draft"]),
    ({"pipeline": {"draft": None}}, ["/pipeline/draft"]),
    (
        {"pipeline": {"draft": {"instructions": 5, "x": 1}}},
        ["/pipeline/draft/instructions", "/pipeline/draft/x"],
    ),
    ({"tools": {"t": {"url": "https://x.example", "parameters": {"type": 5}}}}, ["/tools/t/parameters"]),
    (_by_token("http://tokens.example/token"), ["/mailbox/imap/oauth2/token_url"]),
    (_by_token("https://tokens.example/token#x"), ["/mailbox/imap/oauth2/token_url"]),
    (_by_token("https://tokens.example:port/token"), ["/mailbox/imap/oauth2/token_url"]),
    (_by_token("https://me@tokens.example/token"), ["/mailbox/imap/oauth2/token_url"]),
    ({"mailbox": {"name": "m", "imap": IMAP, "address": "jána@example.org"}}, ["/mailbox/address"]),
    ({"mailbox": {"name": "m", "imap": {**IMAP, "user": "jána@example.org"}}}, ["/mailbox"]),
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


@pytest.mark.parametrize(
    "url", ["https://tokens.example/o/token/", "http://[::1]:8/token?tenant=a/", "HTTP://localhost/token"]
)
def test_the_address_of_a_token_server_is_kept_as_it_is_given(tmp_path: Path, url: str) -> None:  # M3
    loaded = load_config(_config(tmp_path, **_by_token(url)))
    oauth2 = loaded.config.every_mailbox[0].imap.oauth2
    assert oauth2 is not None
    assert oauth2.token_url == url


def test_an_address_beyond_ascii_is_replaced_by_one_or_is_an_alias(tmp_path: Path) -> None:  # M3
    imap = {**IMAP, "user": "jána@example.org"}
    mailbox = {"name": "m", "imap": imap, "address": OWN, "aliases": ["jána@example.org"]}
    assert check(_config(tmp_path, mailbox=mailbox)) == 0


def test_a_mistake_in_an_expression_is_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = [{**RULE, "match": {"header_match": {"X-A": "(?=x)"}}}]
    assert check(_config(tmp_path, routing={"rules": rules})) == 2
    told = capsys.readouterr().out
    assert "accepted is a regular expression of RE2: invalid perl operator: (?=" in told
    assert "b'" not in told


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


def test_what_fields_make_wrong_together_is_told_beside_what_is_wrong_with_each(tmp_path: Path) -> None:  # M3
    imap = {"host": "imap.x", "tls": "none", "user": "u"}
    smtp = {"host": "smtp..x", "user": "u", "port": 99_999, "password_env": "P", "oauth2": {"token_url": 5}}
    flow = {"engine_url": "here", "version": "v", "flow_id": "f", "tag": "t"}
    profile = {**PROFILE, "flow": flow, "model": "nothing"}
    with pytest.raises(CorrectTheInput) as refused:
        load_config(
            _config(
                tmp_path,
                mailbox={"name": "x", "imap": imap, "smtp": smtp},
                routing={},
                agent={"profiles": {"x": profile}},
            )
        )
    told = {(each.pointer, each.code) for each in refused.value.findings}
    assert told == {
        ("/mailbox", "address_missing"),
        ("/mailbox/imap", "no_secret"),
        ("/mailbox/imap/tls", "tls_needed"),
        ("/mailbox/smtp", "two_secrets"),
        ("/mailbox/smtp/host", "not_accepted"),
        ("/mailbox/smtp/port", "less_than_equal"),
        *(
            ("/mailbox/smtp/oauth2/" + name, "missing_property")
            for name in ("client_id", "refresh_token_env")
        ),
        ("/mailbox/smtp/oauth2/token_url", "wrong_type"),
        ("/agent/profiles/x/model", "unknown_model"),
        ("/agent/profiles/x/flow", "version_choice"),
        ("/agent/profiles/x/flow/engine_url", "not_accepted"),
    }


def test_commands_refuse_a_config_with_mistakes(tmp_path: Path) -> None:
    path = _config(tmp_path, colour="blue")
    (tmp_path / "a.eml").write_bytes(raw_mail())
    for command in ("explain", "process"):
        done = _cli(command, "--config", path, tmp_path / "a.eml", "--json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "/colour" in done.stderr


@pytest.mark.parametrize("content", [b"", b"- a", b"a: [", b"a: 1\na: 2", b"\xff"])
def test_what_is_no_config_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mail.yaml"
    path.write_bytes(content)
    assert check(path) == 2
    assert check(tmp_path / "absent.yaml") == 2


def test_the_example_can_be_run_and_fits_the_published_schema() -> None:
    assert _cli("check", "--config", EXAMPLE).exit_code == 0
    schema = orjson.loads(_cli("schema").stdout)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(yaml.safe_load(EXAMPLE.read_text()))
    assert set(schema["properties"]) == set(MailConfig.model_fields)
    example = yaml.safe_load(EXAMPLE.read_text())
    for draft in (True, False, {"instructions": "Briefly."}, {}):
        assert validator.is_valid({**example, "pipeline": {"draft": draft}})
    for wrong in (None, "yes", 1, {"colour": "blue"}):
        assert not validator.is_valid({**example, "pipeline": {"draft": wrong}})


@pytest.mark.parametrize("server", ["imap", "smtp"])
def test_a_mailbox_with_a_user_has_a_secret(server: str, tmp_path: Path) -> None:  # M1
    opened = {"host": "mail.example", "user": OWN, "password_env": "MAIL_PASSWORD"}
    mailbox: dict[str, Any] = {"name": "main", "imap": opened, "smtp": opened}
    assert _cli("check", "--config", _config(tmp_path, mailbox=mailbox)).exit_code == 0
    mailbox[server] = {"host": "mail.example", "user": OWN}
    refused = _cli("check", "--config", _config(tmp_path, mailbox=mailbox))
    assert refused.exit_code == 2
    assert f"/mailbox/{server}: `password_env` or `oauth2` is required with a user" in refused.output


def test_serve_names_every_secret_that_is_not_set_and_ends(tmp_path: Path) -> None:  # M1
    grant = {"token_url": "https://tokens.example/token", "client_id": "me", "refresh_token_env": "REFRESH"}
    smtp = {"host": "smtp.example", "user": OWN, "oauth2": {**grant, "client_secret_env": "CLIENT_SECRET"}}
    path = _config(tmp_path, mailbox={"name": "main", "imap": IMAP, "smtp": smtp})
    refused = _run("serve", "--config", path, P="", CLIENT_SECRET="given")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.decode() == "flow-engine: not set in the environment: P, REFRESH\n"
    assert _cli("check", "--config", path).exit_code == 0, "which needs none"


def test_an_empty_file_is_told_without_the_keys_of_another_format(tmp_path: Path) -> None:  # M3
    path = tmp_path / "mail.yaml"
    path.write_text("")
    told = _cli("check", "--config", path).output
    assert "the file is empty" in told
    assert "scenarios" not in told


# --- explain and process ---------------------------------------------------------------------------


def test_explain_tells_of_each_mail_in_one_line(tmp_path: Path) -> None:
    first, second = tmp_path / "a.eml", tmp_path / "b.eml"
    first.write_bytes(raw_mail(Authentication_Results=dmarc()))
    second.write_bytes(raw_mail(From="eve@evil.example", Precedence="bulk"))
    done = _cli("explain", "--config", _config(tmp_path), "--json", first, second, tmp_path / "absent.eml")
    assert done.exit_code == 2  # the last one cannot be read
    assert "absent.eml: cannot be read" in done.stderr
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


def test_explain_judges_every_rule_and_names_the_signal(tmp_path: Path) -> None:  # M4
    file, picture = tmp_path / "a.eml", tmp_path / "picture.png"
    file.write_bytes(raw_mail("Forwarded by info@leku.example", Subject="Léky"))
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    rules = [
        {"name": "nobody", "match": {"sender_email": "x@y.example"}, "route": "pipeline"},
        {
            "name": "forwarded",
            "match": {"forwarded_from": "leku.example"},
            "route": "agent",
            "profile": "pharmacy",
        },
        {"name": "subject", "match": {"subject_contains": "LÉKY"}, "route": "pipeline"},
    ]
    path = _config(tmp_path, routing={"rules": rules})
    done = _cli("explain", "--config", path, "--json", file, picture)
    assert done.exit_code == 0, "what is not a mail at all is still a message"
    one, two = map(orjson.loads, done.stdout.splitlines())
    assert [(each["name"], each["matched"], each.get("signal")) for each in one["rules"]] == [
        ("nobody", False, None),
        ("forwarded", True, "body"),
        ("subject", True, None),
    ]
    assert all("signal" not in one["rules"][at] for at in (0, 2))
    assert one["rules"][0]["why"] == "sender_email: From is anna@customer.example"
    assert (one["rule"], one["send"], one["trust"]) == ("forwarded", "draft", "spoofable")
    assert (two["rule"], two["route"], two["profile"], two["send"]) == (None, "pipeline", None, "draft")
    lines = _cli("explain", "--config", path, file).stdout
    assert "✗ nobody: sender_email: From is anna@customer.example" in lines
    assert "✓ forwarded: forwarded_from: by body" in lines


def test_a_mailbox_is_chosen_by_its_name(tmp_path: Path) -> None:
    imap = {"host": "imap.example", "password_env": "MAIL_PASSWORD"}
    boxes = [{"name": name, "imap": {**imap, "user": f"{name}@x.example"}} for name in ("one", "two")]
    path = _config(tmp_path, mailbox=None, mailboxes=boxes)
    file = tmp_path / "a.eml"
    file.write_bytes(raw_mail(From="two@x.example"))
    for name, automatic in (("one", None), ("two", "From is the mailbox itself")):
        done = _cli("explain", "--config", path, "--mailbox", name, "--json", file)
        assert orjson.loads(done.stdout)["automatic"] == automatic  # M15
    refused = _cli("explain", "--config", path, "--mailbox", "three", file)
    assert refused.exit_code == 2
    assert "accepted are one, two" in refused.output


def test_a_preprocessor_of_ones_own_comes_by_an_entry_point(  # M12
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text("def shout(mail):\n    return mail.own_text.upper()\n")
    installed = tmp_path / "shouting-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1\n")
    group = "[flow_engine.mail_preprocessors]\n"
    (installed / "entry_points.txt").write_text(f"{group}shout = shouting:shout\n")
    monkeypatch.syspath_prepend(tmp_path)
    profile = {"system_prompt_file": "prompt.txt", "tools": [], "preprocessor": "shout"}
    path, file = _config(tmp_path, agent={"profiles": {"pharmacy": profile}}), tmp_path / "a.eml"
    file.write_bytes(raw_mail("please help"))
    done = _cli("explain", "--config", path, "--json", file)
    assert "PLEASE HELP" in orjson.loads(done.stdout)["reads"]
    for broken in ("gone = shouting:gone", "default = shouting:shout", "text = shouting:__doc__"):
        (installed / "entry_points.txt").write_text(f"{group}{broken}\n")
        refused = _cli("explain", "--config", path, file)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert broken.partition(" ")[0] in refused.output


def _letter(to: str = "anna@customer.example") -> dict[str, str]:
    return {"to": to, "subject": "Re: A", "body": "Yes."}


def _answers(received: Received) -> WireStep:
    """A word in the mail says what the model does with it."""
    read = str(received.body["messages"][1]["content"])
    if "response_format" in received.body:
        return Answers({"label": None, "language": "en", "urgency": "low", "summary": "A picture."})
    if received.body["messages"][-1]["role"] == "tool":
        return Says("Done.")
    if "Garbage" in read:
        return CallsToolBadly("send_reply", '{"to": ')
    if "Stranger" in read:
        return CallsTools([ToolCall("c1", "send_reply", _letter("eve@evil.example"))])
    return CallsTools([ToolCall("c1", "send_reply", _letter())])


@pytest.mark.anyio
async def test_process_tells_what_would_be_sent(tmp_path: Path) -> None:
    trusted = {"Authentication_Results": dmarc()}
    mails = {
        "sent": raw_mail("Question", **trusted),
        "forged": raw_mail("Question"),
        "robot": raw_mail(Auto_Submitted="auto-replied"),
        "garbage": raw_mail("Garbage", **trusted),
        "stranger": raw_mail("Stranger", **trusted),
        "careful": raw_mail("Question", Subject="Careful", **trusted),
        "picture": b"\x89PNG\r\n\x1a\n\0",
    }
    files = [tmp_path / f"{name}.eml" for name in mails]
    for file, raw in zip(files, mails.values(), strict=True):
        file.write_bytes(raw)
    profile = {"system_prompt_file": "prompt.txt", "tools": ["send_reply"]}
    profiles = {"pharmacy": profile, "careful": {**profile, "approval": {"send_reply": "prompt"}}}
    rule = {"match": {"sender_domain": "customer.example"}, "route": "agent", "name": "customers"}
    careful = {"name": "careful", "match": {"subject_contains": "careful"}, "route": "agent"}
    rules = [{**careful, "profile": "careful"}, {**rule, "profile": "pharmacy"}]
    path = _config(tmp_path, agent={"profiles": profiles}, routing={"rules": rules})
    async with FakeOpenAI(_answers).running() as server:
        done = await asyncio.to_thread(
            _run,
            *("process", "--config", path, "--json", *files, tmp_path / "absent.eml"),
            FLOW_ENGINE_LLM_MODEL="local:scripted",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="x",
        )
    assert done.returncode == 2, "the last one cannot be read"
    told = dict(zip(mails, map(orjson.loads, done.stdout.splitlines()), strict=True))
    assert [each["file"] for each in told.values()] == list(map(str, files)), "in their order, a line each"
    sent, forged, robot = told["sent"], told["forged"], told["robot"]
    assert (sent["status"], sent["label"], sent["iterations"]) == ("completed", None, 2)
    [line] = sent["tool_calls"]
    assert line.keys() == {"tool_name", "arguments", "result", "iteration"}
    assert (line["tool_name"], line["arguments"], line["iteration"]) == ("send_reply", _letter(), 1)  # M7
    assert line["result"]["status"] == "sent"
    out = {"to": ["anna@customer.example"], "subject": "Re: A", "text": "Yes."}
    assert sent["outbox"] == [{"action": "send", **out}]
    reason = "the sender is not authenticated, so replies are left as drafts"
    assert forged["outbox"] == [{"action": "draft", **out, "reason": reason}]  # M4
    assert (robot["status"], robot["outbox"], bool(robot["automatic"])) == (None, [], True)  # M15
    [line] = told["garbage"]["tool_calls"]
    assert (line["arguments"], "error" in line["result"], told["garbage"]["outbox"]) == ({}, True, [])  # M9
    assert told["stranger"]["outbox"][0]["reason"] == "an address in `to` is not of the thread"
    waits = told["careful"]
    assert (waits["status"], waits["outbox"]) == ("waiting", [])
    assert waits["waiting"] == [{"tool": "send_reply", "arguments": _letter()}]  # M11
    assert (told["picture"]["route"], told["picture"]["status"]) == ("pipeline", "completed")
    assert done.stderr.count(b"send_downgraded") == 1
    assert b"anna@" not in done.stderr


def test_without_a_model_a_run_ends_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "a.eml"
    file.write_bytes(raw_mail())
    done = _run("process", "--config", _config(tmp_path), "--json", file)
    told = orjson.loads(done.stdout)
    assert (done.returncode, told["status"], told["rule"]) == (1, "error", "customers")
    assert "not_configured" in told["error"]


@pytest.mark.long
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
