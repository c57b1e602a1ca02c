"""When an owner renews its lease, and when it may call others dead."""

from __future__ import annotations

from consumers.delivery.inbox.lease import Lease


def test_it_is_due_well_before_it_runs_out() -> None:
    lease = Lease(20.0, now_s=100.0)
    assert not lease.is_due(102.0)
    assert lease.is_due(102.5)
    assert lease.is_due(100.0 + lease.interval_s)
    assert not lease.has_run_out(120.0)
    assert lease.has_run_out(120.1)


def test_an_owner_with_a_valid_lease_counts_an_expired_one_as_dead() -> None:
    lease = Lease(20.0, now_s=100.0)
    assert lease.judged(-1.0, 110.0) == -1.0
    assert lease.judged(3.0, 110.0) == 3.0
    assert lease.judged(None, 110.0) is None


def test_an_owner_back_from_a_pause_grants_others_one_more_lease() -> None:
    lease = Lease(20.0, now_s=100.0)
    assert lease.judged(-50.0, 160.0) == lease.interval_s == 5.0
    assert lease.judged(0.0, 160.0) == 5.0
    lease.renewed(160.0)
    assert lease.judged(-50.0, 170.0) == 10.0
    lease.renewed(175.0)
    assert lease.judged(-50.0, 180.0) == -50.0


def test_an_owner_back_from_a_pause_still_sees_live_and_closed_owners() -> None:
    lease = Lease(20.0, now_s=100.0)
    assert lease.judged(0.5, 500.0) == 0.5
    assert lease.judged(None, 500.0) is None
