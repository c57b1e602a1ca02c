"""How fast the audit catches up, on both of its stores: `python tests/benchmarks/audit.py --records 50000`.

Owns a log with so many records, and one `sealbus serve audit --once` in a process of its own per store. Prints rows per
second, start-up included. No Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.databases import Postgres  # noqa: E402

APP = """
import msgspec
from sealbus import App, payload

@payload("order.stock", version="1.0.0")
class Stock(msgspec.Struct, frozen=True, kw_only=True):
    quantity: int
    warehouse: str = "Hamburg"

app = App("stock@svc")

@app.on(Stock)
async def count(stock: Stock) -> None: ...
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=50_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="sealbus-audit-") as name:
        folder = Path(name)
        (folder / "agents.py").write_text(APP)
        jobs = "".join(json.dumps({"quantity": number}) + "\n" for number in range(count))
        _call(folder, ["publish", "order.stock", "--app", "agents:app"], given=jobs)
        server = Postgres(Path(tempfile.mkdtemp(prefix="sealbus-audit-postgres-")))
        try:
            stores = {"sqlite": "sqlite:///audit.db", "postgresql": asyncio.run(server.create_database())}
            for store, url in stores.items():
                began_s = time.perf_counter()
                _call(folder, ["serve", "audit", "--once", "--app", "agents:app"], SEALBUS_AUDIT__URL=url)
                took_s = time.perf_counter() - began_s
                print(f"{store:<11} {count:,} records in {took_s:.1f} s: {count / took_s:,.0f}/s", flush=True)
        finally:
            server.end()


def _call(folder: Path, words: list[str], given: str = "", **settings: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    command = [sys.executable, "-m", "consumers.cli", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, text=True, check=False, capture_output=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)


if __name__ == "__main__":
    main()
