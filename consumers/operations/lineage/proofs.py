"""The keys and the checks by which a tool judges stored messages."""

from __future__ import annotations

from collections.abc import Callable

from bus.clock import Clock
from bus.gates import Admit
from bus.payloads.payload_types import PayloadType, Registry, RiskClass
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.settings.schema import Settings

__all__ = ["proof_of", "risk_in", "trusted_keys"]


def trusted_keys(settings: Settings, clock: Clock) -> Verifier | None:
    """Return the keys of *settings*, None without any; private keys are not looked at. Raises ConfigurationError."""
    from bus.trust import opening

    return opening.believed_keys(settings, clock)


def proof_of(settings: Settings, clock: Clock) -> tuple[Verifier | None, Admit | None]:
    """Return the keys of *settings*, and what judges by them which types a key signs and how authority narrows."""
    from bus.trust.admission import Admission, Party
    from bus.trust.labels import LEAST_TRUSTED

    verifier = trusted_keys(settings, clock)
    if verifier is None:
        return None, None
    party = Party(agent_id="", namespace=settings.bus.namespace, group="")
    admission = Admission(party, verifier=verifier, now_ms=clock.now_ms)

    def admit(message: Message, kind: PayloadType | None, payload: object, how: str) -> None:
        # Nobody handles it here, so no level is too low.
        admission.admit(message, kind, payload, how=how, instructions_from=LEAST_TRUSTED)

    return verifier, admit


def risk_in(registry: Registry) -> Callable[[str], RiskClass]:
    """Return a function for the risk of a type; a type that *registry* does not know has medium risk."""
    from bus.payloads.payload_types import raised_risk

    return lambda name: raised_risk(registry.get(name), ())
