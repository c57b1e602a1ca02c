"""The HTTP door for foreign messages, and for what can be asked and of whom: `/ingest`, `/agents`, `/types`."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter

from bus.payloads.payload_types import PayloadType
from bus.schemas.json_schema import portable, schema_of
from consumers.gateway.credentials import Credential
from consumers.gateway.gateway import AgentLine, Gateway, not_found
from consumers.gateway.http import KEY, NONE_MATCH, PREFER, Asked, cursor_in, preferred_wait_s
from consumers.gateway.ingest import Ingest

__all__ = ["DIRECTORY_ROUTES"]

_QUERY = Annotated[str | None, QueryParameter(name="query", description="In the id, types or capabilities.")]
_DIALECT = Annotated[
    str | None, QueryParameter(name="dialect", description="By default the form of the message decides.")
]


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Agents that the credential may ask. What they say of themselves is not to be trusted."""

    agents: list[AgentLine]


class TypeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A message type that the credential may send."""

    type: str
    version: str
    description: str
    schema: str
    """Where its JSON Schema is."""


class TypePage(msgspec.Struct, frozen=True, kw_only=True):
    """The message types that the credential may send."""

    types: list[TypeLine]


def _gateway(request: Asked) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def _credential(request: Asked) -> Credential:
    found: Credential = request.scope["state"]["credential"]
    return found


@post(
    "/ingest",
    status_code=202,
    summary="A message in the format of another system",
    description=(
        "The formats speech-acts, frameworks, evidence, layered, plain-ids, and sealed messages. 202: it is on the "
        "bus. 200: its answer, if it waits for one, or the answer that its repeat gets."
    ),
)
async def ingest(
    request: Asked, key: KEY = None, dialect: _DIALECT = None, prefer: PREFER = None
) -> Response[dict[str, Any]]:
    taking: Ingest = request.app.state.ingest
    said = await taking.take(_credential(request), await request.body(), key=key, dialect=dialect)
    answered = await taking.answered(_credential(request), said, preferred_wait_s(prefer))
    return Response(answered.body, status_code=answered.status, headers={"cache-control": "no-store"})


@get("/agents", summary="Agents that you may ask")
async def list_agents(request: Asked, wanted: _QUERY = None) -> AgentPage:
    return AgentPage(agents=await _gateway(request).agents(_credential(request), wanted))


@get("/agents/{agent_id:str}", summary="An agent that you may ask")
async def get_agent(request: Asked, agent_id: FromPath[str]) -> AgentLine:
    found = [each for each in await _gateway(request).agents(_credential(request)) if each.id == agent_id]
    if not found:
        raise not_found("you may ask no agent of that id")
    return found[0]


@get("/types", summary="Message types that you may send")
async def list_types(request: Asked) -> TypePage:
    gateway, credential = _gateway(request), _credential(request)
    kinds = sorted((kind for kind in gateway.types if credential.may_send(kind.name)), key=lambda kind: kind.name)
    return TypePage(
        types=[
            TypeLine(
                type=kind.name,
                version=kind.version,
                description=_described(kind),
                schema=f"/types/{quote(kind.name, safe='')}/{kind.version}.json",
            )
            for kind in kinds
        ]
    )


@get("/types/{name:str}/{file:str}", summary="The JSON Schema of a message type")
async def get_type(
    request: Asked, name: FromPath[str], file: FromPath[str], known: NONE_MATCH = None
) -> Response[dict[str, Any] | None]:
    gateway, credential = _gateway(request), _credential(request)
    kind = gateway.types.get(name)
    if kind is None or not credential.may_send(name) or file != f"{kind.version}.json":
        raise not_found("you may send no type of that name and version")
    schema = portable(schema_of(kind))
    tag = hashlib.sha256(msgspec.json.encode(schema)).hexdigest()[:16]
    headers = {"etag": f'"{tag}"', "cache-control": "private, max-age=86400, immutable"}
    if cursor_in(known) == tag:
        return Response(None, status_code=304, headers=headers)
    return Response(schema, media_type="application/schema+json", headers=headers)


def _described(kind: PayloadType) -> str:
    found = (kind.cls.__doc__ or "").strip().partition("\n")[0]
    return "" if found.startswith("Struct(") else found


DIRECTORY_ROUTES: Final = (ingest, list_agents, get_agent, list_types, get_type)
