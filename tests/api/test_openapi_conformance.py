"""Generated requests over the whole OpenAPI document: no 5xx, no status or reply that it does not name.

A few of each operation on a conversation that is there; `make conformance` makes 25 times as many, tries
every boundary, and ids that nobody knows too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from adapters.models.scripted import Says
from tests.flow_engine.listening.talking import model_settings, scripted_openai
from tests.service_process import running_service

CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
)
KNOWN_IDS = """
[parameters]
conversation_id = "conv-1"
flow_id = "claim"
version_id = "claim-v1"
tag = "prod"
page = "chat"
"""


def _started(base: str) -> None:
    body = {
        "contactId": "call-1",
        "conversationId": "conv-1",
        "conversationalFlowVersionId": "claim-v1",
        "channel": "phone",
    }
    request = urllib.request.Request(f"{base}/v1/handle-new-contact", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200


EXAMPLES = int(os.environ.get("FLOW_ENGINE_TEST_EXAMPLES", "1"))
CONFIGS = {"known-ids": KNOWN_IDS} | ({"any-ids": ""} if EXAMPLES > 1 else {})


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_generated_requests_get_what_the_document_names(tmp_path: Path, config: str) -> None:  # F36
    phases = "examples,coverage,fuzzing" if EXAMPLES > 1 else "examples,fuzzing"
    (tmp_path / "schemathesis.toml").write_text(config)
    # With a model: without one, improving a description answers 503, as it says and as its own test shows.
    with (
        scripted_openai(lambda _: Says("Enter it when the caller asks for it.")) as fake,
        running_service(tmp_path / "data", **model_settings(fake)) as base,
    ):
        _started(base)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json"),
                *("--checks", CHECKS, "--max-examples", str(EXAMPLES)),
                *("--exclude-path-regex", "/stream$"),  # it would be read to its end, which does not come
                *("--phases", phases, "--seed", "1", "--generation-database", "none"),
                *("--suppress-health-check", "too_slow"),  # of making requests: it measures the machine
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1_200,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Tested: 0" not in done.stdout
