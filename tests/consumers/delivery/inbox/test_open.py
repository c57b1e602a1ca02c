"""An inbox is chosen by its URL; a URL that cannot be meant is refused with the ones that can."""

from __future__ import annotations

import sys

import pytest

from bus.clock import ManualClock
from bus.errors import ConfigurationError
from consumers.delivery.inbox.base import Inbox
from consumers.delivery.inbox.open import open_inbox


def opened(url: str, lease_s: float = 20.0) -> Inbox:
    return open_inbox(url, owner="a", clock=ManualClock(), lease_s=lease_s)


def test_only_postgresql_is_seen_by_other_machines() -> None:
    assert opened("postgresql://user@host/db").shared
    assert opened("postgres://user@host/db").shared
    assert not opened("sqlite:///inbox.db").shared
    assert not opened("memory://").shared


@pytest.mark.parametrize("url", ["redis://host", "inbox.db", "", "kafka://host:9092"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"memory://, postgresql://.*, sqlite:///"):
        opened(url)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://inbox.db", "sqlite:///a.db?mode=ro", "memory://name"]
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        opened(url)


@pytest.mark.parametrize("url", ["memory://", "postgresql://host/db"])
@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan")])
def test_a_lease_takes_time(url: str, lease_s: float) -> None:
    with pytest.raises(ConfigurationError):
        opened(url, lease_s)


def test_postgresql_without_driver_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r'pip install "sealbus\[postgres\]"'):
        opened("postgresql://user@host/db")
