"""Probes tell a worker that works from one that only answers."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.worker.health import StuckHandler, WorkerSigns, answer_probe, answer_service


def signs(**members: object) -> WorkerSigns:
    return WorkerSigns(**({"agent": "desk@svc", "group": "desk", "is_started": True} | members))


@pytest.mark.parametrize("probe", ["live", "ready", "startup"])
def test_a_worker_that_makes_progress_passes_every_probe(probe: str) -> None:
    assert answer_probe(probe, [signs()]).ok


def test_a_worker_that_starts_is_alive_and_not_ready() -> None:
    starting = [signs(is_started=False)]
    assert [answer_probe(probe, starting).ok for probe in ("startup", "live", "ready")] == [False, True, False]


STUCK = StuckHandler(handler="agents.answer", message_type="desk.question", over_s=12.0)


@pytest.mark.parametrize(
    ("members", "live", "ready", "told"),
    [
        ({"fetched_s_ago": 16.0, "running": (STUCK,)}, False, False, "agents.answer"),
        ({"running": (STUCK,)}, False, False, "12 s too long"),
        ({"uncommitted_s": 20.0}, True, False, "20.0 s"),
        ({"uncommitted_s": 130.0}, False, False, "130.0 s"),
        ({"log_error": "no broker answers"}, True, False, "no broker answers"),
        ({"is_stopping": True}, True, False, "is stopping"),
    ],
)
def test_what_is_wrong_fails_a_probe_and_is_named(
    members: dict[str, object], live: bool, ready: bool, told: str
) -> None:
    workers = [signs(), signs(**members)]
    answers = [answer_probe("live", workers), answer_probe("ready", workers)]
    assert [answer.ok for answer in answers] == [live, ready]
    assert told in " ".join(check.detail for answer in answers for check in answer.checks if not check.ok)


def test_a_process_without_workers_is_not_ready() -> None:
    assert not answer_probe("ready", []).ok


@pytest.mark.parametrize(
    ("probe", "round_s_ago", "error", "ok"),
    [
        ("live", 5.0, "", True),
        ("live", 5.0, "the log is away", True),
        ("ready", 5.0, "the log is away", False),
        ("live", 500.0, "", False),
        ("startup", 0.0, "", True),
    ],
)
def test_a_service_is_alive_while_it_goes_round_and_ready_while_it_does_its_work(
    probe: Any, round_s_ago: float, error: str, ok: bool
) -> None:
    answer = answer_service(probe, "metrics", round_s_ago=round_s_ago, limit_s=120.0, error=error)
    assert answer.ok is ok
