"""Servers that the mail tests speak to over the wire: one Dovecot for all, users of its own for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.channels.mail.dovecot import Dovecot, running_dovecot
from tests.channels.mail.smtp_server import SmtpServer, running_smtp
from tests.flows.conftest import database, mongo_url

__all__ = ["database", "mongo_url"]

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def dovecot() -> Iterator[Dovecot]:
    with running_dovecot() as server:
        yield server


@pytest.fixture(scope="session")
def dovecot_without_idle() -> Iterator[Dovecot]:
    with running_dovecot(idle=False) as server:
        yield server


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with running_smtp() as server:
        yield server


@pytest.fixture
def new_user() -> Callable[[], str]:
    """Names of mailboxes that nobody has used yet."""
    return lambda: f"user{next(_NUMBERS)}@example.org"
