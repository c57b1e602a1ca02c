"""A log whose file is taken away does not go on in silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus.errors import TransportError
from bus.transports import open_transport
from bus.transports.base import Appended, NewRecord, TopicSpec


async def test_an_append_to_a_deleted_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    transport = open_transport(f"sqlite:///{path}")
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
    (outcome,) = await transport.append([NewRecord("a.b", b"k", b"v")], timeout_s=5)
    assert isinstance(outcome, Appended)
    path.unlink()
    (outcome,) = await transport.append([NewRecord("a.b", b"k", b"v")], timeout_s=5)
    assert isinstance(outcome, TransportError)
    assert "deleted" in str(outcome)
    await transport.close()


async def test_a_reader_of_a_deleted_file_gets_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    transport = open_transport(f"sqlite:///{path}")
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
    following = asyncio.ensure_future(transport.read("a.b", 0, 0, max_records=1, max_bytes=1000, wait_s=30))
    await asyncio.sleep(0)
    path.unlink()
    with pytest.raises(TransportError, match="deleted"):
        await asyncio.wait_for(following, 30)
    await transport.close()
