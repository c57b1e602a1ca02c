"""`sealbus types list|show`: message types and their schemas.

Owns displaying them. The types are in `bus.vocabulary` and the user's app, examples in
`consumers.cli.io.payload_examples`.
"""

from __future__ import annotations

import click
import msgspec

from bus.errors import UnknownTypeError
from bus.nearest import nearest
from bus.payloads.payload_types import PayloadType
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.payload_examples import example_of
from consumers.cli.io.printing import encode_json, print_json, print_table
from consumers.cli.session import CommandSession, app_of, app_option, registry_of, with_session
from consumers.cli.shell import VerbGroup

__all__ = ["types"]


@click.group(cls=VerbGroup)
def types() -> None:
    """Show message types: the built-in ones, and with --app your own.

    \b
    Examples:
      sealbus types list --app agents:app
      sealbus types show research.request
    """


@types.command("list")
@app_option
@with_session
def list_(session: CommandSession, target: str | None) -> int:
    """List message types with version, risk and fields; optional fields have a question mark.

    \b
    Examples:
      sealbus types list
      sealbus types list --app agents:app --output json
    """
    kinds = sorted(registry_of(app_of(target)), key=lambda kind: kind.name)
    if session.as_json:
        for kind in kinds:
            fields = {field.encode_name: field.required for field in msgspec.structs.fields(kind.cls)}
            required = [name for name, needed in fields.items() if needed]
            print_json(
                {
                    "type": kind.name,
                    "version": kind.version,
                    "risk": kind.risk,
                    "fields": list(fields),
                    "required": required,
                }
            )
    else:
        print_table(
            ("TYPE", "VERSION", "RISK", "FIELDS"),
            [(kind.name, kind.version, kind.risk, _fields(kind)) for kind in kinds],
        )
    return 0


@types.command()
@click.argument("name", metavar="TYPE", shell_complete=complete_types)
@app_option
@with_session
def show(session: CommandSession, name: str, target: str | None) -> int:
    """Show the JSON Schema of a message type, and an example of its data.

    \b
    Examples:
      sealbus types show research.request
      sealbus types show job.run --app agents:app --output json
    """
    registry = registry_of(app_of(target))
    kind = registry.get(name)
    if kind is None:
        raise UnknownTypeError(f"there is no type {name!r}{nearest(name, [known.name for known in registry])}")
    schema = msgspec.json.schema(kind.cls)
    example = example_of(kind)
    if session.as_json:
        print_json(
            {"type": kind.name, "version": kind.version, "risk": kind.risk, "schema": schema, "example": example}
        )
        return 0
    click.echo(
        f"{kind.name} {kind.version}, risk {kind.risk}: {(kind.cls.__doc__ or '').strip().partition(chr(10))[0]}"
    )
    click.echo(msgspec.json.format(encode_json(schema), indent=2).decode())
    if example is not None:
        app = f" --app {target}" if target else ""
        click.echo(f"\nExample:\n  echo '{_shell(encode_json(example).decode())}' | sealbus publish {kind.name}{app}")
    return 0


def _fields(kind: PayloadType) -> str:
    return " ".join(field.encode_name + ("" if field.required else "?") for field in msgspec.structs.fields(kind.cls))


def _shell(text: str) -> str:
    """Escape *text* for a single-quoted shell string."""
    return text.replace("'", "'\\''")
