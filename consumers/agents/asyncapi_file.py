"""The AsyncAPI document of an app, as a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bus.redaction import redacted
from bus.schemas.asyncapi import asyncapi_of
from bus.settings.schema import Settings
from bus.telemetry.terminal_json import encode_json
from consumers.delivery.declaration import Declaration

__all__ = ["write_asyncapi"]


def write_asyncapi(declaration: Declaration, settings: Settings, folder: Path) -> Path:
    """Write `asyncapi.json` to *folder*, which is created, and return its path."""
    document = asyncapi_of(
        title=declaration.agent_id,
        version="1.0.0",
        namespace=settings.bus.namespace,
        group=declaration.group,
        url=redacted(settings.bus.url),
        handled=[subscription.kind for subscription in declaration.subscriptions.values()],
        published=declaration.published,
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "asyncapi.json"
    file.write_text(msgspec.json.format(encode_json(document), indent=2).decode() + "\n", "utf-8")
    return file
