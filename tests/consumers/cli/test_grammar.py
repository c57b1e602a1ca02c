"""The grammar of the command line: six sections, a closed set of verbs, the same options everywhere, known JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from consumers.cli import main
from consumers.cli.io.output import member_names

MEMBERS = Path(__file__).with_name("json_members.json")
"""The members of each verb's JSON. A change here is a change of what programs of users read."""

VERBS = {
    *("list", "show"),
    *("start", "cancel"),
    *("new", "rotate", "revoke"),
    *("apply", "export"),
    *("approve", "reject", "hook"),
    *("redrive", "dismiss", "add", "remove"),
    *("explain", "test", "query", "verify", "erase", "skip-lost", "upcaster"),
}
SERVICES = {"console", "gateway", "mcp", "metrics", "audit", "outbox", "workflows", "registry"}
GONE = {"--jwks", "--origin", "--mermaid", "--sarif", "--raw", "--reviewed", "--schema", "--checked", "--park"}
COMMON = {"--bus", "--namespace", "-c", "--config", "-v", "--verbose", "-q", "--quiet", "-o", "--output", "--log-level"}
WITHOUT_SESSION = {("new",), ("demo",), ("completion",)}


def leaves(group: click.Group = main, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    context = click.Context(group)
    found: dict[tuple[str, ...], click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found |= leaves(command, (*path, name)) if isinstance(command, click.Group) else {(*path, name): command}
    return found


LEAVES = leaves()


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params if isinstance(parameter, click.Option) for name in parameter.opts}


def test_the_help_fits_one_screen_in_six_sections() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout.splitlines()
    assert len(shown) <= 45
    assert max(map(len, shown)) <= 100
    assert [line.split()[0] for line in shown if line and not line.startswith(" ")] == [
        *("Build", "Messages", "Operate", "Long", "Trust", "Deploy")
    ]


def test_a_leaf_below_a_noun_has_one_of_the_verbs() -> None:
    assert [path for path in LEAVES if len(path) > 2] == []
    below = [path for path in LEAVES if len(path) == 2]
    assert [path for path in below if path[0] != "serve" and path[1] not in VERBS] == []
    assert {path[1] for path in below if path[0] == "serve"} == SERVICES
    assert len(LEAVES) <= 66


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_leaf_has_the_options_that_all_have_and_no_old_ones(path: tuple[str, ...]) -> None:
    options = options_of(LEAVES[path])
    assert options & GONE == set()
    if path not in WITHOUT_SESSION:
        assert options >= COMMON
    if "--yes" in options:
        assert {"--why", "--dry-run"} <= options
    assert "Examples:" in (LEAVES[path].help or "")


def test_the_members_of_json_are_those_that_programs_know() -> None:
    found = {
        " ".join(path): {kind.__name__: member_names(kind) for kind in kinds}
        for path, command in sorted(LEAVES.items())
        if (kinds := getattr(command.callback, "__json_members__", ()))
    }
    assert found == json.loads(MEMBERS.read_text("utf-8")), f"write {MEMBERS.name} anew only if programs may break"


def test_the_help_of_a_leaf_names_the_members_of_its_json() -> None:
    shown = CliRunner().invoke(main, ["dlq", "show", "--help"]).stdout
    assert "Members of the JSON (LetterDetails):" in shown
    assert "value_base64" in shown
