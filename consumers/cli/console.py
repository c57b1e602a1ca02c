"""`sealbus console`: the operations page, in a browser on this machine.

Owns the verb, the tokens it prints, and the server; `consumers.operations.console` owns the pages.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.telemetry.terminal import printable
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.session import CommandSession, gathered, with_session
from consumers.operations.console.access import SCOPES, Token, read_tokens, token_of

__all__ = ["console"]

_LAST_PORT: Final = 65_535
_TOKEN_BYTES: Final = 18


class _ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    port: int
    host: str
    hosts: tuple[str, ...]
    tokens: Path | None
    new_token: str | None
    read_only: bool
    behind_tls: bool
    agent: str | None
    key_file: Path | None


@click.command()
@click.option(
    "--port", type=click.IntRange(0, _LAST_PORT), default=8_765, show_default=True, help="0 picks a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME[:PORT]", help="Answer to this name, too.")
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Tokens and their rights: [NAME] sha256, scopes. Without it one token is printed for this run.",
)
@click.option("--new-token", metavar="NAME", help="Print a new token and its entry for --tokens, and end.")
@click.option("--read-only", is_flag=True, help="No page can change anything.")
@click.option("--behind-tls", is_flag=True, help="A proxy in front speaks TLS: cookies and origins are of https.")
@click.option(
    "--agent", metavar="ID", help="The person as whom this console decides.  [default: whom the key speaks for]"
)
@click.option("--key-file", type=click.Path(path_type=Path), help="The private key of that person.")
@with_session
@gathered(_ConsoleOptions)
def console(session: CommandSession, options: _ConsoleOptions) -> int:
    """Show what goes on in a browser: what is wrong, dead letters by cause, conversations, approvals, agents, audit.

    Looking needs no token on this machine; sending dead letters back does, and it is printed when the console starts.
    On another --host every page needs a token with the scope `read`.

    \b
    Examples:
      sealbus console
      sealbus console --read-only --port 9000
      sealbus console --new-token alice >> tokens.toml
      sealbus console --tokens tokens.toml --host 0.0.0.0 --allow-host console.example.org --behind-tls
      sealbus console --key-file lead.pem
    """
    if options.new_token is not None:
        text = secrets.token_urlsafe(_TOKEN_BYTES)
        made = token_of(options.new_token, text, SCOPES)
        click.echo(f'["{printable(options.new_token)}"]\nsha256 = "{made.sha256}"\nscopes = ["read", "redrive"]')
        click.echo(f"the token, which is stored nowhere: {text}", err=True)
        return 0
    try:
        import uvicorn

        from consumers.operations.console.model import Console
        from consumers.operations.console.site import make_site
    except ImportError as error:
        raise ConfigurationError(
            f"the console needs the extra `console` ({error.name} is missing): pip install 'sealbus[console]'"
        ) from error
    if options.agent is not None and options.key_file is None:
        raise click.UsageError("--agent needs --key-file: a decision is signed by the person it is of")
    is_private = _is_loopback(options.host)
    if not is_private and options.tokens is None:
        raise click.UsageError(
            f"--host {options.host} exposes the console to the network: give --tokens, or serve on 127.0.0.1"
        )
    settings, clock = session.settings(), SystemClock()
    person_settings = None if options.key_file is None else session.settings_for(options.key_file)
    person = "" if person_settings is None else session.acting_agent(person_settings, options.agent)
    known, printed = _tokens(options.tokens, read_only=options.read_only, can_decide=bool(person))

    async def body(interrupts: Interrupts) -> int:
        async with session.open(settings) as transport:
            model = Console(
                transport,
                settings,
                clock,
                person=person,
                person_settings=person_settings,
            )
            sock = _listen(options.host, options.port)
            bound = sock.getsockname()[1]
            names = {f"{name}:{bound}" for name in ("127.0.0.1", "localhost", "[::1]")} | {
                each.lower() for each in options.hosts
            }
            site = make_site(model, known, names, is_private=is_private, is_tls=options.behind_tls)
            config = uvicorn.Config(
                site,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=3,
                h11_max_incomplete_event_size=64 << 10,
                limit_concurrency=200,
                ws="none",
            )
            server = uvicorn.Server(config)

            def soften() -> None:
                model.stop()
                server.should_exit = True

            interrupts.soften = soften
            shown = f"[{options.host}]" if ":" in options.host else options.host
            click.echo(f"console of {settings.bus.namespace}: http://{shown}:{bound}/", err=True)
            if printed:
                click.echo(f"token to send dead letters back, for this run: {printed}", err=True)
            # Its own handlers of signals are not installed: Ctrl-C ends it as it ends every verb.
            await server._serve([sock])  # noqa: SLF001
        return 0

    return execute(body)


def _tokens(path: Path | None, *, read_only: bool, can_decide: bool) -> tuple[list[Token], str]:
    """Return the tokens that count, and the one that is printed, if any."""
    if read_only:
        found = [] if path is None else read_tokens(path)
        return [Token(each.name, each.sha256, each.scopes & {"read"}) for each in found], ""
    if path is not None:
        return read_tokens(path), ""
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    return [token_of("operator", text, SCOPES if can_decide else ("read", "redrive"))], text


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"the console cannot be served on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    return sock


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
