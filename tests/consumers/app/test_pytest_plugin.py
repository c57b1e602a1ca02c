"""Async tests and fixtures with sealbus's plugin alone, and beside pytest-asyncio."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
APP = """
import asyncio
import contextvars

import msgspec
import pytest
from sealbus import App, payload


@payload("made.order", performative="request")
class Order(msgspec.Struct):
    sku: str = "tea"


app, seen = App("clerk@svc"), []


@app.on(Order)
async def take(order: Order) -> None:
    seen.append(order.sku)

"""


def run(folder: Path, text: str, *options: str) -> str:
    (folder / "test_it.py").write_text(APP + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "consumers.app.pytest_plugin", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


ALONE = ("-p", "no:asyncio", "-p", "no:anyio")


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        pytest.param(
            """
@pytest.fixture
async def bus():
    async with app.test() as bus:
        yield bus

async def test_one(bus):
    await bus.publish(Order())
    await bus.settle()
    bus.assert_all_handled()
    assert seen == ["tea"]

async def test_two(bus):
    assert bus.dead_letters == []
""",
            2,
            id="a bus",
        ),
        pytest.param(
            """
@pytest.fixture
async def loop():
    await asyncio.sleep(0)
    return asyncio.get_running_loop()

@pytest.fixture
async def timed(loop):
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        assert asyncio.get_running_loop() is loop
        yield group
    steps.append("ended")

steps = []

async def test_one(timed, loop):
    assert asyncio.get_running_loop() is loop
    timed.create_task(asyncio.sleep(0))

def test_two():
    assert steps == ["ended"]

def test_plain(loop):
    assert loop is not None
""",
            3,
            id="one loop and one task",
        ),
        pytest.param(
            """
class TestIt:
    @pytest.fixture(autouse=True)
    async def begun(self):
        self.value = 1
        yield

    @pytest.fixture(params=[1, 2])
    async def doubled(self, request):
        return 2 * request.param * self.value

    async def test_one(self, doubled):
        assert doubled in (2, 4)
""",
            2,
            id="methods",
        ),
        pytest.param(
            """
steps = []

@pytest.fixture(scope="module")
async def shared():
    steps.append("begun")
    yield asyncio.get_running_loop()

@pytest.fixture
async def own(shared):
    assert asyncio.get_running_loop() is shared
    return 1

async def test_one(shared, own):
    assert asyncio.get_running_loop() is shared

async def test_two(shared):
    assert asyncio.get_running_loop() is shared
    assert steps == ["begun"]

async def test_alone():
    pass
""",
            3,
            id="of a module",
        ),
        pytest.param(
            """
current = contextvars.ContextVar("current")

@pytest.fixture
async def tenant():
    current.set("a")
    return "a"

async def test_one(tenant):
    assert current.get() == tenant
""",
            1,
            id="context variables",
        ),
    ],
)
def test_async_fixtures_run_without_another_plugin(tmp_path: Path, text: str, passed: int) -> None:
    output = run(tmp_path, text, *ALONE)
    assert f"{passed} passed" in output, output
    assert "failed" not in output
    assert "error" not in output


def test_errors_of_fixtures_are_errors_of_their_tests(tmp_path: Path) -> None:
    text = """
@pytest.fixture
async def broken():
    raise KeyError("begun")
    yield

@pytest.fixture
async def ending():
    yield 1
    raise KeyError("ended")

@pytest.fixture
async def empty():
    if False:
        yield

async def test_one(broken):
    pass

async def test_two(ending):
    pass

async def test_three(empty):
    pass
"""
    output = run(tmp_path, text, *ALONE)
    assert "1 passed, 3 errors" in output, output
    assert "KeyError: 'begun'" in output
    assert "KeyError: 'ended'" in output
    assert "ended without a value" in output


BESIDE = """
import pytest_asyncio

@pytest_asyncio.fixture
async def theirs():
    yield asyncio.get_running_loop()

@pytest.fixture
async def plain():
    yield asyncio.get_running_loop()

@pytest.mark.asyncio
async def test_theirs(theirs):
    assert asyncio.get_running_loop() is theirs

async def test_plain(plain):
    assert asyncio.get_running_loop() is plain
"""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_beside_pytest_asyncio_each_runs_what_is_its_own(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pytest_asyncio")
    output = run(tmp_path, BESIDE, "-o", f"asyncio_mode={mode}")
    assert "2 passed" in output, output
