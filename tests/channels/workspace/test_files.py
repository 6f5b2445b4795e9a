"""Listing, reading, searching and writing: what the tools give and what they refuse (W1, W8)."""

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from channels.workspace import files
from channels.workspace.toolbox import SPECS
from tests.channels.workspace.workspace_world import World, opened

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture(params=["ripgrep", "walk"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Searching has to give the same with ripgrep and without."""
    if request.param == "walk":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    elif shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    return request.param


def put(world: World, path: str, content: str | bytes = "") -> Path:
    place = world.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


PARAMETERS = {
    "list_files": ({"path"}, {"recursive": False, "pattern": None}),
    "read_file": ({"path"}, {"start_line": None, "end_line": None}),
    "write_file": ({"path", "content"}, {"mode": "create"}),
    "delete_file": ({"path"}, {}),
    "search_text": ({"query"}, {"path": ".", "regex": False, "case_sensitive": False}),
    "search_semantic": ({"query"}, {"top_k": 5}),
    "shell_exec": ({"command"}, {"cwd": None, "timeout": 30}),
}


def test_the_tools_have_their_names_parameters_and_defaults() -> None:  # W1
    assert {spec.name for spec in SPECS} == set(PARAMETERS)
    for spec in SPECS:
        required, optional = PARAMETERS[spec.name]
        properties: Any = spec.parameters["properties"]
        assert set(properties) == required | set(optional), spec.name
        assert set(spec.parameters["required"]) == required  # type: ignore[arg-type]
        assert {name: properties[name].get("default") for name in optional} == optional
        assert all(each["type"] in ("string", "integer", "boolean") for each in properties.values())
    [write] = [spec for spec in SPECS if spec.name == "write_file"]
    assert write.parameters["properties"]["mode"]["enum"] == ["create", "overwrite", "append"]  # type: ignore[index,call-overload]


# Listing ------------------------------------------------------------------------------------------------


def tree(world: World) -> None:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", "src/deep/e.txt"):
        put(world, path, "x")


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"path": "."}, ["a.py", "b.txt", "src"]),
        ({"path": "src"}, ["src/c.py", "src/deep"]),
        ({"path": "src/"}, ["src/c.py", "src/deep"]),
        ({"path": "./src/../src"}, ["src/c.py", "src/deep"]),
        ({"path": ".", "pattern": "*.py"}, ["a.py"]),
        ({"path": ".", "recursive": True, "pattern": "*.py"}, ["a.py", "src/c.py", "src/deep/d.py"]),
        ({"path": "src", "recursive": True, "pattern": "src/deep/*"}, ["src/deep/d.py", "src/deep/e.txt"]),
        ({"path": ".", "recursive": True, "pattern": "none"}, []),
    ],
)
async def test_a_listing(arguments: dict[str, Any], paths: list[str], world: World) -> None:  # W1
    tree(world)
    listed = await world.call("list_files", **arguments)
    assert sorted(each["path"] for each in listed["files"]) == paths
    assert not listed["truncated"]


async def test_a_listing_tells_kinds_and_sizes(world: World) -> None:  # W1
    put(world, "a.txt", "12345")
    (world.root / "folder").mkdir()
    (world.root / "link").symlink_to("a.txt")
    listed = (await world.call("list_files", path="."))["files"]
    assert {each["path"]: each["type"] for each in listed} == {
        "a.txt": "file",
        "folder": "directory",
        "link": "link",
    }
    assert listed[0]["size"] == 5


@pytest.mark.usefixtures("search")
async def test_ignore_files_hold_for_the_folders_below_them(world: World) -> None:  # W10
    put(world, ".gitignore", "*.log\n/build/\n!keep.log\n")
    put(world, "src/.gitignore", "secret.txt\n!important.log\n")
    put(world, ".agentichat/ignore", "private/\n")
    for path in (
        *("a.log", "keep.log", "build/x", "src/build/y", "src/important.log", "src/b.log"),
        *("src/secret.txt", "secret.txt", "private/z", ".git/config", "src/deep/c.log"),
    ):
        put(world, path, "needle")
    listed = await world.call("list_files", path=".", recursive=True)
    found = {each["path"] for each in listed["files"] if each["type"] == "file"}
    visible = {"keep.log", "src/build/y", "src/important.log", "secret.txt"}
    assert found == visible | {".gitignore", "src/.gitignore"}
    matches = (await world.call("search_text", query="needle"))["matches"]
    assert {each["path"] for each in matches} == visible
    below = await world.call("list_files", path="src", recursive=True)
    assert "src/b.log" not in {each["path"] for each in below["files"]}
    assert (await world.call("read_file", path="a.log"))["content"] == "needle", "by its path it is read"


async def test_a_line_of_an_ignore_file_that_is_no_pattern_is_passed_over(search: str, world: World) -> None:
    # W10
    put(world, ".gitignore", "!\nname\\\n[z-a]\nb.txt\n")
    put(world, "a.txt", "found")
    put(world, "b.txt", "found")
    listed = await world.call("list_files", path=".")
    assert [each["path"] for each in listed["files"]] == [".gitignore", "a.txt"]
    found = await world.call("search_text", query="found")
    assert [each["path"] for each in found["matches"]] == ["a.txt"]


async def test_a_long_listing_is_cut_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # W1
    monkeypatch.setattr(files, "MOST_LISTED", 10)
    for number in range(12):
        put(world, f"{number:02}.txt")
    listed = await world.call("list_files", path=".")
    assert (len(listed["files"]), listed["truncated"]) == (10, True)


# Reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "content", "lines"),
    [
        ({}, "one\ntwo\nthree\nfour", (1, 4)),
        ({"start_line": 2}, "two\nthree\nfour", (2, 4)),
        ({"end_line": 2}, "one\ntwo\n", (1, 2)),
        ({"start_line": 2, "end_line": 3}, "two\nthree\n", (2, 3)),
        ({"start_line": 4, "end_line": 99}, "four", (4, 4)),
        ({"start_line": 0}, "one\ntwo\nthree\nfour", (1, 4)),
        ({"start_line": -3, "end_line": 1}, "one\n", (1, 1)),
    ],
)
async def test_lines_are_counted_from_one(
    arguments: dict[str, int], content: str, lines: tuple[int, int], world: World
) -> None:  # W1
    put(world, "a.txt", "one\ntwo\nthree\nfour")
    read = await world.call("read_file", path="a.txt", **arguments)
    assert (read["content"], (read["start_line"], read["end_line"])) == (content, lines)
    assert (read["total_lines"], read["truncated"]) == (4, False)


async def test_a_whole_number_may_be_written_with_a_point(world: World) -> None:  # W1
    put(world, "a.txt", "one\ntwo\nthree\n")
    part = await world.call("read_file", path="a.txt", start_line=2.0, end_line=2.0)
    assert (part["content"], part["start_line"]) == ("two\n", 2)
    assert (await world.call("read_file", path="a.txt", start_line=1.5))["error"] == "INVALID_ARGUMENTS"
    await world.workspace.index.update()
    assert len((await world.call("search_semantic", query="two", top_k=1.0))["results"]) == 1


async def test_lines_that_are_not_there_are_named(world: World) -> None:  # W1
    put(world, "a.txt", "one\n")
    for arguments in ({"start_line": 2}, {"start_line": 3, "end_line": 1}):
        assert (await world.call("read_file", path="a.txt", **arguments))["error"] == "NO_SUCH_LINES"
    put(world, "empty.txt")
    assert (await world.call("read_file", path="empty.txt"))["content"] == ""


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        ("Grüße".encode(), "Grüße", "utf-8"),
        ("Grüße".encode("utf-8-sig"), "Grüße", "utf-8-sig"),
        ("Grüße".encode("utf-16"), "Grüße", "utf-16"),
        ("Grüße".encode("latin-1"), "Grüße", "latin-1"),
        (b"a\r\nb\r\n", "a\r\nb\r\n", "utf-8"),
    ],
)
async def test_the_encoding_is_noticed(data: bytes, text: str, encoding: str, world: World) -> None:  # W1
    put(world, "a.txt", data)
    read = await world.call("read_file", path="a.txt")
    assert (read["content"], read["encoding"]) == (text, encoding)


async def test_what_is_no_text_is_not_shown(world: World) -> None:  # W1
    put(world, "a.bin", b"\x7fELF\0\0\0")
    assert (await world.call("read_file", path="a.bin"))["error"] == "BINARY_FILE"
    assert (await world.call("read_file", path="."))["error"] == "IS_A_DIRECTORY"
    assert (await world.call("read_file", path="none"))["error"] == "NOT_FOUND"
    assert (await world.call("list_files", path="a.bin"))["error"] == "NOT_A_DIRECTORY"


async def test_a_long_file_is_read_in_parts(world: World) -> None:  # W1
    put(world, "long.txt", "".join(f"{number}\n" for number in range(1, 5_001)))
    first = await world.call("read_file", path="long.txt")
    assert (first["end_line"], first["total_lines"], first["truncated"]) == (2_000, 5_000, True)
    rest = await world.call("read_file", path="long.txt", start_line=4_999)
    assert (rest["content"], rest["truncated"]) == ("4999\n5000\n", False)
    for end, truncated in ((4_000, True), (9_000, True), (2_000, False)):
        part = await world.call("read_file", path="long.txt", start_line=1, end_line=end)
        assert (part["end_line"], part["truncated"]) == (2_000, truncated)
    put(world, "wide.txt", "x" * 300_000)
    wide = await world.call("read_file", path="wide.txt")
    assert (len(wide["content"]), wide["truncated"]) == (100_000, True)
    put(world, "huge.txt", b"x" * 10_000_001)
    assert (await world.call("read_file", path="huge.txt"))["error"] == "TOO_LARGE"


# Searching ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"query": "total"}, [1, 3]),
        ({"query": "TOTAL"}, [1, 3]),
        ({"query": "TOTAL", "case_sensitive": True}, [3]),
        ({"query": "a.c"}, [4]),
        ({"query": "a.c", "regex": True}, [2, 4]),
        ({"query": "^def", "regex": True}, [1]),
        ({"query": r"\d{3}$", "regex": True}, [2]),
        ({"query": "nothing"}, []),
    ],
)
async def test_a_search(arguments: dict[str, Any], lines: list[int], world: World) -> None:  # W1
    put(world, "a.py", "def total():\nabc 123\nTOTAL = 1\na.c\n")
    found = await world.call("search_text", **arguments)
    assert [each["line"] for each in found["matches"]] == lines
    assert all(each["path"] == "a.py" and each["text"] for each in found["matches"])


@pytest.mark.usefixtures("search")
async def test_a_search_in_a_folder_or_a_file(world: World) -> None:  # W1
    tree(world)
    for path, count in ((".", 5), ("src", 3), ("src/deep", 2), ("a.py", 1)):
        assert len((await world.call("search_text", query="x", path=path))["matches"]) == count, path
    assert (await world.call("search_text", query="x", path="none"))["error"] == "NOT_FOUND"


@pytest.mark.usefixtures("search")
async def test_a_regex_takes_linear_time(world: World) -> None:  # W1
    put(world, "a.txt", "a" * 50_000 + "!\n")
    began = time.monotonic()
    found = await world.call("search_text", query="(a+)+$", regex=True)
    assert found["matches"] == []
    assert time.monotonic() - began < 25
    for wrong in ("(", "[", "(?=x)", r"(a)\1"):
        refused = await world.call("search_text", query=wrong, regex=True)
        assert refused["error"] == "INVALID_REGEX", wrong
    assert (await world.call("search_text", query=""))["error"] == "INVALID_ARGUMENTS"


@pytest.mark.usefixtures("search")
async def test_a_search_is_bounded_and_leaves_out_what_is_no_text(world: World) -> None:  # W1
    put(world, "many.txt", "hit\n" * 1_000)
    put(world, "wide.txt", "hit" + "x" * 10_000)
    put(world, "a.bin", b"hit\0hit")
    put(world, "huge.txt", b"hit\n" * 600_000)
    found = await world.call("search_text", query="hit")
    assert (len(found["matches"]), found["truncated"]) == (files.MOST_MATCHES, True)
    one = (await world.call("search_text", query="hit", path="wide.txt"))["matches"]
    assert len(one[0]["text"]) == 500
    assert (await world.call("search_text", query="hit", path="a.bin"))["matches"] == []


@pytest.mark.usefixtures("search")
async def test_a_search_below_a_folder_keeps_to_what_is_ignored_above(world: World) -> None:  # W10
    put(world, ".gitignore", "/src/out/\n")
    put(world, ".agentichat/ignore", "/docs/\n")
    for path in ("src/out/a", "src/docs/b", "docs/c", "src/d"):
        put(world, path, "needle")
    found = await world.call("search_text", query="needle", path="src")
    assert [each["path"] for each in found["matches"]] == ["src/d", "src/docs/b"]
    assert (await world.call("search_text", query="needle", path="docs"))["matches"] == []
    assert (await world.call("search_text", query="needle", path="src/out"))["matches"] == []
    put(world, ".agentichat/ignore", "!src/out/\n")
    assert (await world.call("search_text", query="needle\0"))["matches"] == []


async def test_a_search_reads_files_as_they_are_shown(search: str, world: World) -> None:  # W1
    put(world, "latin.txt", "un café\n".encode("latin-1"))
    put(world, "crlf.c", b"int a;\r\nint b\r\n")
    for query, path in (("café", "latin.txt"), ("CAFÉ", "latin.txt"), (";$", "crlf.c")):
        found = await world.call("search_text", query=query, regex=True)
        assert [(each["path"], each["line"]) for each in found["matches"]] == [(path, 1)], query


ENCODED = {
    "ascii.txt": b"a cafe, a[b]\nfoo-bar & more\n",
    "crlf.txt": b"a cafe;\r\nfoo\r\n",
    "ends.txt": b"one\x0ctwo;\rfoo\x1cthree",
    "latin.txt": "un café;\nnaïve\n".encode("latin-1"),
    "mixed.txt": "un café;\r\nЖ\u2028foo\u00a0bar\n".encode(),
    "signed.txt": "café; naïve\n".encode("utf-8-sig"),
    "wide.txt": "un café;\nfoo\n".encode("utf-16"),
    "wide_be.txt": b"\xfe\xff" + "cafe naïve\r\n".encode("utf-16-be"),
    "deep/caf.txt": b"cafe\n",
    "zoo.txt": "café".encode("latin-1"),
}


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
@pytest.mark.parametrize("case_sensitive", [True, False])
@pytest.mark.parametrize(
    ("query", "least"),
    [
        *(("caf.", 9), ("caf.;$", 4), (r"caf\W", 4), (r"caf\b", 4), (r"na\S+e", 3), ("caf[^e]", 5)),
        *(("^foo$", 3), ("^two;$", 1), (r"o\Sb", 2), (r"\Afoo", 5), (r"(?-s:cafe)\z", 1), ("(?i)CAFE", 4)),
        *(("[[a]b]", 1), ("[a&&&]", 4), ("[[:alpha:]]af", 9), (r"\xe9", 5), (r"^\D+$", 9), ("na.ve", 3)),
    ],
)
async def test_a_regex_finds_with_ripgrep_what_it_finds_without(
    query: str, least: int, case_sensitive: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # W1
    for path, data in ENCODED.items():
        put(world, path, data)
    arguments = {"query": query, "regex": True, "case_sensitive": case_sensitive}
    found = (await world.call("search_text", **arguments))["matches"]
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert found == (await world.call("search_text", **arguments))["matches"]
    assert len(found) >= least


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
async def test_ripgrep_spares_reading_files_of_plain_lines(world: World) -> None:  # W1
    for number in range(20):
        put(world, f"{number}.txt", "plain\n")
    for path in ("needle.txt", "a/needle.txt"):
        put(world, path, "one needle\n")
    found = await world.call("search_text", query="ne+dle$", regex=True)
    assert [each["path"] for each in found["matches"]] == ["needle.txt", "a/needle.txt"]
    assert found["files_searched"] == 2


async def test_a_name_that_is_no_text_hides_no_other(search: str, world: World) -> None:  # W1
    put(world, "a.txt", "needle\n")
    for name in (b"d\xe9f.txt", b"d\xe9r/b.txt"):
        place = world.root / os.fsdecode(name)
        place.parent.mkdir(exist_ok=True)
        place.write_text("needle\n", "utf-8")
    (world.root / "link").symlink_to(os.fsdecode(b"d\xe9f.txt"))
    listed = await world.call("list_files", path=".", recursive=True)
    assert [each["path"] for each in listed["files"]] == ["a.txt", "link"]
    assert [each["path"] for each in (await world.call("search_text", query="needle"))["matches"]] == [
        "a.txt"
    ]
    assert (await world.workspace.index.update()).files == 1
    for path in ("link", "d\udce9f.txt"):
        assert (await world.call("read_file", path=path))["error"] in ("INVALID_PATH", "INVALID_ARGUMENTS")
        assert not (await world.call("write_file", path=path, content="x", mode="overwrite"))["success"]
    assert (world.root / "link").read_text("utf-8") == "needle\n"


async def test_other_work_goes_on_during_a_search(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # W9
    released = threading.Event()

    def slow(*_: object, **__: object) -> dict[str, Any]:
        return {"success": released.wait(5)}

    monkeypatch.setattr("channels.workspace.toolbox.search_text", slow)
    searching = asyncio.create_task(world.call("search_text", query="x"))
    await asyncio.sleep(0)
    released.set()
    assert (await searching)["success"]


async def test_a_search_ends_in_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # W1
    monkeypatch.setattr(files, "SEARCH_WITHIN_S", -1.0)
    tree(world)
    found = await world.call("search_text", query="x")
    assert (found["matches"], found["truncated"]) == ([], True)


# Writing ------------------------------------------------------------------------------------------------


async def test_the_three_ways_to_write(world: World) -> None:  # W1
    made = await world.call("write_file", path="new/a.txt", content="Grüße\n")
    assert (made["created"], made["bytes"], made["path"]) == (True, 8, "new/a.txt")
    refused = await world.call("write_file", path="new/a.txt", content="other")
    assert refused["error"] == "ALREADY_EXISTS"
    assert "overwrite" in refused["message"]
    more = await world.call("write_file", path="new/a.txt", content="more", mode="append")
    assert (more["created"], (world.root / "new/a.txt").read_text("utf-8")) == (False, "Grüße\nmore")
    await world.call("write_file", path="new/a.txt", content="whole", mode="overwrite")
    assert (world.root / "new/a.txt").read_text("utf-8") == "whole"
    assert (await world.call("write_file", path="b", content="x", mode="append"))["created"]
    assert (await world.call("write_file", path="c", content="x", mode="replace"))[
        "error"
    ] == "INVALID_ARGUMENTS"


@pytest.mark.parametrize(
    ("before", "whole"),
    [
        ("été\n".encode("utf-16"), "été\nà\n".encode("utf-16")),
        (b"\xfe\xff" + "été\n".encode("utf-16-be"), b"\xfe\xff" + "été\nà\n".encode("utf-16-be")),
        ("été\n".encode("latin-1"), "été\nà\n".encode("latin-1")),
        ("été\n".encode("utf-8-sig"), "été\nà\n".encode("utf-8-sig")),
        (b"", "à\n".encode()),
    ],
)
async def test_what_is_appended_has_the_encoding_of_the_file(
    before: bytes, whole: bytes, world: World
) -> None:  # W1
    place = put(world, "a.txt", before)
    assert (await world.call("write_file", path="a.txt", content="à\n", mode="append"))["success"]
    assert place.read_bytes() == whole
    change = (world.person.asked[0].diff or "").splitlines()
    assert [line for line in change if line[:1] in "+-" and line[1:2] not in "+-"] == ["+à"]


async def test_what_the_encoding_of_a_file_does_not_hold_is_not_appended(world: World) -> None:  # W1
    place = put(world, "a.txt", "été\n".encode("latin-1"))
    refused = await world.call("write_file", path="a.txt", content="10 €\n", mode="append")
    assert (refused["error"], "latin-1" in refused["message"]) == ("INVALID_ARGUMENTS", True)
    assert r"'\u20ac'" in refused["message"]
    put(world, "b.bin", b"\x7fELF\0\0")
    assert (await world.call("write_file", path="b.bin", content="x", mode="append"))[
        "error"
    ] == "BINARY_FILE"
    assert (place.read_bytes(), world.person.asked) == ("été\n".encode("latin-1"), [])
    assert (await world.call("write_file", path="a.txt", content="10 €\n", mode="overwrite"))["success"]
    assert (world.person.asked[0].diff or "").startswith("binary a.txt: 4 bytes become 7")


@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("change", ["written", "deleted"])
async def test_a_file_that_changed_since_it_was_read_is_not_written(
    mode: str, change: str, world: World
) -> None:  # W1
    place = put(world, "a.txt", "one\n")
    await world.call("read_file", path="a.txt")
    place.unlink()
    if change == "written":
        place.write_text("somebody's\n", "utf-8")
    refused = await world.call("write_file", path="a.txt", content="two\n", mode=mode)
    assert refused["error"] == "CHANGED_SINCE_READ"
    assert "read it again" in refused["message"]
    assert (place.read_text("utf-8") if place.exists() else None) == (
        "somebody's\n" if change == "written" else None
    )
    if change == "written":
        assert (await world.call("delete_file", path="a.txt"))["error"] == "CHANGED_SINCE_READ"
        await world.call("read_file", path="a.txt")
        assert (await world.call("write_file", path="a.txt", content="two\n", mode=mode))["success"]


async def test_a_file_that_changes_while_somebody_confirms_is_not_written(world: World) -> None:  # W2
    place = put(world, "a.txt", "one\n")

    def change_and_say_yes(_: object) -> Any:
        place.write_text("meanwhile\n", "utf-8")
        return "once"

    world.person.answer = change_and_say_yes
    for name, more in (("write_file", {"content": "two\n", "mode": "overwrite"}), ("delete_file", {})):
        place.write_text("one\n", "utf-8")
        assert (await world.call(name, path="a.txt", **more))["error"] == "CHANGED_SINCE_READ"
        assert place.read_text("utf-8") == "meanwhile\n"


async def test_what_the_assistant_wrote_it_may_write_again(world: World) -> None:  # W1
    await world.call("write_file", path="a.txt", content="one\n")
    for content in ("two\n", "three\n"):
        assert (await world.call("write_file", path="a.txt", content=content, mode="overwrite"))["success"]
    assert (await world.call("delete_file", path="a.txt"))["success"]
    assert (await world.call("write_file", path="a.txt", content="again"))["success"]


async def test_a_write_is_whole_or_not_at_all(world: World) -> None:  # W1
    """Whoever reads meanwhile sees one of the texts, and nothing is left beside the file."""
    place = put(world, "a.txt", "0" * 50_000)
    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(place.read_text("utf-8"))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(1, 10):
        await world.call("write_file", path="a.txt", content=str(number) * 50_000, mode="overwrite")
    stop.set()
    looking.join()
    assert all(len(text) == 50_000 and len(set(text)) == 1 for text in seen)
    assert [each.name for each in world.root.iterdir() if each.name != ".agentichat"] == ["a.txt"]


async def test_a_write_that_fails_leaves_the_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # W1
    place = put(world, "a.txt", "one\n")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    failed = await world.call("write_file", path="a.txt", content="two\n", mode="overwrite")
    assert (failed["error"], place.read_text("utf-8")) == ("IO_ERROR", "one\n")
    assert [each.name for each in world.root.iterdir() if each.name != ".agentichat"] == ["a.txt"]


async def test_a_delete_asks_with_what_would_be_gone(world: World) -> None:  # W2
    put(world, "a.txt", "one\n")
    (world.root / "folder").mkdir()
    assert (await world.call("delete_file", path="a.txt"))["success"]
    assert "-one" in (world.person.asked[0].diff or "")
    assert (await world.call("delete_file", path="a.txt"))["error"] == "NOT_FOUND"
    assert not (await world.call("delete_file", path="folder"))["success"]
    assert (world.root / "folder").exists()
