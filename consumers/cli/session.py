"""What every verb has: the common options, settings, the log, confirmation, and the printing of what it returns.

Owns these options and the decorator `verb`. `bus.settings.schema` owns the settings.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

import click
import msgspec

from bus.errors import UnreachableError
from bus.redaction import redacted
from bus.settings import loading
from bus.telemetry import logs
from bus.telemetry.terminal import printable
from consumers.cli.interrupts import Interrupts, asking, execute
from consumers.cli.io.output import VerbResult, print_result
from consumers.cli.io.parameter_types import TEXT_ID, OneOf
from consumers.operations.lineage.proofs import proof_of, risk_in, trusted_keys

if TYPE_CHECKING:
    from bus.payloads.payload_types import Registry
    from bus.settings.loading import Loaded
    from bus.settings.schema import Settings
    from bus.transports.base import Transport
    from consumers.app.app import App
    from producers.connection import Bus

__all__ = [
    "COMMAND_LINE",
    "COMMON",
    "CommandSession",
    "app_option",
    "changing",
    "gathered",
    "key_options",
    "limit_option",
    "proof_of",
    "risk_in",
    "trusted_keys",
    "trusted_keys_option",
    "verb",
    "whole_log_option",
    "why_option",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_O = TypeVar("_O")

COMMAND_LINE: Final = "cli@sealbus"
"""The acting agent where the command names neither an agent nor a key."""
_SQLITE: Final = "sqlite:///"


class CommandSession:
    """The common options of one invocation."""

    interrupts: Interrupts
    """How a signal ends the verb; set while an async verb runs."""

    def __init__(
        self,
        *,
        bus: str | None = None,
        namespace: str | None = None,
        config: Path | None = None,
        output: str = "text",
        log_level: str | None = None,
        is_quiet: bool = False,
    ) -> None:
        self.namespace = namespace
        self.form = output
        self.as_json = output == "json"
        self._is_quiet = is_quiet
        self._config = config
        self._loaded: Loaded | None = None
        self._flags: dict[str, object] = {"bus": bus, "namespace": namespace, "log-level": log_level}

    def load(self, **flags: object) -> Loaded:
        """Load the settings, with further *flags*. From here on, logs go to standard error.

        Raises ConfigurationError.
        """
        paths = {name: str(value) for name, value in flags.items() if isinstance(value, Path)}
        provided = self._flags | {name.replace("_", "-"): value for name, value in (flags | paths).items()}
        self._loaded = loaded = loading.load_project(flags=provided, env=os.environ, file=self._config)
        logs.configure(loaded.settings.log.level, loaded.settings.log.format)
        logs.adopt_logging(loaded.settings.log.level)
        return loaded

    def note(self, text: str) -> None:
        """Print *text*, which is printable, on standard error, unless the user wants quiet."""
        if not self._is_quiet:
            click.echo(text, err=True)

    def hint(self, text: str) -> None:
        """Print *text*, which is printable, as a hint, as `note` does."""
        self.note(f"hint: {text}")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask *question* unless *yes*. A no aborts; where nobody can answer it is wrong usage."""
        if yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(f"{question} Nobody can answer here: without a terminal, give --yes")
        with asking():
            click.confirm(question, abort=True, err=True)

    def announce(self) -> None:
        """Print on standard error which settings and which log count; for commands that write."""
        loaded = self._loaded or self.load()
        file, url = loaded.file, redacted(loaded.settings.bus.url)
        if file is None:
            self.note(f"settings: defaults, bus: {printable(url)}")
            return
        folder = file.parent.resolve()
        shown = f"{folder.name}/{file.name}" if file.is_absolute() and Path.cwd().is_relative_to(folder) else str(file)
        inside = _SQLITE + quote(f"{folder.as_posix().rstrip('/')}/")
        url = _SQLITE + url.removeprefix(inside) if url.startswith(inside) else url
        self.note(f"settings: {printable(shown)}, bus: {printable(url)}")

    def acting_agent(self, chosen: Settings, agent: str | None) -> str:
        """Return who acts: *agent*, else whom the key speaks for that *chosen* names, else `cli@sealbus`.

        The only place that pairs the agents of commands with their keys. Raises ConfigurationError for two that do not
        fit.
        """
        from bus.trust import opening

        return opening.agent_of_file(chosen, agent, otherwise=COMMAND_LINE)

    def settings_for(self, key_file: Path | None) -> Settings:
        """Return the settings with *key_file* as signing key; None keeps the key of the settings."""
        flags: dict[str, Any] = {} if key_file is None else {"trust.key_file": str(key_file)}
        return self.settings(**flags)

    def apps(self, targets: Sequence[str]) -> tuple[App, ...]:
        """Return the apps that *targets* name, by default those of the project.

        Raises click.UsageError, ImportFailedError, ConfigurationError.
        """
        from consumers.agents.loading import AppNotFoundError, load_app, load_project_apps

        try:
            if targets:
                return tuple(load_app(target) for target in targets)
        except AppNotFoundError as error:
            raise click.UsageError(str(error)) from error
        # Who names a namespace means those of it.
        named = self.namespace
        return tuple(app for app in load_project_apps(self.load()) if named is None or app.namespace in (None, named))

    def needed_apps(self, targets: Sequence[str]) -> tuple[App, ...]:
        """Return the apps as `apps` does; none is a mistake, too."""
        if not (apps := self.apps(targets)):
            raise click.UsageError("name an app, MODULE:APP, or write apps = [...] under [project] in sealbus.toml")
        return apps

    def types(self, apps: Sequence[App]) -> Registry:
        """Return the types that are known without a log: of *apps*, of `schemas/` in the project, the built-in ones.

        Raises ConfigurationError, ContractError for the folder.
        """
        from consumers.agents.known_types import types_of_project

        return types_of_project(apps, self.schema_folder)

    async def types_in(self, transport: Transport, settings: Settings, apps: Sequence[App]) -> Registry:
        """Return the types as `types` does, and those that agents of the namespace describe on their cards.

        Raises BusError.
        """
        from consumers.agents.known_types import types_of_log

        return await types_of_log(apps, self.schema_folder, transport, settings)

    @property
    def schema_folder(self) -> str | None:
        """The folder `schemas` beside sealbus.toml; None without one."""
        file = (self._loaded or self.load()).file
        folder = None if file is None else file.parent / "schemas"
        return None if folder is None or not folder.is_dir() else str(folder)

    @property
    def project_folder(self) -> Path:
        """The folder of sealbus.toml; without one the current folder."""
        file = (self._loaded or self.load()).file
        return Path() if file is None else file.parent

    def settings(self, apps: Sequence[App] = (), **flags: object) -> Settings:
        """Return the settings, in the one namespace of *apps*. Raises click.UsageError for several."""
        loaded = self.load(**flags).settings
        names = sorted({app.namespace or loaded.bus.namespace for app in apps}) or [loaded.bus.namespace]
        if len(names) > 1:
            raise click.UsageError(
                f"these apps are of several namespaces, {', '.join(names)}: name those of one at a time"
            )
        if names[0] != loaded.bus.namespace and self.namespace is not None:
            raise click.UsageError(f"the app belongs to namespace {names[0]!r}, and --namespace is {self.namespace!r}")
        return msgspec.structs.replace(loaded, bus=msgspec.structs.replace(loaded.bus, namespace=names[0]))

    @asynccontextmanager
    async def open(self, chosen: Settings, *, create: bool = False) -> AsyncGenerator[Transport]:
        """Open the log of *chosen*; without *create*, a missing embedded log is not created.

        Raises UnreachableError.
        """
        from bus.transports import open_configured

        if not create:
            self._check_file(chosen.bus.url)
        transport = open_configured(chosen)
        try:
            yield transport
        finally:
            await transport.close()

    @asynccontextmanager
    async def open_late(self, chosen: Settings) -> AsyncGenerator[Transport]:
        """Yield the log of *chosen*, which may come later: until then each use of it raises UnreachableError."""
        from bus.transports import open_configured
        from bus.transports.late import LateTransport

        def opened() -> Transport:
            self._check_file(chosen.bus.url)
            return open_configured(chosen)

        # Its two attributes are properties, which nobody sets.
        transport = cast("Transport", LateTransport(opened))
        try:
            yield transport
        finally:
            await transport.close()

    @asynccontextmanager
    async def acting(self, chosen: Settings, agent: str, *, create: bool = False) -> AsyncGenerator[Bus]:
        """Connect as *agent*, with the key and the policy of *chosen*; without *create* as `open`.

        Raises UnreachableError, ConfigurationError.
        """
        from producers.connection import connect

        if not create:
            self._check_file(chosen.bus.url)
        async with connect(settings=chosen, agent=agent) as bus:
            yield bus

    def _check_file(self, url: str) -> None:
        path = Path(unquote(url.removeprefix(_SQLITE)))
        if not url.startswith(_SQLITE) or not path.name or path.exists():
            return
        loaded = self._loaded or self.load()
        origin = loaded.origins["bus.url"] + (
            ", no sealbus.toml" if loaded.file is None and loaded.origins["bus.url"] == "default" else ""
        )
        raise UnreachableError(
            f"no log at {path} (bus.url from {origin}). Start `sealbus run` or `sealbus publish` to create it, or name "
            "another one with --bus"
        )


def verb(
    *members: type[msgspec.Struct], forms: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., int]]:
    """Make a function a verb: it gets the common options as a CommandSession, its first argument.

    It returns an exit code, or a VerbResult to be printed. *members* are the Structs of its JSON, named in its help;
    *forms* are further values of --output. An async one may be interrupted.
    """

    def make(function: Callable[..., Any]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(
            *,
            bus: str | None,
            namespace: str | None,
            config: Path | None,
            output: str,
            log_level: str | None,
            verbose: bool,
            quiet: bool,
            **options: Any,
        ) -> int:
            level = log_level or ("debug" if verbose else "error" if quiet else None)
            session = CommandSession(
                bus=bus, namespace=namespace, config=config, output=output, log_level=level, is_quiet=quiet
            )

            returned: list[Any] = []

            async def body(interrupts: Interrupts) -> int:
                session.interrupts = interrupts
                returned.append(await function(session, **options))
                return 0

            code = 0
            if is_async:
                code = execute(body)
            else:
                returned.append(function(session, **options))
            # What a verb has done before a signal ended it is printed, too.
            for each in returned:
                ended = print_result(each, session.as_json, session.note) if isinstance(each, VerbResult) else int(each)
                code = code or ended
            return code

        is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        command.__json_members__ = members  # type: ignore[attr-defined]
        wrapped: Callable[..., int] = command
        choices = ("text", *(("json",) if members or not forms else ()), *forms)
        for option in reversed((*_OPTIONS, _output_option(choices))):
            wrapped = option(wrapped)
        return wrapped

    return make


def gathered(kind: Callable[..., _O]) -> Callable[[Callable[[CommandSession, _O], Any]], Callable[..., Any]]:
    """Give a verb its own options as one value of *kind*, whose fields have their names."""

    def gather(function: Callable[[CommandSession, _O], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(session: CommandSession, **options: Any) -> Any:
            return function(session, kind(**options))

        return command

    return gather


def app_option(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the option `--app MODULE:APP`, repeatable."""
    return click.option(
        "--app",
        "targets",
        metavar="MODULE:APP",
        multiple=True,
        help="The app whose message types are known besides the built-in ones; repeatable.  [default: project.apps]",
    )(function)


def whole_log_option(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the option `--whole-log`."""
    return click.option(
        "--whole-log",
        is_flag=True,
        help="Read every record. By default only records around the time in the id are read, and the audit.",
    )(function)


def key_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the options `--as` and `--key-file`: the acting agent, and its signing key."""
    named = click.option(
        "--as", "agent", type=TEXT_ID, metavar="AGENT", help="The acting agent.  [default: the key's, else cli@sealbus]"
    )(function)
    return click.option(
        "--key-file",
        envvar="SEALBUS_KEY_FILE",
        type=click.Path(path_type=Path),
        help="The private key of the acting agent, or the folder of `sealbus key new`; also SEALBUS_KEY_FILE.  "
        "[default: trust.key_file]",
    )(named)


def why_option(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the option `--why`: the reason, for the operations journal."""
    return click.option("--why", metavar="TEXT", default="", help="The reason, for the operations journal.")(function)


def changing(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add what every command has that changes what exists: `--why`, `--dry-run` and `--yes`."""
    with_yes = click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")(function)
    return why_option(click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")(with_yes))


def limit_option(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the option `--limit N`."""
    return click.option(
        "--limit", type=click.IntRange(1, 10_000_000), default=50, show_default=True, help="Show at most N."
    )(function)


def trusted_keys_option(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the option `--trusted-keys FILE`."""
    return click.option(
        "--trusted-keys",
        "jwks",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Trusted public keys: a JWKS file, or a folder of them.  [default: trust.keys]",
    )(function)


def _output_option(choices: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-o",
        "--output",
        type=OneOf(choices),
        default="text",
        help="text for people; json: an object a line." if "json" in choices else "The form of the output.",
    )


COMMON: Final = ("--bus", "--namespace", "--config", "-c", "--output", "-o", "--log-level", "--verbose", "-v", "-q")
"""The options of every verb."""

_OPTIONS: Final = (
    click.option(
        "--bus",
        metavar="URL",
        help="The log: sqlite:///relative.db, sqlite:////absolute.db, kafka://host:port,host:port.",
    ),
    click.option("--namespace", metavar="NAME", help="The namespace of topics and messages."),
    click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The file of settings.  [default: sealbus.toml, here or above]",
    ),
    click.option("--log-level", type=OneOf(["debug", "info", "warning", "error"]), help="Log from this level on."),
    click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug."),
    click.option("-q", "--quiet", is_flag=True, help="Only data and errors: no notes, no log below error."),
)
