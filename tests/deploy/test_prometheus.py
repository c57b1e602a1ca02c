"""Rules, boards and run book: every alert fires and clears, every metric exists, and a real Prometheus reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bus.protocol.reasons import FORGED
from bus.telemetry.metrics import Metrics
from bus.telemetry.own_process import register_own_process
from consumers.gateway.metrics import GatewayMetrics
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.survey.exporter import SurveyCollector
from consumers.operations.survey.verdicts import DECIDED
from deploy.boards import BOARDS, FOLDER, text_of_board

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("slow_worker.json")
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"


class AlertCase(NamedTuple):
    """Series, of 15 s each, at which an alert fires by *fires* and is clear by *clears*."""

    series: dict[str, str]
    fires: str = "2m45s"
    clears: str = "9m"


NS = 'namespace="agents"'
GROUP = f'{NS},group="shop-svc"'
AT = 'job="sealbus",instance="10.0.0.7:9400"'
DOOR = 'job="sealbus-gateway",instance="10.0.0.8:9111"'
BUILD = {f"sealbus_build_info{{{AT}}}": "1x400"}

FIRES: dict[str, AlertCase] = {
    "SealbusTargetDown": AlertCase({f"up{{{AT}}}": "0x12 1x12", f"sealbus_build_info{{{AT}}}": "1x1 stale"}),
    "SealbusBlind": AlertCase({f"sealbus_survey_up{{{NS}}}": "0x12 1x24"}),
    "SealbusStoreDown": AlertCase({f"sealbus_store_up{{{NS}}}": "0x12 1x12"}),
    "SealbusLogSlow": AlertCase({f"sealbus_log_append_seconds{{{NS}}}": "0.66x12 0.02x12"}),
    "SealbusLogRefuses": AlertCase(
        {
            f'sealbus_findings{{{NS},area="log",state="fault"}}': "1x12 0x12",
            f"sealbus_survey_up{{{NS}}}": "1x400",
        }
    ),
    "SealbusDiskLow": AlertCase({f'sealbus_disk_free_bytes{{{NS},disk="log"}}': "536870912x12 9000000000x12"}),
    "SealbusTopicsWrong": AlertCase({f'sealbus_findings{{{NS},area="topics",state="fault"}}': "2x12 0x12"}),
    "SealbusSetUpWrong": AlertCase({f'sealbus_findings{{{NS},area="keys",state="fault"}}': "1x12 0x12"}),
    "SealbusPolicyBroken": AlertCase({f'sealbus_findings{{{NS},area="policy",state="fault"}}': "1x12 0x12"}),
    "SealbusDeadLetters": AlertCase(
        {f'sealbus_dead_letters_open{{{NS},type="order.placed",reason="rejected"}}': "3x12 0x12"}
    ),
    "SealbusForged": AlertCase(
        {f'sealbus_dead_letters_open{{{NS},type="order.placed",reason="signature_invalid"}}': "1x12 0x12"}
    ),
    "SealbusKeyRefused": AlertCase(
        {f'sealbus_dead_letters_open{{{NS},type="order.placed",reason="key_expired"}}': "5x12 0x12"}
    ),
    "SealbusNoWorker": AlertCase(
        {f"sealbus_group_lag_messages{{{GROUP}}}": "5x12 0x12", f"sealbus_group_members{{{GROUP}}}": "0x400"}
    ),
    "SealbusGroupStill": AlertCase({f'sealbus_group_still_seconds{{{GROUP},reason="inbox"}}': "25x12 0x12"}),
    "SealbusHeldUp": AlertCase({f'sealbus_group_hold_ups{{{GROUP},reason="retry"}}': "1x12 0x12"}),
    "SealbusProcessesFail": AlertCase(
        {
            'sealbus_processes_ended_total{group="shop-svc",saga="buying",outcome="failed"}': "0+1x12 12x120",
            'sealbus_processes_ended_total{group="shop-svc",saga="buying",outcome="completed"}': "0x132",
        },
        fires="3m",
        clears="30m",
    ),
    "SealbusTopicMissing": AlertCase(
        {'sealbus_missing_topics{group="shop-svc",topic="agents.order.placed"}': "1x12 0x12"}
    ),
    "SealbusTransactionOpen": AlertCase({f"sealbus_transaction_open_seconds{{{NS}}}": "90x12 0x12"}),
    "SealbusRecordsLost": AlertCase({f"sealbus_group_lost_partitions{{{GROUP}}}": "1x12 0x12"}),
    "SealbusLag": AlertCase(
        {'sealbus_lag_seconds{group="shop-svc",topic="agents.order.placed",partition="0"}': "424x12 0x12"}
    ),
    "SealbusLagGrows": AlertCase(
        {
            f"sealbus_group_oldest_seconds{{{GROUP}}}": "75x12 0x12",
            f"sealbus_group_lag_messages{{{GROUP}}}": "0+15x12 0x12",
        }
    ),
    "SealbusAgentUnhealthy": AlertCase({f'sealbus_agents{{{NS},health="unhealthy"}}': "1x12 0x12"}),
    "SealbusWorkerLost": AlertCase({f"sealbus_agents_lost_workers{{{NS}}}": "1x12 0x12"}),
    "SealbusRestarts": AlertCase({f"process_start_time_seconds{{{AT}}}": "10 20 30 40 40x120"} | BUILD, clears="25m"),
    "SealbusMemoryHigh": AlertCase(
        {
            f"process_resident_memory_bytes{{{AT}}}": "490000000x12 100000000x12",
            f"sealbus_memory_limit_bytes{{{AT}}}": "536870912x400",
        }
    ),
    "SealbusMemoryGrows": AlertCase(
        {f"process_resident_memory_bytes{{{AT}}}": "70000000x5 430000000x7 70000000x12"} | BUILD
    ),
    "SealbusFilesHigh": AlertCase(
        {f"process_open_fds{{{AT}}}": "900x12 40x12", f"process_max_fds{{{AT}}}": "1024x400"} | BUILD
    ),
    "SealbusRebalances": AlertCase({'sealbus_rebalances_total{group="shop-svc"}': "0+4x12 48x120"}, clears="12m"),
    "SealbusDirectoryFull": AlertCase({f"sealbus_directory_dropped_total{{{NS}}}": "0+9x12 108x120"}, clears="30m"),
    "SealbusApprovalOpen": AlertCase({f"sealbus_open_approvals{{{NS}}}": "1x12 0x12"}),
    "SealbusApprovalOld": AlertCase(
        {
            f"sealbus_open_approvals{{{NS}}}": "1x260 0x60",
            f"sealbus_approval_oldest_timestamp_seconds{{{NS}}}": "0x400",
        },
        fires="64m",
        clears="78m",
    ),
    "SealbusWaitsOverdue": AlertCase({f"sealbus_overdue_waits{{{NS}}}": "2x12 0x12"}),
    "SealbusClockSkew": AlertCase({'sealbus_clock_offset_seconds{instance="10.0.0.7:9400"}': "-8x12 0x12"}),
    "SealbusBreakerOpen": AlertCase({'sealbus_breaker_open{group="shop-svc",dependency="ledger"}': "1x12 0x12"}),
    "SealbusBrakeOn": AlertCase({'sealbus_brake_on{group="shop-svc",type="order.placed"}': "1x12 0x12"}),
    "SealbusLoopLate": AlertCase({'sealbus_loop_lag_seconds{instance="10.0.0.7:9400"}': "9x12 0x12"}),
    "SealbusKeysStale": AlertCase({'sealbus_keys_age_seconds{instance="10.0.0.7:9400"}': "400x12 0x12"}),
    "SealbusKeyEnds": AlertCase({'sealbus_key_expiry_timestamp_seconds{agent="shop@svc"}': "7365x12 9999999x12"}),
    "SealbusPublishFails": AlertCase(
        {'sealbus_published_total{type="order.placed",outcome="unknown"}': "0+5x12 60x12"}
    ),
    "SealbusAuditBlind": AlertCase({'sealbus_audit_up{instance="10.0.0.9:9108"}': "0x12 1x12"}),
    "SealbusAuditBehind": AlertCase(
        {'sealbus_audit_behind_records{instance="10.0.0.9:9108"}': "20000x20 0x4"}, fires="4m"
    ),
    "SealbusAuditUnproven": AlertCase({'sealbus_audit_checkpoints_up{instance="10.0.0.9:9108"}': "0x12 1x12"}),
    "SealbusAuditUnstorable": AlertCase(
        {'sealbus_audit_unstorable_total{instance="10.0.0.9:9108"}': "0+1x12 12x120"}, clears="30m"
    ),
    "SealbusDoorsUnreadable": AlertCase({f"sealbus_gateway_credentials_fault{{{DOOR}}}": "1x12 0x12"}),
    "SealbusGatewayFails": AlertCase(
        {f'sealbus_gateway_requests_total{{{DOOR},door="http",code="5xx"}}': "0+5x12 60x120"}, clears="12m"
    ),
    "SealbusGatewayUnconfirmed": AlertCase(
        {f"sealbus_gateway_unconfirmed_total{{{DOOR}}}": "0+1x12 12x120"}, clears="12m"
    ),
    "SealbusTasksOverdue": AlertCase({f'sealbus_waits_overdue{{{DOOR},group="doors"}}': "2x12 0x12"}),
    "SealbusErrorBudget": AlertCase(
        {
            'sealbus_settled_total{group="shop-svc",outcome="dead"}': "0+9x20 180x200",
            'sealbus_settled_total{group="shop-svc",outcome="done"}': "0x400",
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
    registries = [Metrics().registry, AuditMetrics().registry, GatewayMetrics().registry]
    register_own_process(registries[0])
    families = [family for registry in registries for family in registry.collect()]
    families += list(SurveyCollector("agents").collect())
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


def test_every_alert_is_in_the_run_book_with_sentence_cause_check_and_fix() -> None:
    book = tomllib.loads((RULES.parent / "run-book.toml").read_text("utf-8"))
    assert list(book) == alerts()
    assert all(set(entry) == {"says", "cause", "check", "fix"} for entry in book.values())


def test_the_link_of_an_alert_finds_its_entry() -> None:
    page = (ROOT / "docs" / "reference" / "metrics-and-alerts.md").read_text("utf-8")
    links = re.findall(r"runbook: docs/reference/metrics-and-alerts\.md#(\w+)", rules())
    assert links == [name.lower() for name in alerts()]
    assert [name for name in alerts() if f"\n### {name}\n" not in page] == []


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert sorted(FIRES) == sorted(alerts())


def promtool_test(tests: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "tests.yaml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}))
    return subprocess.run([promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False)


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
    found = promtool_test(tests, tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def said(folder: Path) -> dict[str, str]:
    """What each alert says in its case: promtool prints it where nothing is expected."""
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "alert_rule_test": [{"alertname": alert, "eval_time": case.fires, "exp_alerts": []}],
        }
        for alert, case in FIRES.items()
    ]
    told = promtool_test(tests, folder)
    text = told.stdout + told.stderr
    # A multi-line label value would break this; no rule has one.
    return {
        found[1]: json.loads(f'"{found[2]}"')
        for found in re.finditer(r'Labels:\{[^}]*?alertname="(\w+)".*?summary="((?:[^"\\]|\\.)*)"', text, re.DOTALL)
    }


@pytest.mark.medium
def test_the_run_book_has_the_very_sentence_that_each_alert_says(tmp_path: Path) -> None:
    book = tomllib.loads((RULES.parent / "run-book.toml").read_text("utf-8"))
    assert {name: entry["says"] for name, entry in book.items()} == said(tmp_path)


def test_the_alert_of_forged_messages_and_doctor_name_the_same_reasons() -> None:
    (listed,) = re.findall(r'alert: SealbusForged\n.*?reason=~"([^"]+)"', rules(), re.DOTALL)
    assert set(listed.split("|")) == FORGED
    (left,) = re.findall(r'alert: SealbusDeadLetters\n.*?reason!="([^"]+)"', rules(), re.DOTALL)
    assert left == DECIDED


@pytest.mark.medium
def test_no_exporter_at_all_is_an_alert(tmp_path: Path) -> None:
    nothing = {
        "interval": "15s",
        "input_series": [{"series": 'up{job="other"}', "values": "1x40"}],
        "promql_expr_test": [
            {
                "expr": 'count(ALERTS{alertname="SealbusBlind",alertstate="firing"})',
                "eval_time": "2m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    found = promtool_test([nothing], tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def recorded() -> dict[str, list[float | None]]:
    """What was scraped of a real worker that is too slow (`tests.deploy.record_slow_worker`), each 15 s."""
    found: dict[str, list[float | None]] = json.loads(RECORDED.read_text("utf-8"))
    return found


def test_the_lag_of_a_slow_worker_never_falls_below_the_age_of_its_oldest_message() -> None:
    series = recorded()
    lags = [values for name, values in series.items() if name.startswith("sealbus_lag_seconds") and ".job" in name]
    (oldest,) = [values for name, values in series.items() if name.startswith("sealbus_oldest_unsettled")]
    for number, age_s in enumerate(oldest):
        assert max(values[number] or 0.0 for values in lags) >= (age_s or 0.0) - 10


@pytest.mark.medium
def test_the_lag_alert_fires_on_the_recorded_series_of_a_slow_worker(tmp_path: Path) -> None:
    series = [
        {"series": name, "values": " ".join("_" if value is None else str(value) for value in values)}
        for name, values in recorded().items()
    ]
    minutes = len(recorded()[series[0]["series"]]) // 4
    test = {
        "interval": "15s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'count(ALERTS{alertname="SealbusLag",alertstate="firing"})',
                "eval_time": f"{minutes - 1}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    found = promtool_test([test], tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
