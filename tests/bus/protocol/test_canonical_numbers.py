"""Numbers are written as ECMAScript writes them."""

import json
import math
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol import canonical
from bus.protocol import canonical_numbers as numbers

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "canonical.json").read_text())
DOUBLES = 120_000


def doubles() -> list[float]:
    """Doubles of all magnitudes: random bit patterns, random decimals around the limits of each spelling, integers."""
    rng = random.Random(8785)
    found = [struct.unpack(">d", rng.randbytes(8))[0] for _ in range(DOUBLES // 2)]
    found += [rng.choice((-1, 1)) * rng.random() * 10.0 ** rng.randint(-9, 24) for _ in range(DOUBLES // 4)]
    found += [float(rng.randrange(10 ** rng.randint(1, 24))) for _ in range(DOUBLES // 4)]
    found += [
        math.nextafter(edge, to)
        for edge in (1e-7, 1e-6, 1e-5, 1e15, 1e16, 2.0**53, 2.0**63, 1e21)
        for to in (-math.inf, math.inf)
    ]
    return [value for value in found if math.isfinite(value)]


def respelled(values: list[float], *, trusted: bool | None = None) -> list[str]:
    return numbers.respell(orjson.dumps(values), trusted=trusted)[1:-1].decode().split(",")


@pytest.mark.parametrize("vector", VECTORS["numbers"], ids=lambda vector: vector["ieee754"])
def test_the_samples_of_rfc_8785_appendix_b(vector: dict[str, str]) -> None:
    value = struct.unpack(">d", bytes.fromhex(vector["ieee754"]))[0]
    assert numbers.number_text(value) == vector["text"]
    assert respelled([value]) == [vector["text"]]


@pytest.mark.medium
def test_every_way_of_writing_a_double_gives_the_same_text() -> None:
    values = doubles()
    exact = [numbers.number_text(value) for value in values]
    assert respelled(values) == exact
    assert respelled(values[:20_000], trusted=False) == exact[:20_000]


@pytest.mark.medium
@pytest.mark.skipif(
    shutil.which("node") is None, reason="node, whose JSON.stringify is the reference, is not installed"
)
def test_doubles_are_written_as_node_writes_them() -> None:
    values = [value for value in doubles() if value]
    assert len(values) >= 100_000
    script = (
        "const b = require('fs').readFileSync(0); const out = [];"
        "for (let i = 0; i < b.length; i += 8) out.push(JSON.stringify(b.readDoubleBE(i)));"
        "process.stdout.write(out.join(','))"
    )
    packed = struct.pack(f">{len(values)}d", *values)
    written = (
        subprocess.run(["node", "-e", script], input=packed, capture_output=True, check=True).stdout.decode().split(",")
    )
    assert [numbers.number_text(value) for value in values] == written


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_text_reads_back_as_the_same_double(value: float) -> None:
    assert float(numbers.number_text(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_canonical_number_looks_misspelled(value: float) -> None:
    assert not numbers.looks_misspelled(b"[" + numbers.number_text(value).encode() + b",true,false]")


@pytest.mark.parametrize("token", ["1.0", "-0.0", "1E9", "1e5", "1e+5", "1e20", "1e+20", "1e-6", "1e-07", "2e+021"])
def test_misspelled_numbers_are_noticed(token: str) -> None:
    assert numbers.looks_misspelled(f"[1,{token},2]".encode())


def test_this_orjson_agrees_with_the_golden_numbers() -> None:
    assert numbers.ORJSON_AGREES


def test_another_spelling_is_noticed() -> None:
    assert not numbers.orjson_agrees(lambda values: orjson.dumps(values).replace(b"e+", b"e"))


@pytest.mark.parametrize("token", [b"10000000000000001", b"12345678901234567890", b"0.0000010", b"9007199254740993"])
def test_a_megabyte_of_long_numbers_is_looked_through_in_a_moment(token: bytes) -> None:
    data = b"[" + b",".join([token] * (1_048_570 // (len(token) + 1))) + b"]"
    value = canonical.parse_canonical(data)
    taken_s = []
    for _ in range(3):
        started_s = time.process_time()
        assert not canonical.is_canonical(data, value)
        taken_s.append(time.process_time() - started_s)
    assert min(taken_s) < 0.12


def test_another_spelling_costs_speed_only() -> None:
    older = b"[1e21,1e16,1.0,1e-06,-0.0,0.5,7]"
    assert numbers.respell(older, trusted=False) == b"[1e+21,10000000000000000,1,0.000001,0,0.5,7]"
