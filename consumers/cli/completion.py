"""`sealbus completion bash|zsh|fish`: the script by which a shell completes `sealbus` commands.

Owns printing it; click owns the scripts, and `consumers.cli.io.known_names` what is completed besides commands and
options.
"""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from consumers.cli.io.parameter_types import OneOf
from consumers.cli.shell import Command

__all__ = ["completion"]

_NAME: Final = "sealbus"
_VARIABLE: Final = "_SEALBUS_COMPLETE"


@click.command(cls=Command)
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the script by which SHELL (bash, zsh or fish) completes sealbus at the Tab key.

    It completes commands, options and their choices; message types, topics and groups of an embedded log; and the names
    of settings. It reads the log that --bus, SEALBUS_BUS__URL or sealbus.db in the current directory names, for at most
    a second, and never a Kafka.

    For good, write the script where your shell (bash 4.4 or newer, zsh, fish) reads it, and open a new shell.

    \b
    Examples:
      eval "$(sealbus completion bash)"             for this shell only
      sealbus completion bash > ~/.sealbus-completion && echo '. ~/.sealbus-completion' >> ~/.bashrc
      sealbus completion zsh > ~/.sealbus-completion && echo '. ~/.sealbus-completion' >> ~/.zshrc
      sealbus completion fish > ~/.config/fish/completions/sealbus.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click knows no completion for {shell}")
    script = kind(ctx.find_root().command, {}, _NAME, _VARIABLE)
    # Not source(): click starts a bash there to ask for its version.
    click.echo(script.source_template % script.source_vars())
    return 0
