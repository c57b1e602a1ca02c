"""Each row of sealbus runs: a benchmark that nobody runs for a month has to work when somebody does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from speed.catalog import FAMILIES, VARIANTS, Family, Variant
from speed.payloads import write_payloads
from speed.runner import Runner

_MESSAGES = 50
_OURS = {
    variant.function: (next(family for family in FAMILIES if family.name == variant.family), variant)
    for variant in VARIANTS
    if variant.function.startswith(("sealbus_", "memory:"))
}
"""Rows that differ in their log, their size or the compiled core run the same function."""


@pytest.mark.medium
@pytest.mark.parametrize(("family", "variant"), _OURS.values(), ids=_OURS)
def test_it_measures(tmp_path: Path, family: Family, variant: Variant) -> None:
    """On a file, where no broker is needed."""
    runner = Runner(None, tmp_path, quick=True, cpu=None)
    write_payloads(runner.payloads, 4 * _MESSAGES)
    family = msgspec.structs.replace(family, log="file")
    answer = runner._measure(family, msgspec.structs.replace(variant, quick=_MESSAGES, ours=True))
    assert answer.messages > 0
    assert answer.seconds > 0
