"""An app with a handled type of each kind that a threshold guards, and one of each that none does."""

from __future__ import annotations

from typing import Any

import msgspec

from bus.payloads.envelope_terms import ByField
from sealbus import App, payload

GUARDED: dict[str, dict[str, Any]] = {
    "request": {"performative": "request"},
    "chosen": {"performative": ByField("mode", {"do": "request"}, otherwise="inform")},
    "effect": {"side_effect": "write"},
    "high": {"risk": "high"},
    "raised": {},
    "key": {"required_options": ("idempotency_key",)},
    "threshold": {},
}
INFORMING: dict[str, dict[str, Any]] = {"inform": {"performative": "inform"}, "confirm": {"performative": "confirm"}}
OPEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "read": {"side_effect": "read"},
    "half": {"performative": ByField("mode", {"told": "inform"})},
}

app = App("thresholds@svc", group="thresholds")


async def handle(_: Any) -> None: ...


for name, terms in (GUARDED | INFORMING | OPEN).items():
    kind = payload(f"guard.{name}", **terms)(msgspec.defstruct("Guard", [("mode", str, "")]))
    threshold: Any = {"instructions_from": "task_instruction"} if name == "threshold" else {}
    app.on(kind, **threshold)(handle)
