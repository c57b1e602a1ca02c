"""The documentation as a site: the pages of `docs/`, and references read from the code.

    python -m deploy.site build/docs         # pages and references, and the settings of the site's generator
    python -m deploy.site --check build/site # exit 1 where a link of the built site leads nowhere

`make docs` does both, with zensical in between. Owns what the references say; nothing in them is written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from bus.payloads.payload_types import PayloadType

__all__ = ["broken_links", "main", "references", "write_pages"]

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^\[(\w+)\]")
_SETTING = re.compile(r"^(\w+) = (.+)$")
_CONFIG = """
[project]
site_name = "sealbus"
site_description = "A message bus for software agents"
docs_dir = "docs"
site_dir = "site"
"""


def references() -> dict[str, str]:
    """Return the reference pages: file name -> text."""
    return {
        "settings.md": _settings((ROOT / "config" / "default.toml").read_text("utf-8")),
        "metrics.md": _metrics(),
        "command-line.md": _command_line(),
        "errors.md": _errors(),
        "python.md": _python(),
        "vocabulary.md": _vocabulary(),
    }


def write_pages(folder: Path) -> None:
    """Write the site's sources below *folder*."""
    pages, made = folder / "docs", references()
    (pages / "reference").mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "docs" / "pictures", pages / "pictures", dirs_exist_ok=True)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        # What lies outside `docs/` is not part of the site.
        text = _without_outer_links(page)
        if page.name == "index.md":
            text += "\n" + "".join(f"- [{_title(text)}](reference/{name})\n" for name, text in made.items())
        (pages / page.name).write_text(text, "utf-8")
    for name, text in made.items():
        (pages / "reference" / name).write_text(text, "utf-8")
    (folder / "zensical.toml").write_text(_CONFIG, "utf-8")


def broken_links(site: Path) -> list[str]:
    """Return `page: link` for each link between the pages of *site* that leads nowhere."""
    broken = []
    for page in sorted(site.rglob("*.html")):
        for link in _links(page.read_text("utf-8")):
            path = unquote(urlsplit(link).path)
            if urlsplit(link).scheme or urlsplit(link).netloc or not path:
                continue
            target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
            if not (target.is_file() or (target / "index.html").is_file()):
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


def main() -> int:
    """Write the sources, or check the built site; return the exit code."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="check the links of a built site")
    options = parser.parse_args()
    if not options.check:
        write_pages(options.folder)
        return 0
    broken = broken_links(options.folder)
    pages = len(list(options.folder.rglob("*.html")))
    print(*broken, f"{pages} pages, {len(broken)} links that lead nowhere", sep="\n")  # noqa: T201 - a program
    return 1 if broken or not pages else 0


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if value and (tag, name) in {("a", "href"), ("img", "src")}]


def _links(html: str) -> list[str]:
    parser = _Links()
    parser.feed(html)
    return parser.found


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _settings(defaults: str) -> str:
    """Return a table for each section of the default settings, with the comments above each."""
    lines = ["# Settings", "", "Each may be set by a flag of some commands, a variable, or a TOML file, in this order."]
    comments: list[str] = []
    section = ""
    for line in defaults.splitlines():
        if line.startswith("#"):
            comments.append(line.lstrip("# "))
        elif found := _SECTION.match(line):
            section, comments = found[1], []
            lines += ["", f"## {section}", "", "| setting | variable | default | |", "|---|---|---|---|"]
        elif found := _SETTING.match(line):
            name, default = found[1], found[2].partition("  #")[0]
            variable = f"`SEALBUS_{section.upper()}__{name.upper()}`"
            lines.append(f"| `{section}.{name}` | {variable} | `{_cell(default)}` | {_cell(' '.join(comments))} |")
            comments = []
        else:
            comments = []
    return "\n".join(lines) + "\n"


def _metrics() -> str:
    from prometheus_client import Counter
    from prometheus_client.metrics import MetricWrapperBase

    from bus.telemetry.metrics import Metrics

    metrics = Metrics()
    labels: dict[str, tuple[str, ...]] = {
        value._name: value._labelnames  # noqa: SLF001 - the library has no other way to ask
        for value in vars(metrics).values()
        if isinstance(value, MetricWrapperBase)
    }
    lines = ["# Metrics", "", "`sealbus run --metrics-port 9100` serves them.", "", "| series | type | labels | |"]
    lines.append("|---|---|---|---|")
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == Counter._type else family.name  # noqa: SLF001
        of = ", ".join(f"`{label}`" for label in labels.get(family.name, ()))
        lines.append(f"| `{name}` | {family.type} | {of} | {_cell(family.documentation)} |")
    return "\n".join(lines) + "\n"


def _command_line() -> str:
    from consumers.cli import main as shell

    lines = ["# Command line", ""]
    for names, command, context in _commands(shell, click.Context(shell, info_name="sealbus")):
        lines += [
            f"{'#' * min(6, len(names) + 1)} {' '.join(names)}",
            "",
            "```text",
            command.get_help(context),
            "```",
            "",
        ]
    return "\n".join(lines)


def _commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    yield context.command_path.split(), command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _commands(inner, click.Context(inner, info_name=name, parent=context))


def _errors() -> str:
    import sealbus
    from bus import errors

    drawn = inspect.getdoc(errors) or ""
    lines = ["# Errors", "", "```text", drawn, "```", "", "| error | retriable | |", "|---|---|---|"]
    modules = (sealbus, import_module("sealbus.sagas"), import_module("sealbus.errors"))
    for found in (getattr(module, name) for module in modules for name in module.__all__):
        if isinstance(found, type) and issubclass(found, Exception):
            name = found.__name__
            retriable = "yes" if getattr(found, "retriable", False) else "no"
            lines.append(f"| `{name}` | {retriable} | {_cell((inspect.getdoc(found) or '').partition(chr(10))[0])} |")
    return "\n".join(lines) + "\n"


def _python() -> str:
    import sealbus

    lines = ["# Python", "", "What `from sealbus import ...` offers, and then each module.", ""]
    for name in sealbus.__all__:
        lines += _name_lines(name, getattr(sealbus, name))
    for subject in sorted(info.name for info in pkgutil.iter_modules(sealbus.__path__)):
        if subject in ("__main__", "errors", "vocabulary"):  # the last two have pages of their own
            continue
        module = import_module(f"sealbus.{subject}")
        lines += [f"# sealbus.{subject}", "", inspect.getdoc(module) or "", ""]
        for name in module.__all__:
            lines += _name_lines(name, getattr(module, name))
    return "\n".join(lines)


def _name_lines(name: str, found: Any) -> list[str]:
    if isinstance(found, type) and issubclass(found, Exception):
        return []
    if not callable(found):
        return [f"## {name}", "", f"`{found!r}`", ""]
    lines = [f"## {name}", "", *_described(name, found)]
    if isinstance(found, type):
        for member, value in sorted(vars(found).items()):
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                lines += [f"### {name}.{member}", "", *_described(member, value)]
    return lines


def _vocabulary() -> str:
    """Return every type with its fields, the parts that types share, and what error codes mean."""
    from bus.schemas.field_forms import part_rows
    from bus.vocabulary import FAMILIES, error_codes, older_types, parts, types_of

    lines = ["# Message types", ""]
    for family in FAMILIES:
        lines += [f"## {family}", ""]
        for kind in types_of(family):
            lines += _type_lines(kind)
    lines += ["## Older versions, read and not written any more", ""]
    for kind in older_types():
        lines += _type_lines(kind)
    lines += ["## Parts of several types", ""]
    for name in sorted(parts.__all__):
        part = getattr(parts, name)
        lines += [f"### {name}", "", inspect.getdoc(part) or "", "", *_field_table(part_rows(part)), ""]
    lines += ["## Error codes", "", "| code | class | retry | HTTP | A2A |", "|---|---|---|---|---|"]
    for code, row in error_codes.ERROR_CODES.items():
        retried = "yes" if row.is_retryable else "no"
        lines.append(f"| `{code}` | `{row.error_class}` | {retried} | {row.http_status} | {row.a2a} |")
    return "\n".join(lines) + "\n"


def _type_lines(kind: PayloadType) -> list[str]:
    from bus.payloads.envelope_terms import ByField
    from bus.schemas.field_forms import field_rows
    from bus.vocabulary.machines import machines_of

    kind.resolve()
    terms, said = kind.terms, kind.terms.performative
    spoken = f"{' or '.join(said.words)}, by its data" if isinstance(said, ByField) else said
    lifetime = (
        " and ".join(f"{option} from {field}" for option, field in terms.options_from.items()) or f"{terms.ttl_s} s"
    )
    changes = kind.side_effect or "what its data say"
    resource = f" at `{kind.resource}`" if kind.resource else ""
    said_of_it = (
        f"Says {spoken}",
        f"risk {kind.risk}",
        f"lives {lifetime}",
        f"needs {', '.join(terms.required_options) or 'nothing'}",
        f"asks to change {changes}{resource}",
        f"moves {', '.join(machines_of(kind.name)) or 'none'}",
    )
    return [
        f"### {kind.name} {kind.version}",
        "",
        inspect.getdoc(kind.cls) or "",
        "",
        "; ".join(said_of_it) + ".",
        "",
        *_field_table(field_rows(kind)),
        "",
        *(f"- {rule.text}" for rule in kind.rules),
        "",
    ]


def _field_table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    return [
        "| field | form | default | meaning |",
        "|---|---|---|---|",
        *("| " + " | ".join(map(_cell, row)) + " |" for row in rows),
    ]


def _described(name: str, found: Any) -> list[str]:
    signature = ""
    if not isinstance(found, property):
        try:
            signature = str(inspect.signature(found)).replace("self, ", "").replace("(self)", "()")
        except (TypeError, ValueError):
            signature = "(...)"
    text = inspect.getdoc(found) or ""
    return ["```python", f"{name}{signature}", "```", "", "```text", text, "```", ""]


if __name__ == "__main__":
    sys.exit(main())
