"""How fast a workspace is indexed and searched: 20,000 files, 200,000 chunks, on this machine.

`python -m benchmarks.workspace` prints a table with goals. Files, words and vectors are made from a fixed
seed in a temporary directory. The embedding model is a stand-in: only this program's own work is measured.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from channels.workspace import files
from channels.workspace.assistant import Workspace, WorkspaceSettings
from channels.workspace.index import Index, Vectors
from channels.workspace.rules import Rules

FILES = 20_000
CHUNKS = 200_000
DIMENSIONS = 384
WORDS = [f"{first}{second}{third}" for first in "bdfgklmn" for second in "aeiou" for third in "lmnrst"]


class Seeded:
    """Implements `Embedder`: the same vector for the same text."""

    model = "seeded"

    async def embed(self, texts: Sequence[str]) -> Vectors:
        rows = [np.random.default_rng(len(text)).normal(size=DIMENSIONS) for text in texts]
        vectors = np.asarray(rows, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_files(root: Path, count: int) -> int:
    """Python files of about 40 lines in folders of 100; their bytes."""
    chance, size = random.Random(7), 0
    for number in range(count):
        folder = root / f"part{number // 100:03}"
        folder.mkdir(exist_ok=True)
        words = [(chance.choice(WORDS), chance.choice(WORDS)) for _ in range(20)]
        lines = [f"def {a}_{number}_{at}(x):\n    return {b}(x)\n" for at, (a, b) in enumerate(words)]
        text = "\n".join(lines)
        (folder / f"m{number}.py").write_text(text, "utf-8")
        size += len(text)
    return size


def fill_vectors(workspace: Workspace, count: int) -> None:
    """As many chunks with vectors as are asked for, spread over the files of the index."""
    database = workspace.store.database
    ids = [row[0] for row in database.execute("SELECT id FROM files")]
    chance = np.random.default_rng(7)
    database.execute("BEGIN")
    for start in range(0, count, 10_000):
        vectors = chance.normal(size=(min(10_000, count - start), DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        database.executemany(
            "INSERT INTO embeddings (file_id, chunk_index, chunk_text, vector, start_line, model) "
            "VALUES (?, ?, ?, ?, 1, 'seeded')",
            [
                (ids[(start + at) % len(ids)], start + at, "text", row.tobytes())
                for at, row in enumerate(vectors)
            ],
        )
    database.execute("COMMIT")


async def p50(times: int, search: Callable[[int], Awaitable[object]]) -> float:
    """Milliseconds."""
    taken: list[float] = []
    for number in range(times):
        began = time.perf_counter()
        await search(number)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def row(what: str, measured: float, unit: str, goal: float) -> None:
    print(f"| {what} | {measured:,.1f} {unit} | {goal:,.0f} {unit} | {'yes' if measured <= goal else 'NO'} |")


async def measured(root: Path, count: int, chunks: int) -> None:
    size = make_files(root, count)
    print(f"{count:,} files, {size / 1e6:.0f} MB, {chunks:,} chunks of {DIMENSIONS} float32\n")
    print("| what | measured | goal | held |\n|---|---|---|---|")
    with closing(Workspace(root, WorkspaceSettings(), Rules())) as workspace:
        for what, goal in (("index, first time", 60), ("index, nothing changed", 10)):
            began = time.perf_counter()
            done = await workspace.index.update()
            row(what, time.perf_counter() - began, "s", goal)
            assert done.files == count

        def text(number: int, **options: bool) -> Awaitable[object]:
            query = f"_{number * 37 % count}_7"
            return asyncio.to_thread(
                files.search_text, workspace.root, query, ".", regex=False, case_sensitive=True, **options
            )

        real = shutil.which
        if real("rg"):
            row("search_text with ripgrep, p50", await p50(7, text), "ms", 1_000)
        shutil.which = lambda *_, **__: None  # type: ignore[assignment]
        row("search_text without ripgrep, p50", await p50(3, text), "ms", 15_000)
        shutil.which = real
        words = await p50(15, lambda number: workspace.index.search(f"{WORDS[number]} {WORDS[-number]}", 5))
        row("search_semantic by words (BM25), p50", words, "ms", 250)
        fill_vectors(workspace, chunks)
        index = Index(workspace.root, workspace.store, Seeded())
        began = time.perf_counter()
        await index.search("first", 5)
        row("search_semantic by meaning, the first", (time.perf_counter() - began) * 1000, "ms", 10_000)
        meaning = await p50(21, lambda number: index.search("x" * (number + 1), 5))
        row("search_semantic by meaning, p50", meaning, "ms", 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measured(Path(folder), asked.files, asked.chunks))


if __name__ == "__main__":
    main()
