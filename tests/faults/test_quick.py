"""The cheapest of the fault rows, and a few deliberate bugs: that the harness runs, passes what is sound, and catches
what is not.

`make faults-quick` and `make faults` run all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.bughunt import caught
from harness.bugs import BUGS
from harness.proxy import Link, Mood
from harness.rows.catalogue import ROWS
from harness.stage import Stage
from harness.timeline import draw, printed


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["6-publisher", "7-kill", "19-late"])
async def test_a_row_on_the_embedded_log_violates_nothing(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    timeline = draw(name, "embedded", 1, row.schedule)
    async with Stage(tmp_path) as stage:
        result = await stage.run(row, timeline)
    assert result.passed, "\n".join(
        [printed(timeline), *(f"{each.invariant}: {each.text}" for each in result.violations)]
    )
    assert result.counts["accepted"] >= row.load.count * 0.9
    assert result.counts["judged"] > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["auto-commit", "seal-ignored"])
async def test_a_deliberate_bug_is_caught(tmp_path: Path, name: str) -> None:
    async with Stage(tmp_path, heal_s=10.0) as stage:
        catch = await caught(stage, BUGS[name])
    assert catch.seed, f"{name} survived"


def test_every_bug_has_a_row_and_there_are_twenty() -> None:
    bugs = BUGS.load()
    assert len(bugs) >= 20
    assert {row for bug in bugs.values() for row in bug.rows} <= set(ROWS)


@pytest.mark.medium
async def test_a_link_forwards_until_it_is_told_otherwise() -> None:
    import asyncio

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    await link.open()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        assert await asyncio.wait_for(reader.readexactly(3), 10) == b"one"
        link.behave(Mood(silent_down=True))
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.3)
        link.behave(Mood())
        assert await asyncio.wait_for(reader.readexactly(3), 10) == b"two"
        link.behave(Mood(mute=True))
        writer.write(b"lost")
        await asyncio.sleep(0.2)
        link.behave(Mood())
        assert await reader.read(100) == b"", "after a lost answer the connection must be gone"
        writer.close()
    except ConnectionResetError:
        pass
    finally:
        await link.close()
        server.close()
