"""The outermost command: find verbs without importing them all, and turn errors into messages and exit codes.

`consumers.cli.exit_codes` decides which error has which exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from bus.errors import BusError
from bus.nearest import nearest
from bus.telemetry.streams import open_standard_streams, silence_stdout
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, exit_code, explain_error
from consumers.cli.io.output import member_names

__all__ = ["Command", "Shell", "Verb", "VerbGroup", "version_option"]


class Verb(NamedTuple):
    """The location of a verb's click command, and the line that lists it. *section* heads those that follow it."""

    module: str
    name: str
    summary: str
    section: str = ""


class Command(click.Command):
    """A command whose help has its own options first, then those that all have, then the members of its JSON."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from consumers.cli.session import COMMON

        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                is_common = not {"--help", *COMMON}.isdisjoint(parameter.opts)
                (common if is_common else own).append(record)
        for heading, records in (("Options", own), ("Options of every command", common)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for members in getattr(self.callback, "__json_members__", ()):
            with formatter.section(f"Members of the JSON ({members.__name__})"):
                formatter.write_text(", ".join(member_names(members)))
        super().format_epilog(ctx, formatter)


class VerbGroup(click.Group):
    """A group that answers an unknown command with the nearest one, or with all that there are."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            hint = nearest(args[0], names) or f"; there are {', '.join(names)}"
            raise click.UsageError(f"no such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


class Shell(VerbGroup):
    """A group whose commands are imported when called."""

    def __init__(self, name: str, *, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(
            name, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, **options
        )
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name, verb in self._verbs.items() if _exists(verb.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        verb = self._verbs[cmd_name]
        command: click.Command = getattr(import_module(verb.module), verb.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._verbs)) + 2
        for name in self.list_commands(ctx):
            verb = self._verbs[name]
            if verb.section:
                title, _, purpose = verb.section.partition(": ")
                formatter.write(f"\n{title:<{width + 2}} {purpose}\n")
            formatter.write(f"  {name:<{width}} {verb.summary}\n")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_help_text(ctx, formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Not click's way, which imports every verb for its help.
        verbs = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self._verbs[name].summary) for name in verbs), *options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # For commands that start themselves again in other processes.
        ctx.meta["sealbus.arguments"] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from consumers.cli.session import COMMON

            if error.option_name not in COMMON:
                raise
            raise click.UsageError(
                f"{error.option_name} goes behind the command: `{ctx.info_name} tail TOPIC {error.option_name} ...`",
                ctx,
            ) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line.

        Works even if the caller has closed standard streams, or their disk is full.
        """
        open_standard_streams()
        _forget_missing_folders()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # For example a full disk behind the output, or an unreadable input.
            silence_stdout()
            click.echo(f"error: {printable(str(error))}", err=True)
            click.echo("hint: changes made before the error are kept", err=True)
            sys.exit(FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb.

        No bus error leaves this method as a traceback, and no file or stream error leaves `main` as one.
        """
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BusError as error:
            for line in explain_error(error):
                click.echo(line, err=True)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except click.Abort as error:
            # A confirmation is aborted by a no, by the end of the input, or by Ctrl-C.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            silence_stdout()
            ctx.exit(BROKEN_PIPE)
        ctx.exit(code if isinstance(code, int) else 0)


def version_option() -> click.Option:
    """Return the option `--version`."""
    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version and exit.",
    )


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib import metadata

    try:
        version = metadata.version("sealbus")
    except metadata.PackageNotFoundError:
        version = "(not installed: running from a checkout)"
    click.echo(f"sealbus {version}")
    ctx.exit()


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _forget_missing_folders() -> None:
    """Leave a variable of prometheus_client alone where its folder is not there: it is another service's.

    The client would write a file into it for each of our series.
    """
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if name in os.environ and not Path(os.environ[name]).is_dir():
            del os.environ[name]
