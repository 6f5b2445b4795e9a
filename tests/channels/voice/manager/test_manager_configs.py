"""Configs from templates."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.config.loader import ConfigRefused, load_config
from channels.voice.manager.agents_list import Listed
from channels.voice.manager.configs import ConfigFiles, fill, placeholders
from tests.channels.voice.manager.manager_bench import TEMPLATE

API = "https://business.example"
AGENT = Listed("a-1", 'Chez "A" ${API_URL} \\', "restaurant")


@pytest.fixture
def files(tmp_path: Path) -> ConfigFiles:
    for name in ("templates", "configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "templates" / "restaurant.json").write_bytes(orjson.dumps(TEMPLATE))
    return ConfigFiles(tmp_path / "templates", tmp_path / "configs", API, ())


def write(tmp_path: Path, template: object) -> None:
    content = template if isinstance(template, bytes) else orjson.dumps(template)
    (tmp_path / "templates" / "restaurant.json").write_bytes(content)


def refusal(files: ConfigFiles, agent: Listed = AGENT) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigRefused) as raised:
        files.make(agent)
    return [(each.pointer, each.code, each.message) for each in raised.value.problems]


def test_a_name_with_quotes_stays_a_value(files: ConfigFiles) -> None:  # V13
    config = load_config(files.make(AGENT), builders=()).config
    assert (config.agent.id, config.agent.name, config.base_url) == ("a-1", AGENT.name, API)


def test_every_placeholder_is_replaced_within_text_too() -> None:  # V13
    values = placeholders(Listed("i", "N", "t"), API)
    text = " ".join(f"${{{name}}}" for name in values)
    assert fill({"x": [text, 3, None, True]}, values) == {
        "x": [f"i N {API} i N t {API}", 3, None, True],
    }


def test_secrets_of_the_bridge_are_no_placeholders() -> None:  # V13
    assert not any("SIP" in name for name in placeholders(AGENT, API))


def test_all_unknown_placeholders_are_told_with_those_there_are(
    files: ConfigFiles, tmp_path: Path
) -> None:  # V13
    write(tmp_path, {**TEMPLATE, "base_url": "${API}/${X}", "tools": {"${AGENT_ID}": {"url": "${}"}}})
    assert [problem[:2] for problem in refusal(files)] == [
        ("/base_url", "unknown_placeholder"),
        ("/tools/${AGENT_ID}", "placeholder_in_name"),
        ("/tools/${AGENT_ID}/url", "unknown_placeholder"),
    ]
    assert "'API', 'X'; there are 'AGENT_ID', 'AGENT_NAME'" in refusal(files)[0][2]


def test_what_an_agent_would_refuse_is_refused_here(files: ConfigFiles, tmp_path: Path) -> None:  # V13
    write(tmp_path, {**TEMPLATE, "version": "1.0", "agents": {}})
    assert {problem[0] for problem in refusal(files)} == {"/version", "/agents"}


def test_a_template_that_names_an_agent_itself_is_refused(files: ConfigFiles, tmp_path: Path) -> None:  # V13
    write(tmp_path, {**TEMPLATE, "agent": {"id": "b", "name": "B", "type": "restaurant"}})
    assert [problem[:2] for problem in refusal(files)] == [("/agent/id", "other_agent")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "2.0", "version": "2.0"}', b"\xff"])
def test_a_template_that_is_no_json_object_is_refused(
    files: ConfigFiles, tmp_path: Path, content: bytes
) -> None:  # V13
    write(tmp_path, content)
    assert refusal(files)


def test_a_type_without_a_template_is_told_with_those_there_are(files: ConfigFiles) -> None:  # V13
    ((_, code, message),) = refusal(files, Listed("a", "A", "medical"))
    assert (code, "there are 'restaurant'" in message) == ("no_template", True)


def test_a_template_that_cannot_be_read_is_a_problem_of_its_agents(
    files: ConfigFiles, tmp_path: Path
) -> None:  # V13
    (tmp_path / "templates" / "medical.json").mkdir()
    assert refusal(files, Listed("a", "A", "medical"))[0][1] == "template_unreadable"


def test_a_file_is_replaced_whole_and_for_its_owner_only(files: ConfigFiles) -> None:  # V13
    first = files.write("a", b"one")
    inode = files.path("a").stat().st_ino
    assert files.write("a", b"one") == first
    assert files.path("a").stat().st_ino == inode, "the same is not written again"
    assert files.write("a", b"two") != first
    assert files.path("a").read_bytes() == b"two"
    assert files.path("a").stat().st_ino != inode
    assert files.path("a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in files.path("a").parent.iterdir()] == ["a.json"]


def test_a_draft_that_a_crash_has_left_is_no_obstacle(files: ConfigFiles) -> None:  # V13
    files.path("a").with_name(".a.json.new").write_bytes(b"half")
    files.write("a", b"whole")
    assert files.path("a").read_bytes() == b"whole"


def test_removing_what_is_not_there_is_fine(files: ConfigFiles) -> None:  # V13
    files.write("a", b"one")
    files.remove("a")
    files.remove("a")
    assert not files.path("a").exists()


TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT.filter(lambda text: "${" not in text),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT.filter(lambda text: "${" not in text), inner, max_size=3)
    ),
    max_leaves=15,
)


@given(JSON)
def test_a_template_without_placeholders_is_its_own_config(template: object) -> None:  # V13
    assert fill(template, placeholders(AGENT, API)) == template  # type: ignore[arg-type]


@given(TEXT, TEXT, TEXT)
def test_a_value_is_what_it_was_wherever_it_stands(before: str, name: str, after: str) -> None:  # V13
    before, after = before.replace("$", ""), after.replace("$", "")
    values = placeholders(Listed("a", name, "t"), API)
    filled = fill({"x": f"{before}${{AGENT_NAME}}{after}"}, values)
    assert orjson.loads(orjson.dumps(filled)) == {"x": before + name + after}
