"""What is a second signal, and what the first one once more."""

from __future__ import annotations

import pytest

from consumers.worker.signals import RepeatedSignal


@pytest.mark.parametrize(("after_s", "insists"), [(0.0, False), (0.05, False), (0.06, True), (60.0, True)])
def test_a_signal_insists_unless_it_comes_with_the_first(after_s: float, insists: bool) -> None:
    moments = iter([10.0, 10.0 + after_s])
    insistence = RepeatedSignal(0.0501, lambda: next(moments))
    assert insistence.grows() is None
    assert insistence.grows() is insists
