"""A small pharmacy with a real stock, for the mail agent's example: drugs, reservations, a page search.

Run it with `uvicorn examples.pharmacy.app:app --port 8085`. The stock is in the SQLite file that
PHARMACY_DATABASE names; unset, in memory.
"""

from __future__ import annotations

import os
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel

STOCK = (
    ("Ibuprofen 400 mg", "ibuprofen", "brno-1", "Lékárna U Anděla, Brno", 12, 79),
    ("Ibuprofen 400 mg", "ibuprofen", "praha-2", "Lékárna Na Poříčí, Praha", 0, 82),
    ("Paralen 500 mg", "paracetamol", "brno-1", "Lékárna U Anděla, Brno", 30, 39),
    ("Ozempic 1 mg", "semaglutid", "praha-2", "Lékárna Na Poříčí, Praha", 2, 3200),
    ("Amoksiklav 1 g", "amoxicilin", "brno-1", "Lékárna U Anděla, Brno", 5, 189),
)
PAGES = (
    ("Ibuprofen: dávkování", "Dospělí a dospívající užívají obvykle 200 až 400 mg po 4 až 6 hodinách."),
    ("Paracetamol: nejvyšší denní dávka", "U dospělých se nepřekračují 4 g za 24 hodin."),
    ("Semaglutid: výpadky dodávek", "Dostupnost se mění po týdnech; náhradu volí lékař."),
)


class Reservation(BaseModel):
    action: Literal["create", "check", "cancel"]
    drug_name: str
    pharmacy_id: str | None = None


class Stock:
    """The shelves of all pharmacies. One connection, one writer at a time."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with self._transaction() as sql:
            sql.execute(
                "CREATE TABLE IF NOT EXISTS stock (drug TEXT, substance TEXT, pharmacy_id TEXT, "
                "pharmacy TEXT, pieces INTEGER CHECK (pieces >= 0), price INTEGER, "
                "PRIMARY KEY (drug, pharmacy_id))"
            )
            sql.execute(
                "CREATE TABLE IF NOT EXISTS reservations "
                "(id INTEGER PRIMARY KEY, drug TEXT, pharmacy_id TEXT)"
            )
            sql.executemany("INSERT OR IGNORE INTO stock VALUES (?, ?, ?, ?, ?, ?)", STOCK)

    def close(self) -> None:
        self._connection.close()

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        wanted = _plain(query)
        with self._transaction() as sql:
            rows = sql.execute("SELECT drug, substance, pharmacy_id, pharmacy, pieces, price FROM stock")
            found = [row for row in rows if wanted in _plain(f"{row[0]} {row[1]}")]
        names = ("name", "substance", "pharmacy_id", "pharmacy", "pieces", "price_czk")
        return [dict(zip(names, row, strict=True)) for row in found[:limit]]

    def reserve(self, drug: str, pharmacy_id: str | None) -> dict[str, Any]:
        with self._transaction() as sql:
            at = next((row for row in self._at(sql, drug, pharmacy_id) if row[2] > 0), None)
            if at is None:
                raise HTTPException(409, f"no piece of {drug!r} is left there")
            sql.execute("UPDATE stock SET pieces = pieces - 1 WHERE drug = ? AND pharmacy_id = ?", at[:2])
            made = sql.execute("INSERT INTO reservations (drug, pharmacy_id) VALUES (?, ?)", at[:2])
            return {"reservation": made.lastrowid, "drug": at[0], "pharmacy_id": at[1], "status": "reserved"}

    def check(self, drug: str, pharmacy_id: str | None) -> dict[str, Any]:
        with self._transaction() as sql:
            rows = self._at(sql, drug, pharmacy_id)
            held = [sql.execute(_HELD, row[:2]).fetchone()[0] for row in rows]
        return {
            "pharmacies": [
                {"drug": row[0], "pharmacy_id": row[1], "pieces": row[2], "reserved": count}
                for row, count in zip(rows, held, strict=True)
            ]
        }

    def cancel(self, drug: str, pharmacy_id: str | None) -> dict[str, Any]:
        with self._transaction() as sql:
            for row in self._at(sql, drug, pharmacy_id):
                gone = sql.execute(
                    "DELETE FROM reservations WHERE id = (SELECT max(id) FROM reservations "
                    "WHERE drug = ? AND pharmacy_id = ?)",
                    row[:2],
                )
                if gone.rowcount:
                    sql.execute(
                        "UPDATE stock SET pieces = pieces + 1 WHERE drug = ? AND pharmacy_id = ?", row[:2]
                    )
                    return {"drug": row[0], "pharmacy_id": row[1], "status": "cancelled"}
        raise HTTPException(404, f"no reservation of {drug!r} there")

    def _at(self, sql: sqlite3.Connection, drug: str, pharmacy_id: str | None) -> list[tuple[str, str, int]]:
        wanted = _plain(drug)
        rows = sql.execute("SELECT drug, pharmacy_id, pieces, substance FROM stock").fetchall()
        found = [
            (name, where, pieces)
            for name, where, pieces, substance in rows
            if wanted in _plain(f"{name} {substance}") and pharmacy_id in (None, where)
        ]
        if not found:
            raise HTTPException(404, f"no drug {drug!r} at {pharmacy_id or 'any pharmacy'}")
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


_HELD = "SELECT count(*) FROM reservations WHERE drug = ? AND pharmacy_id = ?"


def _plain(text: str) -> str:
    """Without accents and case."""
    parts = unicodedata.normalize("NFD", text.casefold())
    return "".join(each for each in parts if not unicodedata.combining(each))


def pharmacy_app(database: str = ":memory:") -> FastAPI:
    app, stock = FastAPI(title="Pharmacy"), Stock(database)

    @app.get("/drugs")
    def search_drugs(
        query: Annotated[str, Query(min_length=1)], limit: Annotated[int, Query(ge=1, le=50)] = 5
    ) -> dict[str, Any]:
        return {"drugs": stock.search(query, limit)}

    @app.post("/reservations")
    def manage_reservation(wanted: Reservation) -> dict[str, Any]:
        does = {"create": stock.reserve, "check": stock.check, "cancel": stock.cancel}[wanted.action]
        return does(wanted.drug_name, wanted.pharmacy_id)

    @app.get("/search")
    def web_search(query: Annotated[str, Query(min_length=1)]) -> dict[str, Any]:
        words = _plain(query).split()
        pages = [{"title": title, "text": text} for title, text in PAGES]
        return {"results": [page for page in pages if any(word in _plain(str(page)) for word in words)]}

    return app


app = pharmacy_app(os.environ.get("PHARMACY_DATABASE", ":memory:"))
