"""The types that a tool knows without loading the app that declares them: from the project's folder, and from cards.

Owns their order, and reading the cards once: each is accepted as the directory accepts it, by every gate, the keys and
the policy. Nothing is appended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bus.clock import Clock
from bus.payloads.payload_types import Registry
from bus.protocol.signatures import Verifier
from bus.schemas.published_types import registry
from bus.transports.base import Transport
from bus.trust.policy.policy import Policy
from bus.vocabulary import BUILT_IN
from producers.directory.card_schemas import CardSchemas
from producers.directory.view import Directory

__all__ = ["types_of_namespace", "types_of_cards"]


async def types_of_namespace(
    classes: Iterable[type[Any]],
    transport: Transport,
    *,
    namespace: str,
    clock: Clock,
    folder: str | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
) -> Registry:
    """Return the types that are known of *namespace*, by precedence: those of *classes*, the payload classes of apps;
    of the schemas in *folder*; of agents' cards; the built-in ones.

    Raises ConfigurationError, ContractError for the folder, BusError where the log cannot be read.
    """
    known = await types_of_cards(
        transport, namespace=namespace, clock=clock, verifier=verifier, policy=policy, below=BUILT_IN
    )
    return Registry(classes, below=known if folder is None else registry(folder, below=known))


async def types_of_cards(
    transport: Transport,
    *,
    namespace: str,
    clock: Clock,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
    below: Registry | None = None,
) -> Registry:
    """Return the types that agents of *namespace* describe on their cards of the last day; *below* has the others.

    Built-in types are never among them. Raises BusError where the log cannot be read.
    """
    schemas = CardSchemas()
    reader = Directory(
        transport, namespace=namespace, verifier=verifier, policy=policy, clock=clock, healthy_s=1.0, schemas=schemas
    )
    await reader.read_cards()
    return schemas.registry(below=below)
