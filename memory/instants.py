"""Instants as they are stored beside the snapshot: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import datetime


def encode_instant(instant: datetime) -> str:
    return instant.isoformat()


def decode_instant(stored: bytes) -> datetime:
    return datetime.fromisoformat(stored.decode())
