"""`sealbus serve gateway`: tasks and messages from programs in any language."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.telemetry.metrics import Metrics
from consumers.cli.session import CommandSession, app_option, gathered, verb
from consumers.worker.health import HealthAnswer, Probe, answer_service
from consumers.worker.metrics_server import MetricsServer

__all__ = ["gateway"]

_ROUND_S: Final = 60.0
"""A gateway is not alive if its last look at file and store began longer ago."""


class _GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    doors: Path | None
    host: str
    port: int
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    url: str | None
    behind_tls: bool
    key_file: Path | None
    metrics_port: int | None
    targets: tuple[str, ...]


@click.command()
@click.option(
    "--doors",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Who may use it, as written by `sealbus door add`.  [default: doors.toml beside sealbus.toml]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_766, show_default=True, help="0: a free one.")
@click.option("--url", metavar="URL", help="Under which clients reach it; its host is answered to.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME[:PORT]", help="Answer to this name, too.")
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="Pages of this origin may ask.")
@click.option("--behind-tls", is_flag=True, help="A proxy in front terminates TLS: another --host needs that.")
@click.option("--key-file", type=click.Path(path_type=Path), help="The gateway's private key, or the folder of it.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics, /healthz/live and /healthz/ready there."
)
@app_option
@verb()
@gathered(_GatewayOptions)
async def gateway(session: CommandSession, options: _GatewayOptions) -> int:
    """Serve the gateway: programs in any language give tasks to agents, and follow them, by HTTP, WebSocket and MCP.

    A task is a row in the inbox's database: any replica answers for it, also after a crash. `sealbus door add` makes a
    token. On this machine alone it needs no TLS; on another --host it needs --behind-tls and a key where keys are
    configured.

    \b
    Examples:
      sealbus serve gateway
      sealbus serve gateway --port 8000 --app desk.agent:app
      sealbus serve gateway --host 0.0.0.0 --behind-tls --url https://bus.example.org --key-file keys
    """
    from urllib.parse import urlsplit

    from consumers.gateway.credentials import CredentialFile
    from consumers.gateway.doors import doors_file
    from consumers.gateway.mcp.door import mcp_parts
    from consumers.gateway.metrics import GatewayMetrics
    from consumers.gateway.serving import directory_of, gateway_declaration, make_gateway, served_gateway
    from consumers.web.extras import need_extra
    from consumers.web.listening import is_loopback
    from consumers.worker.embedded import running

    need_extra("gateway", "litestar", "uvicorn", "wsproto")
    from consumers.gateway.hook import hook_routes, open_permits

    apps = session.apps(options.targets)
    settings = session.settings(apps) if options.key_file is None else session.settings_for(options.key_file)
    if not is_loopback(options.host):
        if not options.behind_tls:
            raise click.UsageError(
                f"--host {options.host} exposes tokens to the network: put a proxy with TLS before it, and add "
                "--behind-tls"
            )
        if settings.trust.keys and not settings.trust.key_file:
            raise click.UsageError("keys are configured, and the gateway has none: add --key-file")
    file = doors_file(options.doors, session.project_folder)
    if not file.is_file():
        raise ConfigurationError(f"{file} is not there: `sealbus door add NAME --agent AGENT --to AGENT` writes it")
    _check_addresses(options)
    clock = SystemClock()
    names = list(options.hosts)
    if options.url is not None and (parts := urlsplit(options.url)).hostname:
        names += [parts.netloc, parts.hostname]
    stop = asyncio.Event()
    session.interrupts.soften = stop.set
    session.announce()
    async with session.open(settings, create=True) as transport:
        types = await session.types_in(transport, settings, apps)
    metrics = Metrics()
    counted = GatewayMetrics(metrics.registry)
    made = make_gateway(settings, CredentialFile(file, clock=clock), types, clock, metrics=counted)
    mcp = mcp_parts(made, clock)
    permits = open_permits(settings, made.source, clock)
    workers = [gateway_declaration(made), *([permits.declaration] if permits.declaration else ())]

    def health(probe: Probe) -> HealthAnswer:
        ago_s = counted.round_s_ago(clock)
        return answer_service(probe, "gateway", round_s_ago=ago_s, limit_s=_ROUND_S, error=counted.error)

    with MetricsServer(metrics.registry, options.host, options.metrics_port, health):
        async with (
            running(workers, None, config=None, settings=settings, metrics=metrics, on_failure=None) as bus,
            directory_of(made, bus),
            served_gateway(
                made,
                host=options.host,
                port=options.port,
                names=names,
                origins=frozenset(options.origins),
                routes=[*mcp.routes, *hook_routes(made, permits, clock)],
                lifespans=mcp.lifespans,
            ) as url,
        ):
            known = made.source.current().all
            session.note(f"gateway of {settings.bus.namespace}: {url} ({len(known)} credentials of {file})")
            if permits.fault and any("hook" in each.doors for each in known):
                session.note(f"the door hook denies every call: {permits.fault}")
            await stop.wait()
    return 0


def _check_addresses(options: _GatewayOptions) -> None:
    """Raise click.BadParameter for an origin or a URL that no client has."""
    from urllib.parse import urlsplit

    for origin in options.origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            text = f"{origin!r} is not an origin, such as https://app.example.org"
            raise click.BadParameter(text, param_hint="--allow-origin")
    if options.url is not None and urlsplit(options.url).hostname is None:
        raise click.BadParameter(f"{options.url!r} is not a URL, such as https://bus.example.org", param_hint="--url")
