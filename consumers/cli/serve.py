"""`sealbus serve console|mcp|metrics|audit|outbox|workflows|registry`: the services that run beside your workers.

Owns the options and the lines that say what is served. Each service has its room: `consumers.operations.console`,
`.survey`, `.audit`, `consumers.gateway.mcp`, `producers.outbox`, `consumers.agents`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from prometheus_client import CollectorRegistry

from bus.clock import SystemClock
from bus.errors import InboxError, UnreachableError
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.telemetry.terminal import printable
from bus.transports.base import Transport
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.gateway import gateway
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, app_option, gathered, verb
from consumers.cli.shell import VerbGroup
from consumers.web.listening import is_loopback
from consumers.worker.health import HealthAnswer, Probe, answer_service
from consumers.worker.metrics_server import MetricsServer
from producers.outbox.backlog import OutboxTopic, age_text, backlog_rows, check_reachable, unreachable

if TYPE_CHECKING:
    from producers.outbox.rows import Rows as OutboxRows

__all__ = ["serve"]

_LAST_PORT: Final = 65_535
_OUTBOX: Final = "outbox@sealbus"
_PAUSE_S: Final = 2.0
_LETTERS_S: Final = 2.0
_ROUND_S, _ROUNDS = 120.0, 4
"""A service is not alive if its last round began longer ago: a look at a large namespace takes its time."""

_host_option = click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
_metrics_option = click.option(
    "--metrics-port", type=click.IntRange(0, _LAST_PORT), help="Serve its metrics on this port; 0 picks a free one."
)


def _port_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--port", type=click.IntRange(0, _LAST_PORT), default=default, show_default=True, help="0 picks a free one."
    )


_FILE_TYPE: Final = click.Path(dir_okay=False, path_type=Path)


class _ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    host: str
    metrics_port: int | None
    hosts: tuple[str, ...]
    tokens: Path | None
    new_token: str | None
    read_only: bool
    behind_tls: bool
    agent: str | None
    key_file: Path | None
    targets: tuple[str, ...]


@click.group(cls=VerbGroup)
def serve() -> None:
    """Run the services beside your workers. Each runs until Ctrl-C; a second one of a kind is harmless.

    \b
    console    the operations page in a browser
    mcp        agents as tools for Claude and other MCP clients
    metrics    Prometheus metrics of the whole namespace
    audit      writes the permanent record
    outbox     publishes what applications committed to their databases
    workflows  runs workflow files
    registry   answers which agents there are
    gateway    tasks from programs in any language

    \b
    Examples:
      sealbus serve console
      sealbus serve metrics --host 0.0.0.0
      sealbus serve outbox postgresql://shop@localhost/shop
    """


@serve.command()
@_port_option(8_765)
@_host_option
@_metrics_option
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME[:PORT]", help="Answer to this name, too.")
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Tokens and their rights: [NAME] sha256, scopes. Without it one token is printed for this run.",
)
@click.option("--new-token", metavar="NAME", help="Print a new token and its entry for --tokens, and end.")
@click.option("--read-only", is_flag=True, help="No page can change anything.")
@click.option("--behind-tls", is_flag=True, help="A proxy in front terminates TLS: cookies and origins are of https.")
@click.option("--as", "agent", metavar="AGENT", help="The person who decides in this console.  [default: the key's]")
@click.option("--key-file", type=click.Path(path_type=Path), help="The private key of that person.")
@app_option
@verb()
@gathered(_ConsoleOptions)
async def console(session: CommandSession, options: _ConsoleOptions) -> int:
    """Serve the operations page: what is wrong, dead letters by cause, conversations, approvals, agents, audit.

    Reading needs no token on this machine; changing something does, and the token is printed at the start. On another
    --host every page needs a token with the scope `read`.

    \b
    Examples:
      sealbus serve console
      sealbus serve console --read-only --port 9000
      sealbus serve console --new-token alice >> tokens.toml
      sealbus serve console --tokens tokens.toml --host 0.0.0.0 --allow-host console.example.org --behind-tls
      sealbus serve console --key-file lead.pem
    """
    from consumers.operations.console import serving
    from consumers.web.extras import need_extra
    from consumers.web.listening import is_loopback

    if options.new_token is not None:
        made, text = serving.new_token(options.new_token)
        click.echo(f'["{printable(options.new_token)}"]\nsha256 = "{made.sha256}"\nscopes = ["read", "redrive"]')
        click.echo(f"token (shown once, not stored): {text}", err=True)
        return 0
    need_extra("console", "jinja2", "litestar", "uvicorn")
    if options.agent is not None and options.key_file is None:
        raise click.UsageError("--as needs --key-file: the person signs each decision")
    if not is_loopback(options.host) and options.tokens is None:
        raise click.UsageError(f"--host {options.host} exposes the console to the network: add --tokens FILE")
    apps = session.apps(options.targets)
    settings = session.settings(apps)
    person_settings = None if options.key_file is None else session.settings_for(options.key_file)
    person = "" if person_settings is None else session.acting_agent(person_settings, options.agent)
    known, printed = serving.tokens_of(options.tokens, read_only=options.read_only, person=person)

    def ready(url: str, stop: Callable[[], None]) -> None:
        session.interrupts.soften = stop
        click.echo(f"console of {settings.bus.namespace}: {url}", err=True)
        if printed:
            click.echo(f"token to change something, for this run: {printed}", err=True)

    with MetricsServer(Metrics().registry, options.host, options.metrics_port):
        async with session.open_late(settings) as transport:
            await serving.serve_console(
                transport,
                settings,
                SystemClock(),
                site=serving.ServedSite(
                    options.host,
                    options.port,
                    known,
                    options.hosts,
                    options.behind_tls,
                    person,
                    person_settings,
                    lambda: session.types_in(transport, settings, apps),
                ),
                on_ready=ready,
            )
    return 0


@serve.command()
@click.option(
    "--url",
    envvar="SEALBUS_GATEWAY_URL",
    metavar="URL",
    required=True,
    help="The gateway.  [env: SEALBUS_GATEWAY_URL]",
)
@click.option(
    "--token-file",
    type=_FILE_TYPE,
    envvar="SEALBUS_TOKEN_FILE",
    metavar="FILE",
    required=True,
    help="The file with your token at the gateway.  [env: SEALBUS_TOKEN_FILE]",
)
@verb()
async def mcp(session: CommandSession, *, url: str, token_file: Path) -> int:
    """Serve the agents behind a gateway as MCP tools, over standard input and output, to one client.

    The client starts it: Claude Code, for example. It has no key and no log: it is a client of `sealbus serve gateway`,
    and may ask the agents that its token may ask. Its logs go to standard error. No tool approves an action.

    \b
    Examples:
      sealbus serve mcp --url http://127.0.0.1:8766 --token-file claude.token
      SEALBUS_TOKEN_FILE=claude.token SEALBUS_GATEWAY_URL=https://bus.acme.example sealbus serve mcp
      claude mcp add sealbus -e SEALBUS_TOKEN_FILE=$PWD/claude.token -- sealbus serve mcp --url http://127.0.0.1:8766

    \b
    Exit codes: 0 the input has ended, 78 no token in the file, or the extra `mcp` is missing.
    """
    from consumers.cli.io.stdin_lines import StdinLines
    from consumers.gateway.mcp.stdio import serve_stdio

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"--url is the address of a gateway, such as http://127.0.0.1:8766, and not {url!r}")
    settings = session.settings()
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        session.hint("the token goes to the gateway unencrypted: use https")
    limits = settings.gateway
    lines = StdinLines()
    await serve_stdio(url, token_file, SystemClock(), lines.next, wait_s=limits.wait_s, keep_s=settings.tasks.keep_s)
    return 0


@serve.command()
@_port_option(9_109)
@_host_option
@click.option("--every", type=DURATION_TYPE, default=5.0, show_default="5s", help="How often to look.")
@verb()
async def metrics(session: CommandSession, *, port: int, host: str, every: float) -> int:
    """Serve Prometheus metrics of the namespace: lag and workers of groups, dead letters, workflows, approvals, agents.

    Run one per namespace; a second is harmless. Workers serve their own metrics: `sealbus run --metrics-port`.

    \b
    Examples:
      sealbus serve metrics
      sealbus serve metrics --host 0.0.0.0 --port 9109 --every 30s
    """
    from consumers.operations.survey.examination import opened_examiner
    from consumers.operations.survey.exporter import SurveyCollector, keep_current

    settings, clock = session.settings(), SystemClock()
    collector, registry = SurveyCollector(settings.bus.namespace), CollectorRegistry()
    registry.register(collector)

    def health(probe: Probe) -> HealthAnswer:
        limit_s = max(_ROUND_S, _ROUNDS * every)
        error = collector.error
        return answer_service(probe, "metrics", round_s_ago=collector.round_s_ago(clock), limit_s=limit_s, error=error)

    with MetricsServer(registry, host, port, health) as server:
        session.note(f"metrics of {settings.bus.namespace} on http://{host}:{server.port}/metrics")
        async with (
            session.open_late(settings) as transport,
            opened_examiner(transport, settings, clock, letters_within_s=_LETTERS_S) as examiner,
        ):
            await keep_current(collector, examiner, settings, clock, every)
    return 0


@serve.command()
@click.option("--once", is_flag=True, help="Read to the present end of the log, then stop.")
@app_option
@_metrics_option
@_host_option
@verb()
async def audit(
    session: CommandSession, *, once: bool, targets: tuple[str, ...], metrics_port: int | None, host: str
) -> int:
    """Write the permanent record: a row for each record of the log. Two processes share the partitions.

    The messages of your apps are checked against their schemas, too. Trusted keys come from trust.keys. With a key of
    audit@sealbus in trust.key_file, signed checkpoints are written to the log.

    \b
    Examples:
      sealbus serve audit
      sealbus serve audit --once
      sealbus serve audit --metrics-port 9108
    """
    from consumers.deadletters.journal import prepare_journal
    from consumers.operations.audit.anchor import check_anchor
    from consumers.operations.audit.databases import shown_audit_url
    from consumers.operations.audit.metrics import AuditMetrics
    from consumers.operations.audit.reading import opened_audit
    from consumers.operations.audit.recorder import audit_trail

    apps = session.apps(targets)
    settings, clock = session.settings(apps), SystemClock()
    session.announce()
    counted = AuditMetrics()
    if settings.audit.anchor:
        check_anchor(settings.audit.anchor)

    def health(probe: Probe) -> HealthAnswer:
        return answer_service(
            probe, "audit", round_s_ago=counted.round_s_ago(clock), limit_s=_ROUND_S, error=counted.error
        )

    with MetricsServer(counted.registry, host, metrics_port, health):
        async with AsyncExitStack() as stack:
            opening = _opened(session, settings, wait=not once, create=False, area="audit")
            transport = await stack.enter_async_context(opening)
            store = await stack.enter_async_context(opened_audit(settings, create=True))
            trail = audit_trail(transport, store, settings, types=session.types(apps), clock=clock, metrics=counted)
            await prepare_journal(transport, settings)
            session.note(f"recording {settings.bus.namespace} from {settings.bus.url} into {shown_audit_url(settings)}")
            progress = stack.enter_context(Progress(None, unit="rows", alone=True))
            await trail.run(until_caught_up=once, on_progress=lambda rows, _: progress.show(0, rows))
            session.note(f"{trail.rows:,} rows written")
    return 0


@serve.command()
@app_option
@_metrics_option
@_host_option
@verb()
def workflows(session: CommandSession, *, targets: tuple[str, ...], metrics_port: int | None, host: str) -> int:
    """Run workflow files, as the agent workflow@sealbus; they may send the types of your apps, too.

    \b
    Examples:
      sealbus serve workflows
      sealbus serve workflows --app desk.agent:app
    """
    from consumers.agents.workflows.engine import workflow_engine
    from consumers.worker.process import run_process

    apps = session.apps(targets)
    types = list({kind.name: kind.cls for app in reversed(apps) for kind in app.registry}.values())
    settings = session.settings()
    session.announce()
    return asyncio.run(
        run_process([workflow_engine(types=types).declaration], settings, metrics_port=metrics_port, metrics_host=host)
    )


@serve.command()
@_metrics_option
@_host_option
@verb()
def registry(session: CommandSession, *, metrics_port: int | None, host: str) -> int:
    """Answer which agents there are, as the agent registry@sealbus (type agent.discover).

    \b
    Examples:
      sealbus serve registry
    """
    from consumers.agents.directory.registry import registry_app
    from consumers.worker.process import run_process

    settings = session.settings()
    session.announce()
    declaration = registry_app(settings).declaration
    return asyncio.run(run_process([declaration], settings, metrics_port=metrics_port, metrics_host=host))


serve.add_command(gateway)


@serve.command()
@click.argument("database", metavar="DATABASE_URL")
@click.option("--once", is_flag=True, help="End when nothing is left to send.")
@click.option("--dry-run", is_flag=True, help="List what waits, and send nothing.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Rows read at a time.")
@click.option("--every", type=DURATION_TYPE, default=0.25, show_default="250ms", help="How often to look for new rows.")
@_metrics_option
@_host_option
@verb(OutboxTopic)
async def outbox(
    session: CommandSession,
    *,
    database: str,
    once: bool,
    dry_run: bool,
    batch: int,
    every: float,
    metrics_port: int | None,
    host: str,
) -> VerbResult | int:
    """Publish the committed rows of an application's outbox table, in the order of each key.

    One process works on a database at a time; others stand by and take over within seconds. It waits while the database
    or the log is unreachable. A message is sent again, byte for byte, if it is unknown whether it was written. A
    message that the log refuses for good stays in its row with the error.

    \b
    Examples:
      sealbus serve outbox postgresql://shop@localhost/shop --bus kafka://localhost:9092
      sealbus serve outbox sqlite:///shop.db --once
      sealbus serve outbox sqlite:///shop.db --dry-run

    \b
    Exit codes, with --once: 0 all sent, 1 some refused for good, 69 bus or database unreachable, 75 some left,
    or another process is at work.
    """
    from producers.connection import make_publisher
    from producers.outbox.open import open_rows
    from producers.outbox.relay import Relay, Round

    settings, clock, counted = session.settings(), SystemClock(), Metrics()
    session.announce()
    rows = open_rows(database, clock=clock)
    if dry_run:
        return await _backlog(rows, clock.now_ms())
    total = Round()

    def count(done: Round) -> None:
        nonlocal total
        total += done
        progress.show(0, total.sent)

    async with AsyncExitStack() as stack:
        stack.enter_context(MetricsServer(counted.registry, host, metrics_port))
        transport = await stack.enter_async_context(
            _opened(session, settings, wait=not once, create=True, area="outbox")
        )
        publisher = make_publisher(transport, settings, _OUTBOX, clock=clock, metrics=counted)
        stack.push_async_callback(publisher.close)
        progress = stack.enter_context(Progress(None, unit="sent", alone=True))
        working = Relay(rows, publisher, batch=batch, interval_s=every, on_round=count)
        session.interrupts.soften = working.stop
        stack.push_async_callback(working.close)
        if once:
            await check_reachable(rows, transport)
            total = await working.run_once()
        else:
            await working.run()
    session.note(f"{total.sent} sent, {total.failed} refused for good")
    if once and total.trouble is not None:
        click.echo(f"error: {printable(str(total.trouble))}", err=True)
        return LATER
    return FAILED if once and total.failed else 0


async def _backlog(rows: OutboxRows, now_ms: int) -> VerbResult:
    try:
        found = await rows.backlog()
    except InboxError as error:
        raise unreachable(error) from error
    finally:
        await rows.close()
    listed = backlog_rows(found, now_ms)
    ages = [each.oldest_s for each in listed if each.oldest_s is not None]
    oldest = f", the oldest for {age_text(max(ages))}" if ages else ""
    pending, failed = sum(each.pending for each in listed), sum(each.failed for each in listed)
    return Listing(
        listed,
        {
            "TOPIC": "topic",
            "PENDING": "pending",
            "OLDEST": lambda row: None if row.oldest_s is None else age_text(row.oldest_s),
            "FAILED": "failed",
            "LAST ERROR": "error",
        },
        notes=[f"{pending} pending{oldest}; {failed} refused for good"],
    )


@asynccontextmanager
async def _opened(
    session: CommandSession, settings: Settings, *, area: str, wait: bool, create: bool
) -> AsyncGenerator[Transport]:
    """Open the log; *wait* for one that cannot be opened yet, or that is not there and is not to be made."""
    log, event = get_logger(area), f"{area}.log_unreachable"
    async with AsyncExitStack() as stack:
        while True:
            try:
                transport = await stack.enter_async_context(session.open(settings, create=create))
                break
            except UnreachableError as error:
                if not wait:
                    raise
                log.warning(event, error=str(error), again_in_s=_PAUSE_S)
            await asyncio.sleep(_PAUSE_S)
        yield transport
