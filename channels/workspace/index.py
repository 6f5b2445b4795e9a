"""The index of a workspace: full text by FTS5, and vectors of chunks where an embedding model is configured.

A file is read again where its size or time has changed, and indexed again where its hash has. Chunks follow
the definitions of Python files of at most 100,000 characters, and are runs of lines elsewhere. Vectors are
float32, normalised, and compared all with all: 200,000 of them in well under a second.
"""

import ast
import asyncio
import base64
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final, Protocol

import httpx2
import numpy as np
from numpy.typing import NDArray

from channels.workspace.confinement import Outside, Refused, Root
from channels.workspace.files import MOST_SEARCHED_BYTES, Shown, everything, failure, text_of, walk
from channels.workspace.store import Store

CHUNK_LINES: Final = 60
OVERLAP_LINES: Final = 10
MOST_CHUNK: Final = 6_000
"""Characters of a chunk that an embedding model is given."""

MOST_PARSED: Final = 100_000
"""Characters of a Python file: its parser lets nothing else run meanwhile, a second for 300,000."""

AT_ONCE: Final = 64

Vectors = NDArray[np.float32]


class EmbeddingFailed(Exception):
    """The embedding model gave no vectors."""


class Embedder(Protocol):
    """Texts, of at most 6,000 characters each, to vectors of one length."""

    @property
    def model(self) -> str: ...
    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row a text, normalised. Raises EmbeddingFailed."""
        ...


class GatewayEmbedder:
    """Implements `Embedder` by `POST /embeddings` of an OpenAI-compatible server; `base_url` ends in
    `/v1`."""

    def __init__(self, base_url: str, key: str | None, model: str) -> None:
        self._url = f"{base_url}/embeddings"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tls = ssl.create_default_context()  # takes longer than a batch of texts
        self.model = model

    async def embed(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self.model, "input": list(texts), "encoding_format": "base64"}
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=60, verify=self._tls) as http:
                reply = await http.post(self._url, json=body, headers=self._headers)
            if reply.status_code != 200:
                raise EmbeddingFailed(f"status {reply.status_code}")
            found = [each["embedding"] for each in reply.json()["data"]]
            rows = [np.frombuffer(base64.b64decode(e), "<f4") if isinstance(e, str) else e for e in found]
            vectors = np.vstack(rows).astype(np.float32)
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise EmbeddingFailed(type(error).__name__) from error
        if len(vectors) != len(texts):
            raise EmbeddingFailed("another number of vectors than of texts")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Indexed:
    """How many files were looked at, indexed anew and forgotten; how many chunks got vectors. Files of more
    than 2,000,000 bytes are left out."""

    files: int
    changed: int
    removed: int
    embedded: int


def chunks(path: str, text: str) -> Iterator[tuple[int, str]]:
    """First line, from 1, and text of each: at most 60 lines and 6,000 characters. Empty for blank text."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    if path.endswith(".py") and len(text) <= MOST_PARSED:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # the last for deep nesting
            body = ast.parse(text).body
            decorated = [min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", []))]) for n in body]
            defined = [
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in body
            ]
            starts += [line - 1 for line, is_one in zip(decorated, defined, strict=True) if is_one]
    starts = sorted({*starts, len(lines)})
    for begin, end in pairwise(starts):
        for start in range(begin, end, CHUNK_LINES - OVERLAP_LINES):
            stop = min(end, start + CHUNK_LINES)
            piece = "".join(lines[start:stop])
            if piece.strip():
                yield start + 1, piece[:MOST_CHUNK]
            if stop == end:
                break


def _ends_with(path: str, content: str, index: int, line: int, text: str) -> bool:
    """Whether a chunk, as `chunks` gives them, is the file's last one."""
    if len(text) == MOST_CHUNK:  # it was cut, and does not tell where it ended
        return len(list(chunks(path, content))) <= index + 1
    after = "".join(content.splitlines(keepends=True)[line - 1 :])[len(text) :]
    return not after.strip()


class Index:
    """Of one workspace. Without an `embedder`, full text alone; vectors take 4 bytes a number in memory."""

    def __init__(self, root: Root, store: Store, embedder: Embedder | None = None) -> None:
        self._root = root
        self._database = store.database
        self._embedder = embedder
        self._whole = False
        self._kept: tuple[tuple[str, int, int, float], NDArray[np.int64], Vectors] | None = None

    async def update(self) -> Indexed:
        """Raises EmbeddingFailed; what was indexed until then stays."""
        known = {
            row[1]: row for row in self._database.execute("SELECT id, path, hash, mtime, size FROM files")
        }
        seen: set[str] = set()
        changed = 0
        self._database.execute("BEGIN")
        try:
            for found in walk(self._root):
                if found.kind != "file" or found.size > MOST_SEARCHED_BYTES:
                    continue
                row = known.get(found.path)
                if row is not None and (row[3], row[4]) == (found.mtime, found.size):
                    seen.add(found.path)
                    continue
                with suppress(OSError, Outside, Refused):
                    content = self._root.read(found.path, MOST_SEARCHED_BYTES)
                    text, _ = text_of(content.data, found.path)
                    seen.add(found.path)
                    changed += self._put(
                        found.path, text, content.digest, found.mtime, len(content.data), row
                    )
            gone = [row[0] for path, row in known.items() if path not in seen]
            for number in gone:
                self._database.execute("DELETE FROM fts_content WHERE rowid = ?", (number,))
                self._database.execute("DELETE FROM files WHERE id = ?", (number,))
        finally:
            self._database.execute("COMMIT")
        embedded = await self._embed() if self._embedder else 0
        return Indexed(len(seen), changed, len(gone), embedded)

    def _put(self, path: str, text: str, digest: str, mtime: float, size: int, row: Any) -> bool:
        """Whether the content is another than the one that was indexed."""
        now = time.time()
        if row is not None and row[2] == digest:
            self._database.execute("UPDATE files SET mtime = ?, size = ? WHERE id = ?", (mtime, size, row[0]))
            return False
        if row is not None:
            self._database.execute("DELETE FROM fts_content WHERE rowid = ?", (row[0],))
            self._database.execute("DELETE FROM files WHERE id = ?", (row[0],))
        number = self._database.execute(
            "INSERT INTO files (path, hash, mtime, size, indexed_at) VALUES (?, ?, ?, ?, ?)",
            (path, digest, mtime, size, now),
        ).lastrowid
        self._database.execute(
            "INSERT INTO fts_content (rowid, path, content) VALUES (?, ?, ?)", (number, path, text)
        )
        return True

    async def _embed(self) -> int:
        assert self._embedder is not None
        model, done = self._embedder.model, 0
        self._database.execute("DELETE FROM embeddings WHERE model IS NOT ?", (model,))
        waiting = [
            (number, index, line, text)
            for number, path, content in self._unfinished()
            # The first chunk comes last: a file that has its vector, and no gap, has them all.
            for index, (line, text) in reversed(list(enumerate(chunks(path, content))))
        ]
        for start in range(0, len(waiting), AT_ONCE):
            part = waiting[start : start + AT_ONCE]
            vectors = await self._embedder.embed([text for *_, text in part])
            self._database.executemany(
                "INSERT OR REPLACE INTO embeddings "
                "(file_id, chunk_index, chunk_text, vector, start_line, model) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (number, index, text, vector.tobytes(), line, model)
                    for (number, index, line, text), vector in zip(part, vectors, strict=True)
                ],
            )
            done += len(part)
        self._whole = True
        return done

    def _unfinished(self) -> Iterator[tuple[int, str, str]]:
        """Id, path and content of the files that lack vectors. One may have its first ones only, of a version
        that began with those: until all are whole, its last vector is compared with its end."""
        rows = self._database.execute(
            "SELECT f.id, f.path, c.content, e.found > e.last, l.chunk_index, l.start_line, l.chunk_text "
            "FROM files f JOIN fts_content c ON c.rowid = f.id "
            "LEFT JOIN (SELECT file_id, count(*) AS found, max(chunk_index) AS last FROM embeddings "
            "GROUP BY file_id) e ON e.file_id = f.id "
            "LEFT JOIN embeddings l ON l.file_id = e.file_id AND l.chunk_index = e.last "
            "WHERE NOT ? OR coalesce(e.found <= e.last, 1)",
            (self._whole,),
        )
        for number, path, content, gapless, *last in rows:
            if not gapless or not _ends_with(path, content, *last):
                yield number, path, content

    async def search(self, query: str, top_k: int, shown: Shown = everything) -> dict[str, Any]:
        """`{results: [{path, start_line, text, score}], ranking: embeddings | bm25, note?}`: by meaning, or
        by words where there are no vectors, and says so."""
        if not self._database.execute("SELECT 1 FROM files LIMIT 1").fetchone():
            return failure("NOT_INDEXED", "the workspace is not indexed; run: flow-engine workspace index")
        why = "no embedding model is configured (FLOW_ENGINE_WORKSPACE_EMBEDDING_MODEL)"
        if self._embedder is not None:
            try:
                found = await self._by_meaning(query, top_k, shown)
                if found is not None:
                    return {"success": True, "ranking": "embeddings", "results": found}
                why = "no file has a vector yet; run: flow-engine workspace index"
            except EmbeddingFailed as error:
                why = f"the embedding model failed: {error}"
        note = f"{why}: these results are by words (BM25), not by meaning"
        results = await asyncio.to_thread(self._by_words, query, top_k, shown)
        return {"success": True, "ranking": "bm25", "note": note, "results": results}

    async def _by_meaning(self, query: str, top_k: int, shown: Shown) -> list[dict[str, Any]] | None:
        """None where there are no vectors."""
        assert self._embedder is not None
        ids, matrix = await asyncio.to_thread(self._vectors, self._embedder.model)
        if not len(ids):
            return None
        wanted = (await self._embedder.embed([query]))[0]
        if matrix.shape[1] != len(wanted):
            raise EmbeddingFailed("its vectors have another length than those of the index")
        scores = await asyncio.to_thread(np.matmul, matrix, wanted)
        found: list[dict[str, Any]] = []
        for at in np.argsort(-scores):
            if len(found) == top_k:
                break
            path, line, text = self._database.execute(
                "SELECT f.path, e.start_line, e.chunk_text FROM embeddings e "
                "JOIN files f ON f.id = e.file_id WHERE e.id = ?",
                (int(ids[at]),),
            ).fetchone()
            if shown(path):
                found.append(
                    {"path": path, "start_line": line, "text": text, "score": round(float(scores[at]), 4)}
                )
        return found

    def _vectors(self, model: str) -> tuple[NDArray[np.int64], Vectors]:
        """Ids and vectors of all chunks, one row each, kept until the index changes: reading 200,000 takes
        longer than comparing them."""
        count, last, indexed = self._database.execute(
            "SELECT count(*), max(id), (SELECT max(indexed_at) FROM files) FROM embeddings WHERE model = ?",
            (model,),
        ).fetchone()
        state = (model, count, last, indexed)  # SQLite gives the id of a row that is gone to another one
        if self._kept is None or self._kept[0] != state:
            self._kept = None
            ids = np.empty(count, np.int64)
            matrix = np.empty((0, 0), np.float32)
            rows = self._database.execute(
                "SELECT id, vector FROM embeddings WHERE model = ? LIMIT ?", (model, count)
            )
            for at, (number, vector) in enumerate(rows):
                row = np.frombuffer(vector, np.float32)
                if not at:
                    matrix = np.empty((count, len(row)), np.float32)
                elif len(row) != matrix.shape[1]:
                    raise EmbeddingFailed("the vectors of the index have several lengths")
                ids[at], matrix[at] = number, row
            self._kept = (state, ids, matrix)
        return self._kept[1], self._kept[2]

    def _by_words(self, query: str, top_k: int, shown: Shown) -> list[dict[str, Any]]:
        words = re.findall(r"\w+", query)
        if not words:
            return []
        rows = self._database.execute(
            "SELECT path, content, rank FROM fts_content WHERE fts_content MATCH ? "
            "AND rank MATCH 'bm25(2.0, 1.0)' ORDER BY rank",
            (" OR ".join(f'"{word}"' for word in words),),
        )
        wanted = {word.lower() for word in words}
        found: list[dict[str, Any]] = []
        for path, content, score in islice((row for row in rows if shown(row[0])), top_k):
            best = max(
                chunks(path, content),
                key=lambda c: len(wanted.intersection(re.findall(r"\w+", c[1].lower()))),
                default=(1, ""),
            )
            found.append({"path": path, "start_line": best[0], "text": best[1], "score": round(-score, 4)})
        return found
