"""The index: incremental, searched by meaning or by words, and it says which (W3, W10)."""

import base64
import os
import struct
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from adapters.models.fake_http import Received
from adapters.models.fake_openai import embeddings_reply
from channels.workspace.index import CHUNK_LINES, EmbeddingFailed, GatewayEmbedder, Index, Vectors, chunks
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.workspace.workspace_world import World, opened

pytestmark = pytest.mark.anyio

FILES = {
    "prices.py": "def total(prices):\n    return sum(prices)\n\n\ndef least(prices):\n    return min(prices)",
    "docs/shipping.md": "# Shipping\n\nParcels leave the warehouse on Monday.\n",
    "docs/returns.md": "# Returns\n\nGoods come back within thirty days, with the receipt.\n",
}


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with opened(tmp_path) as made:
        for path, text in FILES.items():
            (made.root / path).parent.mkdir(exist_ok=True)
            (made.root / path).write_text(text, "utf-8")
        yield made


@asynccontextmanager
async def embedding(
    world: World, answer: Any = None, model: str = "e"
) -> AsyncGenerator[tuple[Index, list[Received]]]:
    """An index whose vectors come from a server of OpenAI's protocol, and what that was sent."""
    async with ExactServer(answer or (lambda got: Reply([embeddings_reply(got.body)]))).running() as server:
        embedder = GatewayEmbedder(f"{server.origin}/v1", "sk-mine", model)
        yield Index(world.workspace.root, world.workspace.store, embedder), server.requests


def paths(found: dict[str, Any]) -> list[str]:
    return [each["path"] for each in found["results"]]


async def test_only_what_has_changed_is_read_again(world: World) -> None:  # W3
    index = world.workspace.index
    first = await index.update()
    assert (first.files, first.changed, first.removed, first.embedded) == (3, 3, 0, 0)
    again = await index.update()
    assert (again.files, again.changed, again.removed) == (3, 0, 0)
    database = world.workspace.store.database
    rows = dict(database.execute("SELECT path, indexed_at FROM files"))
    os.utime(world.root / "prices.py", (1, 1))  # another time, the same content
    assert (await index.update()).changed == 0
    assert dict(database.execute("SELECT path, indexed_at FROM files")) == rows
    assert database.execute("SELECT mtime FROM files WHERE path = 'prices.py'").fetchone() == (1.0,)
    (world.root / "prices.py").write_text("def other(): ...\n", "utf-8")
    (world.root / "docs" / "returns.md").unlink()
    changed = await index.update()
    assert (changed.files, changed.changed, changed.removed) == (2, 1, 1)
    assert paths(await index.search("receipt", 5)) == []
    assert paths(await index.search("other", 5)) == ["prices.py"]
    assert database.execute("SELECT count(*) FROM fts_content").fetchone() == (2,)


async def test_a_file_is_written_down_with_its_hash_and_size(world: World) -> None:  # W4
    await world.workspace.index.update()
    row = world.workspace.store.database.execute(
        "SELECT hash, size, mtime FROM files WHERE path = 'docs/returns.md'"
    ).fetchone()
    content = world.workspace.root.read("docs/returns.md", 1_000)
    assert row == (content.digest, len(content.data), content.mtime)


async def test_what_is_ignored_or_no_text_is_not_indexed(world: World) -> None:  # W10
    (world.root / ".gitignore").write_text("*.log\nbuild/\n", "utf-8")
    (world.root / ".agentichat" / "ignore").write_text("docs/returns.md\n", "utf-8")
    (world.root / "a.log").write_text("parcels", "utf-8")
    (world.root / "build").mkdir()
    (world.root / "build" / "x.md").write_text("parcels", "utf-8")
    (world.root / "image.png").write_bytes(b"\x89PNG\0\0parcels")
    (world.root / "large.txt").write_bytes(b"parcels " * 300_000)
    (world.root / "out").symlink_to(world.outside)
    await world.workspace.index.update()
    rows = world.workspace.store.database.execute("SELECT path FROM files ORDER BY path")
    assert [row[0] for row in rows] == [".gitignore", "docs/shipping.md", "prices.py"]


async def test_without_a_model_words_are_searched_and_that_is_said(world: World) -> None:  # W10
    await world.workspace.index.update()
    found = await world.call("search_semantic", query="When do parcels leave?", top_k=2)
    assert (found["ranking"], paths(found)[0]) == ("bm25", "docs/shipping.md")
    assert "FLOW_ENGINE_WORKSPACE_EMBEDDING_MODEL" in found["note"]
    assert "not by meaning" in found["note"]
    assert len(found["results"]) <= 2
    assert found["results"][0]["start_line"] == 1


async def test_an_index_that_was_never_made_is_named(world: World) -> None:  # W10
    found = await world.call("search_semantic", query="parcels")
    assert (found["error"], "workspace index" in found["message"]) == ("NOT_INDEXED", True)


@pytest.mark.parametrize("query", ['"', "AND OR NOT", "path:x", "*", "a-b:c^2", "", "(", "NEAR(a b)"])
async def test_a_query_is_text_and_no_syntax(query: str, world: World) -> None:  # W10
    await world.workspace.index.update()
    assert (await world.workspace.index.search(query, 5))["success"]


async def test_by_words_the_passage_that_fits_is_shown(world: World) -> None:  # W10
    lines = [f"line {number}\n" for number in range(300)]
    lines[200] = "the needle is here\n"
    (world.root / "long.txt").write_text("".join(lines), "utf-8")
    await world.workspace.index.update()
    [found] = (await world.workspace.index.search("needle", 1))["results"]
    assert found["start_line"] <= 201 < found["start_line"] + CHUNK_LINES
    assert "needle" in found["text"]


async def test_vectors_come_through_the_gateway(world: World) -> None:  # W10
    async with embedding(world) as (index, seen):
        done = await index.update()
        assert (done.changed, done.embedded) == (3, 4), "two functions, two documents"
        assert seen[0].path == "/v1/embeddings"
        assert seen[0].headers["authorization"] == "Bearer sk-mine"
        assert (seen[0].body["model"], seen[0].body["encoding_format"]) == ("e", "base64")
        found = await index.search("parcels leave the warehouse", 2)
        assert (found["ranking"], paths(found)[0]) == ("embeddings", "docs/shipping.md")
        assert "note" not in found
        assert found["results"][0]["score"] >= found["results"][1]["score"]
        assert (await index.update()).embedded == 0
        (world.root / "prices.py").write_text("def only(): ...\n", "utf-8")
        assert (await index.update()).embedded == 1


async def test_vectors_are_kept_as_float32(world: World) -> None:  # W4
    async with embedding(world) as (index, _):
        await index.update()
        rows = world.workspace.store.database.execute(
            "SELECT chunk_index, chunk_text, vector FROM embeddings ORDER BY id"
        ).fetchall()
    vectors = [np.frombuffer(row[2], dtype=np.float32) for row in rows]
    assert {len(vector) for vector in vectors} == {64}
    assert all(abs(float(np.linalg.norm(vector)) - 1) < 1e-5 for vector in vectors)
    assert sorted(row[1].split()[0] for row in rows) == ["#", "#", "def", "def"]


async def test_another_model_makes_the_vectors_anew(world: World) -> None:  # W10
    async with embedding(world) as (index, _):
        assert (await index.update()).embedded == 4
    async with embedding(world, model="other") as (index, _):
        assert (await index.search("parcels", 1))["ranking"] == "bm25"
        assert (await index.update()).embedded == 4
        assert (await index.search("parcels", 1))["ranking"] == "embeddings"
    rows = world.workspace.store.database.execute("SELECT DISTINCT model FROM embeddings")
    assert rows.fetchall() == [("other",)]


def _plain(got: Received, vectors: Sequence[Sequence[float]]) -> bytes:
    return orjson.dumps({"data": [{"index": at, "embedding": v} for at, v in enumerate(vectors)]})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda got: Reply([b"{}"], status=500), "status 500"),
        (lambda got: Reply([b"no json"]), "JSONDecodeError"),
        (lambda got: Reply([b'{"data": []}']), "ValueError"),
        (lambda got: Reply([_plain(got, [[1.0]] * 9)]), "another number of vectors"),
        (lambda got: Reply([_plain(got, [[1.0], [1.0, 2.0]])]), "ValueError"),
    ],
)
async def test_a_model_that_fails_is_told_and_words_are_searched(
    answer: Any, reason: str, world: World
) -> None:  # W10
    async with embedding(world) as (index, _):
        await index.update()
    async with embedding(world, answer) as (index, _):
        found = await index.search("parcels", 1)
        assert (found["ranking"], paths(found)) == ("bm25", ["docs/shipping.md"])
        assert "the embedding model failed" in found["note"]
        (world.root / "new.txt").write_text("new", "utf-8")
        with pytest.raises(EmbeddingFailed):
            await index.update()
    assert paths(await world.workspace.index.search("new", 1)) == ["new.txt"], "the words are indexed"


async def test_vectors_as_numbers_are_read_too(world: World) -> None:  # W10
    def numbers(got: Received) -> Reply:
        reply = orjson.loads(embeddings_reply(got.body))
        for each in reply["data"]:
            each["embedding"] = list(struct.unpack("<64f", base64.b64decode(each["embedding"])))
        return Reply([orjson.dumps(reply)])

    async with embedding(world, numbers) as (index, _):
        assert (await index.update()).embedded == 4
        assert paths(await index.search("thirty days receipt", 1)) == ["docs/returns.md"]


class Constant:
    """Implements `Embedder`: every text is the same."""

    model = "constant"

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


async def test_as_many_results_as_were_asked_for(world: World) -> None:  # W1
    index = Index(world.workspace.root, world.workspace.store, Constant())
    await index.update()
    for wanted in (1, 3, 4, 50):
        assert len((await index.search("x", wanted))["results"]) == min(wanted, 4)
    await world.workspace.index.update()
    assert len((await world.call("search_semantic", query="parcels prices goods"))["results"]) == 3
    assert (await world.call("search_semantic", query="x", top_k="many"))["error"] == "INVALID_ARGUMENTS"


async def test_what_is_not_to_be_shown_takes_no_place_among_the_results(world: World) -> None:  # W2
    index = Index(world.workspace.root, world.workspace.store, Constant())
    await index.update()
    for shown in ("docs/shipping.md", "docs/returns.md", "none"):
        found = await index.search("x", 1, shown.__eq__)
        assert (found["ranking"], paths(found)) == ("embeddings", [shown] if shown != "none" else [])


class Failing(Constant):
    """Each text a vector of its own; the second call fails."""

    calls = 0

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        if self.calls == 2:
            raise EmbeddingFailed("status 500")
        return np.array([[hash(text) % 97, 1, 0, 0] for text in texts], dtype=np.float32)


async def test_a_file_with_some_of_its_vectors_gets_the_others(world: World) -> None:  # W10
    (world.root / "long.txt").write_text("".join(f"{number}\n" for number in range(6_000)), "utf-8")
    index = Index(world.workspace.root, world.workspace.store, Failing())
    with pytest.raises(EmbeddingFailed):
        await index.update()
    await index.update()
    assert (await index.update()).embedded == 0
    rows = world.workspace.store.database.execute(
        "SELECT count(*) FROM embeddings e JOIN files f ON f.id = e.file_id WHERE f.path = 'long.txt'"
    )
    assert rows.fetchone() == (len(list(chunks("long.txt", (world.root / "long.txt").read_text("utf-8")))),)


@pytest.mark.parametrize("line", ["x\n", "x" * 200 + "\n"], ids=["short", "cut"])
@pytest.mark.parametrize("lost", ["chunk_index > 63", "chunk_index = 119", "chunk_index BETWEEN 5 AND 8"])
async def test_a_file_that_has_its_first_vector_only_gets_the_others(
    line: str, lost: str, world: World
) -> None:  # W10
    (world.root / "long.txt").write_text(line * 6_010, "utf-8")
    (world.root / "end.py").write_text("def one():\n    pass\n\n\n# the end\n" + "\n" * 200, "utf-8")
    store = world.workspace.store
    first = await Index(world.workspace.root, store, Constant()).update()
    whole = store.database.execute("SELECT file_id, chunk_index, chunk_text FROM embeddings").fetchall()
    assert len(whole) == first.embedded
    store.database.execute(f"DELETE FROM embeddings WHERE {lost}")
    index = Index(world.workspace.root, store, Constant())
    assert (await index.update()).embedded == 120, "the chunks of the long file"
    again = store.database.execute("SELECT file_id, chunk_index, chunk_text FROM embeddings").fetchall()
    assert sorted(again) == sorted(whole)
    assert (await index.update()).embedded == 0
    assert (await Index(world.workspace.root, store, Constant()).update()).embedded == 0


async def test_what_another_process_has_indexed_is_searched(world: World, tmp_path: Path) -> None:  # W10
    newest = "Trains depart from the station.\n"
    async with ExactServer(lambda got: Reply([embeddings_reply(got.body)])).running() as server:
        embedder = GatewayEmbedder(f"{server.origin}/v1", None, "e")
        index = Index(world.workspace.root, world.workspace.store, embedder)
        await index.update()
        [(path,)] = world.workspace.store.database.execute("SELECT path FROM files ORDER BY id DESC LIMIT 1")
        assert (await index.search(newest, 1))["results"][0]["score"] < 0.99
        with opened(tmp_path) as other:
            (world.root / path).write_text(newest, "utf-8")
            await Index(other.workspace.root, other.workspace.store, embedder).update()
        found = await index.search(newest, 1)
        assert (paths(found), found["results"][0]["score"]) == ([path], 1.0)


def test_python_is_cut_at_its_definitions() -> None:  # W10
    source = (
        '"""Doc."""\nimport os\n\n\n@decorated\ndef one():\n    pass\n\n\nclass Two:\n'
        "    def method(self):\n        pass\n\nasync def three():\n    pass\n"
    )
    assert [line for line, _ in chunks("a.py", source)] == [1, 5, 10, 14]
    assert "".join(text for _, text in chunks("a.py", source)) == source
    broken = "def (:\n" * 3
    assert list(chunks("a.py", broken)) == [(1, broken)]


@pytest.mark.parametrize("source", ["x = " + "-" * 90_000 + "1\n", "y = 1\n" * 20_000])
async def test_python_that_takes_long_to_parse_is_cut_in_runs_of_lines(source: str, world: World) -> None:
    # W10
    text = f"{source}def found():\n    return 'needle'\n"
    lines = len(text.splitlines())
    starts = [start for start, _ in chunks("a.py", text)]
    assert starts == list(range(1, max(2, lines - 10), CHUNK_LINES - 10))
    (world.root / "a.py").write_text(text, "utf-8")
    await world.workspace.index.update()
    assert paths(await world.call("search_semantic", query="needle")) == ["a.py"]


async def test_other_work_goes_on_while_words_are_searched(world: World) -> None:  # W10
    await world.workspace.index.update()
    threads: list[int] = []
    await world.workspace.index.search("receipt", 5, lambda _: bool(threads.append(threading.get_ident())))
    assert threads
    assert threading.get_ident() not in threads


def test_other_text_is_cut_in_runs_of_lines_that_overlap() -> None:  # W10
    lines = [f"{number}\n" for number in range(150)]
    found = list(chunks("a.txt", "".join(lines)))
    assert [line for line, _ in found] == [1, 51, 101]
    assert found[1][1].startswith("50\n")
    assert found[0][1].endswith("59\n")
    assert {line for _, text in found for line in text.splitlines()} == {line.strip() for line in lines}
    assert list(chunks("a.txt", " \n\n")) == []
    [(_, wide)] = chunks("a.txt", "x" * 50_000)
    assert len(wide) == 6_000


async def test_search_by_meaning_among_many_chunks_is_exact(world: World) -> None:  # W10
    index = Index(world.workspace.root, world.workspace.store, Constant())
    await index.update()
    database = world.workspace.store.database
    random = np.random.default_rng(7)
    vectors = random.normal(size=(3_000, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    [(file_id,)] = database.execute("SELECT min(id) FROM files")
    database.execute("DELETE FROM embeddings")
    database.executemany(
        "INSERT INTO embeddings (file_id, chunk_index, chunk_text, vector, start_line, model) "
        "VALUES (?, ?, ?, ?, 1, 'constant')",
        [(file_id, number, str(number), vector.tobytes()) for number, vector in enumerate(vectors)],
    )
    found = await index.search("x", 10)
    expected = np.argsort(-(vectors @ np.full(4, 0.5, dtype=np.float32)))[:10]
    assert [int(each["text"]) for each in found["results"]] == [int(number) for number in expected]
