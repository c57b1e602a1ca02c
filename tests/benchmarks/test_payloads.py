"""The payloads of the benchmarks are what the results say of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from speed import payloads

from bus.payloads.payload_types import encode_payload
from bus.protocol import canonical


def values_in(value: object) -> list[object]:
    if isinstance(value, dict):
        return [each for member in value.values() for each in values_in(member)]
    return [each for member in value for each in values_in(member)] if isinstance(value, list) else [value]


def test_a_payload_has_1036_canonical_bytes_45_values_and_8_floats(tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    payloads.write_payloads(path, 200)
    bodies = payloads.bodies(str(path), 200)
    assert len(set(bodies)) == 200
    for body, report in zip(bodies, payloads.reports(str(path), 200), strict=True):
        values = values_in(msgspec.json.decode(body))
        assert (len(body), len(values), sum(isinstance(value, float) for value in values)) == (1_036, 45, 8)
        assert encode_payload(report) == canonical.encode(msgspec.json.decode(body)) == body


def test_messages_have_a_thousand_keys_that_come_equally_often() -> None:
    keys = payloads.keys(3_000)
    assert len(set(keys)) == 1_000
    assert set(map(keys.count, keys[:10])) == {3}
    assert keys[0] != keys[1]


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    payloads.write_payloads(path, 10)
    before = path.read_bytes()
    payloads.write_payloads(path, 5)
    assert path.read_bytes() == before
