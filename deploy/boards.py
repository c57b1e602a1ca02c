"""Write the two Grafana boards from one table of panels: `python -m deploy.boards`. Nothing else makes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["BOARDS", "FOLDER", "Panel", "board"]

FOLDER: Final = Path(__file__).parent / "grafana"
_WIDTH: Final = 8
_HEIGHT: Final = 7
_COLUMNS: Final = 24


class Panel(NamedTuple):
    """One picture: its title, the query, what names a line, and the unit."""

    title: str
    query: str
    legend: str = ""
    unit: str = "short"


BOARDS: Final[dict[str, Sequence[Panel]]] = {
    "namespace": (
        Panel("Dead letters open", "sum by (type, reason) (sealbus_dead_letters_open)", "{{type}} {{reason}}"),
        Panel("Records that wait", "sealbus_group_lag_messages", "{{group}}"),
        Panel("Workers of groups", "sealbus_group_members", "{{group}}"),
        Panel("Age of the first unsettled record", "sealbus_group_oldest_seconds", "{{group}}", "s"),
        Panel("Seconds without a commit", "sealbus_group_still_seconds", "{{group}} {{reason}}", "s"),
        Panel(
            "Messages that hold others up",
            "sum by (group, reason) (sealbus_group_hold_ups) > 0",
            "{{group}} {{reason}}",
        ),
        Panel("Faults of doctor", 'sum by (area) (sealbus_findings{state="fault"}) > 0', "{{area}}"),
        Panel("Time of an append", "sealbus_log_append_seconds", "append", "s"),
        Panel("Agents", "sealbus_agents", "{{health}}"),
        Panel("Approvals open", "sealbus_open_approvals", "open"),
        Panel("Open processes", "sealbus_open_processes", "{{saga}}"),
        Panel("Waits overdue", "sealbus_overdue_waits", "overdue"),
        Panel("Free bytes", "sealbus_disk_free_bytes", "{{disk}}", "bytes"),
        Panel("Audit behind", "sealbus_audit_behind_records", "records"),
        Panel("Protocol events", "sum by (event) (rate(sealbus_protocol_events_total[5m]))", "{{event}}", "ops"),
        Panel("Acceptance", "sealbus:acceptance:ratio_rate1h", "accepted", "percentunit"),
    ),
    "workers": (
        Panel("Published", "sum by (type, outcome) (rate(sealbus_published_total[1m]))", "{{type}} {{outcome}}", "ops"),
        Panel("Received", "sum by (type, group) (rate(sealbus_received_total[1m]))", "{{group}} {{type}}", "ops"),
        Panel("Settled", "sum by (group, outcome) (rate(sealbus_settled_total[1m]))", "{{group}} {{outcome}}", "ops"),
        Panel("Retried", "sum by (group, tier) (rate(sealbus_retried_total[1m]))", "{{group}} {{tier}}", "ops"),
        Panel(
            "Time in handlers, p99",
            "histogram_quantile(0.99, sum by (le, type) (rate(sealbus_handler_seconds_bucket[5m])))",
            "{{type}}",
            "s",
        ),
        Panel(
            "From sealing to done, p99",
            "histogram_quantile(0.99, sum by (le, type) (rate(sealbus_end_to_end_seconds_bucket[5m])))",
            "{{type}}",
            "s",
        ),
        Panel(
            "Memory",
            "process_resident_memory_bytes and on (job, instance) sealbus_build_info",
            "{{job}} {{instance}}",
            "bytes",
        ),
        Panel(
            "Processor",
            "rate(process_cpu_seconds_total[1m]) and on (job, instance) sealbus_build_info",
            "{{job}} {{instance}}",
        ),
        Panel("In flight", "sum by (group) (sealbus_in_flight)", "{{group}}"),
        Panel("Age of the oldest unsettled", "max by (group) (sealbus_oldest_unsettled_seconds)", "{{group}}", "s"),
        Panel("Lag in seconds", "max by (group, topic) (sealbus_lag_seconds)", "{{group}} {{topic}}", "s"),
        Panel("Loop late", "max by (instance) (sealbus_loop_lag_seconds)", "{{instance}}", "s"),
        Panel("Known to the inbox", "sum by (group, result) (rate(sealbus_inbox_total[5m]))", "{{group}} {{result}}"),
        Panel(
            "Requests of the gateway",
            "sum by (door, code) (rate(sealbus_gateway_requests_total[1m]))",
            "{{door}} {{code}}",
            "ops",
        ),
        Panel(
            "Time of a request, p99",
            "histogram_quantile(0.99, sum by (le, door) (rate(sealbus_gateway_request_seconds_bucket[5m])))",
            "{{door}}",
            "s",
        ),
        Panel("Tasks of the gateway", "sum by (event) (rate(sealbus_gateway_tasks_total[5m]))", "{{event}}", "ops"),
        Panel("Streams of the gateway", "sum by (instance) (sealbus_gateway_streams)", "{{instance}}"),
        Panel("Breakers open", "max by (group, dependency) (sealbus_breaker_open)", "{{group}} {{dependency}}"),
    ),
}


def board(name: str) -> dict[str, Any]:
    """Return the board *name* as Grafana reads it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "title": panel.title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {
                "x": number * _WIDTH % _COLUMNS,
                "y": number * _WIDTH // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "targets": [{"refId": "A", "datasource": source, "expr": panel.query, "legendFormat": panel.legend}],
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
        }
        for number, panel in enumerate(BOARDS[name])
    ]
    return {
        "uid": f"sealbus-{name}",
        "title": f"sealbus: {name}",
        "tags": ["sealbus"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def text_of_board(name: str) -> str:
    """Return the text of the file of the board *name*."""
    return json.dumps(board(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in BOARDS:
        (FOLDER / f"sealbus-{each}.json").write_text(text_of_board(each))
