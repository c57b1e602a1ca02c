"""AgentSealers: seals in the name of the credentials' agents, each with the key of the gateway."""

from __future__ import annotations

from typing import Final

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, raised_risk
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.settings.schema import Settings
from bus.trust.labels import GRAVE
from bus.trust.opening import Trust
from producers.sealing.sealer import Sealer, make_sealer

__all__ = ["GATEWAY_AGENT", "GATEWAY_GROUP", "AgentSealers"]

GATEWAY_AGENT: Final = "gateway@sealbus"
GATEWAY_GROUP: Final = "doors"
_MAX_KEPT: Final = 1_000


class AgentSealers:
    """One sealer for each agent."""

    def __init__(self, settings: Settings, trust: Trust, clock: Clock) -> None:
        self._settings = settings
        self._trust = trust
        self._clock = clock
        self._found: dict[str, Sealer] = {}

    def of(self, agent_id: str) -> Sealer:
        """Return what seals for *agent_id*."""
        sealer = self._found.get(agent_id)
        if sealer is None:
            if len(self._found) >= _MAX_KEPT:
                self._found.clear()
            trust = self._trust
            sealer = self._found[agent_id] = make_sealer(
                self._settings,
                Agent(id=agent_id, type="agent"),
                clock=self._clock,
                signer=trust.signer,
                verifier=trust.verifier,
                policy=trust.policy,
            )
        return sealer

    def judge(self, message: Message, types: Registry, now_ms: float) -> None:
        """Raise ContractError for a sealed *message* that receivers would refuse, or that its sender may not send."""
        limits = self._settings.publish
        kind = types.get(message.message_type)
        if kind is None:
            raise ContractError(f"no message type {message.message_type!r:.80} is known here", "", "unknown_type")
        high_risk = (*self._settings.trust.high_risk, *(GRAVE if self._trust.verifier is not None else ()))
        checks = gates.Checks(
            max_message_bytes=limits.max_message_bytes,
            namespace=self._settings.bus.namespace,
            risk_of=lambda _: raised_risk(kind, high_risk),
            verifier=self._trust.verifier,
            kind_of=lambda _: kind,
            max_hops=self._settings.worker.max_hops,
            max_ttl_ms=round(limits.max_ttl_s * 1000),
        )
        record = msgspec.structs.replace(gates.NOWHERE, value=message.value, timestamp_ms=round(now_ms))
        verdict = gates.judge(gates.Case(record=record, now_ms=round(now_ms), append_ms=round(now_ms)), checks)
        if isinstance(verdict, gates.Failed):
            raise verdict.error
        if isinstance(verdict, gates.Passed):
            self.of(message.metadata.sender.id or "").admission.check_outgoing(message, kind, verdict.payload)
