"""A real Prometheus with the rules of this repository, over targets on this machine.

Owns starting and asking it. Without the program its tests skip, and fail where it is required.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Prometheus"]

RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "rules.yaml"
_MISSING = "there is no prometheus: apt-get install prometheus"


class Prometheus:
    """One that scrapes *jobs*, by name the ports of their targets, once a second, and serves on *port*."""

    def __init__(self, folder: Path, port: int, jobs: Mapping[str, Sequence[int]]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.fail(_MISSING) if os.environ.get("REQUIRE_PROMETHEUS") else pytest.skip(_MISSING)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        config = folder / "prometheus.yaml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [
                        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}]}
                        for name, ports in jobs.items()
                    ],
                }
            )
        )
        command = [str(program), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        with (folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
            )

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {each["metric"]["alertname"] for each in self._found('ALERTS{alertstate="firing"}')}

    def value(self, expression: str) -> float:
        """What a PromQL *expression* of one series has; 0 where there is none, or no answer."""
        found = self._found(expression)
        return float(found[0]["value"][1]) if found else 0.0

    def series(self) -> int:
        """How many names of sealbus there are."""
        names = self._asked("label/__name__/values")
        return len([name for name in names if name.startswith("sealbus_")])

    def close(self) -> None:
        """End it in order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(45)

    def _found(self, expression: str) -> list[Any]:
        try:
            found: list[Any] = self._asked(f"query?query={urllib.parse.quote(expression)}")["result"]
        except OSError:
            return []
        return found

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=5) as answer:  # noqa: S310 - of this test
            return json.load(answer)["data"]
