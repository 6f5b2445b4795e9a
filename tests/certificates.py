"""Certificates that a test has a process trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.outbound.network import public_tls


@contextmanager
def trusting(authorities: Path) -> Iterator[None]:
    """What is connected inside is verified by the certificates of a PEM file, by `SSL_CERT_FILE`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authorities))
        public_tls.cache_clear()
        try:
            yield
        finally:
            public_tls.cache_clear()
