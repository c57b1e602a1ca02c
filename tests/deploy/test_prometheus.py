"""Rules, boards and run book: every alert fires and clears, every metric exists, and a real Prometheus reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from bus.telemetry.metrics import Metrics
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.survey.exporter import SurveyCollector
from deploy.boards import BOARDS, FOLDER, text_of_board

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"


class AlertCase(NamedTuple):
    """Series, of 15 s each, at which an alert fires by *fires* and is clear by *clears*."""

    series: dict[str, str]
    fires: str = "2m45s"
    clears: str = "9m"


FIRES: dict[str, AlertCase] = {
    "SealbusTargetDown": AlertCase({'up{job="sealbus-worker"}': "0x12 1x12"}),
    "SealbusBlind": AlertCase({"sealbus_survey_up": "0x12 1x12"}),
    "SealbusStoreDown": AlertCase({"sealbus_store_up": "0x12 1x12"}),
    "SealbusDiskLow": AlertCase({'sealbus_disk_free_bytes{of="log"}': "1000x12 9000000000x12"}),
    "SealbusDeadLetters": AlertCase({'sealbus_dead_letters_open{type="a.b",reason="rejected"}': "3x12 0x12"}),
    "SealbusForged": AlertCase({'sealbus_dead_letters_open{type="a.b",reason="signature_invalid"}': "1x12 0x12"}),
    "SealbusKeyRefused": AlertCase({'sealbus_dead_letters_open{type="a.b",reason="key_expired"}': "1x12 0x12"}),
    "SealbusNoWorker": AlertCase(
        {'sealbus_group_lag_messages{group="shop"}': "5x12 0x12", 'sealbus_group_members{group="shop"}': "0x400"}
    ),
    "SealbusGroupStill": AlertCase({'sealbus_group_still_seconds{group="shop"}': "25x12 0x12"}),
    "SealbusProcessesFail": AlertCase(
        {
            'sealbus_processes_ended_total{group="shop",saga="buying",outcome="failed"}': "0+1x12 12x120",
            'sealbus_processes_ended_total{group="shop",saga="buying",outcome="completed"}': "0x132",
        },
        fires="3m",
        clears="30m",
    ),
    "SealbusTopicMissing": AlertCase({'sealbus_missing_topics{group="shop",topic="agents.a.b"}': "1x12 0x12"}),
    "SealbusTransactionOpen": AlertCase({"sealbus_transaction_open_seconds": "30x12 0x12"}),
    "SealbusRecordsLost": AlertCase({'sealbus_group_lost_partitions{group="shop"}': "1x12 0x12"}),
    "SealbusLag": AlertCase({'sealbus_lag_seconds{group="shop",topic="t"}': "400x12 0x12"}),
    "SealbusAgentUnhealthy": AlertCase({'sealbus_agents{health="unhealthy"}': "1x12 0x12"}),
    "SealbusDirectoryFull": AlertCase({"sealbus_directory_dropped_total": "0+9x12 108x120"}, clears="30m"),
    "SealbusApprovalOpen": AlertCase({"sealbus_open_approvals": "1x12 0x12"}),
    "SealbusApprovalOld": AlertCase(
        {"sealbus_open_approvals": "1x260 0x60", "sealbus_approval_oldest_timestamp_seconds": "0x400"},
        fires="64m",
        clears="78m",
    ),
    "SealbusWaitsOverdue": AlertCase({"sealbus_overdue_waits": "2x12 0x12"}),
    "SealbusClockSkew": AlertCase({'sealbus_clock_offset_seconds{instance="i"}': "-8x12 0x12"}),
    "SealbusBreakerOpen": AlertCase({'sealbus_breaker_open{group="shop",dependency="db"}': "1x12 0x12"}),
    "SealbusBrakeOn": AlertCase({'sealbus_brake_on{group="shop",type="a.b"}': "1x12 0x12"}),
    "SealbusLoopLate": AlertCase({'sealbus_loop_lag_seconds{instance="i"}': "9x12 0x12"}),
    "SealbusKeysStale": AlertCase({"sealbus_keys_age_seconds": "400x12 0x12"}),
    "SealbusKeyEnds": AlertCase({'sealbus_key_expiry_timestamp_seconds{agent="shop@svc"}': "1209000x12 9999999x12"}),
    "SealbusPublishFails": AlertCase({'sealbus_published_total{type="a.b",outcome="unknown"}': "0+5x12 60x12"}),
    "SealbusAuditBlind": AlertCase({"sealbus_audit_up": "0x12 1x12"}),
    "SealbusAuditBehind": AlertCase({"sealbus_audit_behind_records": "20000x20 0x4"}, fires="4m"),
    "SealbusAuditUnstorable": AlertCase({"sealbus_audit_unstorable_total": "0+1x12 12x120"}, clears="30m"),
    "SealbusErrorBudget": AlertCase(
        {
            'sealbus_settled_total{group="shop",outcome="dead"}': "0+9x20 180x200",
            'sealbus_settled_total{group="shop",outcome="done"}': "0x400",
        },
        clears="2h",
    ),
}


def rules() -> str:
    return RULES.read_text()


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", rules())


def promtool() -> str:
    return tool("promtool")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("REQUIRE_PROMETHEUS"):
            pytest.fail(f"there is no {name}: apt-get install prometheus")
        pytest.skip(f"there is no {name}: apt-get install prometheus")
    return found


def known_metrics() -> set[str]:
    registries = [Metrics().registry, AuditMetrics().registry]
    families = [family for registry in registries for family in registry.collect()]
    families += list(SurveyCollector().collect())
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {f"{family.name}{ending}" for family in families for ending in endings.get(family.type, ("",))}


def named_metrics(text: str) -> set[str]:
    return set(re.findall(r"\bsealbus_[a-z_]+", text))


def test_promtool_finds_no_fault_in_the_rules() -> None:
    found = subprocess.run([promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_every_metric_in_rules_and_boards_exists() -> None:
    boards = " ".join(panel.query for panels in BOARDS.values() for panel in panels)
    assert named_metrics(rules()) - known_metrics() == set()
    assert named_metrics(boards) - known_metrics() == set()
    recorded = set(re.findall(r"record: (\S+)", rules()))
    assert set(re.findall(r"sealbus:\w+:\w+", boards)) <= recorded


def test_the_boards_are_as_their_table_says() -> None:
    for name in BOARDS:
        assert (FOLDER / f"sealbus-{name}.json").read_text() == text_of_board(name), "python -m deploy.boards"


def test_every_alert_is_in_the_run_book_with_cause_check_and_fix() -> None:
    book = tomllib.loads((RULES.parent / "run-book.toml").read_text("utf-8"))
    assert list(book) == alerts()
    assert all(set(entry) == {"cause", "check", "fix"} for entry in book.values())


def test_the_link_of_an_alert_finds_its_entry() -> None:
    page = (ROOT / "docs" / "reference" / "metrics-and-alerts.md").read_text("utf-8")
    links = re.findall(r"runbook: docs/reference/metrics-and-alerts\.md#(\w+)", rules())
    assert links == [name.lower() for name in alerts()]
    assert [name for name in alerts() if f"\n### {name}\n" not in page] == []


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert sorted(FIRES) == sorted(alerts())


@pytest.mark.medium
def test_every_alert_fires_and_clears(tmp_path: Path) -> None:
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": value}],
                }
                for at, value in ((case.fires, 1), (case.clears, 0))
            ],
        }
        for alert, case in FIRES.items()
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}))
    found = subprocess.run([promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
