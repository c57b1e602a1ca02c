"""The documentation as a site: the pages of `docs/`, and references read from the code.

    python -m deploy.site --references       # write the generated part of the pages in docs/reference
    python -m deploy.site build/docs         # all pages, and the settings of the site's generator
    python -m deploy.site --check build/site # exit 1 where a link of the built site leads nowhere

`make docs` does the last two, with zensical in between. A generated page is an introduction written by hand, the line
`MARK`, and what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from bus.payloads.payload_types import PayloadType

__all__ = ["MARK", "broken_links", "main", "page_of", "references", "write_pages", "written_pages"]

ROOT = Path(__file__).parents[1]
MARK = "<!-- below: python -m deploy.site --references -->"
_REFERENCE = ROOT / "docs" / "reference"
_PROMETHEUS = ROOT / "deploy" / "prometheus"
_WIDTH = 100  # of the helps of commands
_SECTIONS = {"tutorial": "Tutorial", "how-to": "How-to", "reference": "Reference", "explanation": "Explanation"}
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
    """Return the generated part of each reference page: file name -> text."""
    return {
        "cli.md": _command_line(),
        "settings.md": _settings((ROOT / "config" / "default.toml").read_text("utf-8")),
        "python.md": _python(),
        "errors-and-reasons.md": _errors_and_reasons(),
        "metrics-and-alerts.md": _metrics_and_alerts(),
        "message-types.md": _vocabulary(),
    }


def page_of(name: str, generated: str) -> str:
    """Return the page *name* of `docs/reference`: its introduction as it is, and the *generated* part."""
    introduction = (_REFERENCE / name).read_text("utf-8").partition(MARK)[0].rstrip()
    return f"{introduction}\n\n{MARK}\n\n{generated.strip()}\n"


def written_pages() -> list[Path]:
    """Return every page of `docs/`."""
    return sorted((ROOT / "docs").rglob("*.md"))


def write_pages(folder: Path) -> None:
    """Write the site's sources below *folder*."""
    generated = references()
    shutil.copytree(ROOT / "docs" / "pictures", folder / "docs" / "pictures", dirs_exist_ok=True)
    for page in written_pages():
        text = page_of(page.name, generated[page.name]) if page.name in generated else page.read_text("utf-8")
        target = folder / "docs" / page.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_without_outer_links(text, page), "utf-8")
    (folder / "zensical.toml").write_text(_CONFIG + _navigation(), "utf-8")


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
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true", help="check the links of a built site")
    parser.add_argument("--references", action="store_true", help="write the generated pages of docs/reference")
    options = parser.parse_args()
    if options.references:
        for name, text in references().items():
            (_REFERENCE / name).write_text(page_of(name, text), "utf-8")
        return 0
    if options.folder is None:
        parser.error("name the folder of the site")
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


def _navigation() -> str:
    """Return the site's sections, with the pages of each in the order of `index.md`."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = list(dict.fromkeys(re.findall(r"\]\(([\w./-]+\.md)\)", index)))
    sections = [
        f'  {{"{title}" = {[page for page in linked if page.startswith(f"{folder}/")]}}},'.replace("'", '"')
        for folder, title in _SECTIONS.items()
    ]
    return "\n".join(["nav = [", '  {"Start" = "index.md"},', *sections, "]", ""])


def _without_outer_links(text: str, page: Path) -> str:
    """Return *text* with links only to what is part of the site: files below `docs/`."""

    def kept(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        inside = "://" in target or not target or (page.parent / target).resolve().is_relative_to(ROOT / "docs")
        return link[0] if inside else link[1]

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)]*)\)", kept, text)


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _settings(defaults: str) -> str:
    """Return a table for each section of the default settings, with the comments above each."""
    lines: list[str] = []
    comments: list[str] = []
    section = ""
    for line in defaults.splitlines():
        if line.startswith("#"):
            comments.append(line.lstrip("# "))
        elif found := _SECTION.match(line):
            section, comments = found[1], []
            lines += ["", f"### {section}", "", "| setting | variable | default | |", "|---|---|---|---|"]
        elif found := _SETTING.match(line):
            name, default = found[1], found[2].partition("  #")[0]
            variable = f"`SEALBUS_{section.upper()}__{name.upper()}`"
            lines.append(f"| `{section}.{name}` | {variable} | `{_cell(default)}` | {_cell(' '.join(comments))} |")
            comments = []
        else:
            comments = []
    return "\n".join(lines) + "\n"


def _metrics_and_alerts() -> str:
    from bus.telemetry.metrics import Metrics
    from bus.telemetry.own_process import register_own_process
    from consumers.gateway.metrics import GatewayMetrics
    from consumers.operations.audit.metrics import AuditMetrics
    from consumers.operations.survey.exporter import SurveyCollector

    metrics, audit, gateway = Metrics(), AuditMetrics(), GatewayMetrics()
    register_own_process(metrics.registry)
    lines = ["## Workers and publishers", "", "`sealbus run --metrics-port`.", ""]
    lines += _series(list(metrics.registry.collect()), _labels(metrics))
    lines += ["", "## The namespace", "", "`sealbus serve metrics`.", ""]
    lines += _series(list(SurveyCollector("agents").collect()), {})
    lines += ["", "## The audit", "", "`sealbus serve audit --metrics-port`.", ""]
    lines += _series(list(audit.registry.collect()), _labels(audit))
    lines += ["", "## The gateway", "", "`sealbus serve gateway --metrics-port`, beside those of its worker.", ""]
    lines += _series(list(gateway.registry.collect()), _labels(gateway))
    return "\n".join([*lines, "", "## Run book", "", *_run_book()]) + "\n"


def _labels(metrics: object) -> dict[str, tuple[str, ...]]:
    from prometheus_client.metrics import MetricWrapperBase

    return {
        value._name: value._labelnames  # noqa: SLF001 - the library has no other way to ask
        for value in vars(metrics).values()
        if isinstance(value, MetricWrapperBase)
    }


def _series(families: list[Any], labels: dict[str, tuple[str, ...]]) -> list[str]:
    lines = ["| series | type | labels | |", "|---|---|---|---|"]
    for family in sorted(families, key=lambda family: str(family.name)):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        known = labels.get(family.name) or getattr(family, "_labelnames", None) or ()
        of = ", ".join(f"`{label}`" for label in known)
        lines.append(f"| `{name}` | {family.type} | {of} | {_cell(family.documentation)} |")
    return lines


def _run_book() -> list[str]:
    """Return the entries of run-book.toml, one for each alert of rules.yaml."""
    book = tomllib.loads((_PROMETHEUS / "run-book.toml").read_text("utf-8"))
    lines: list[str] = []
    for name, entry in book.items():
        lines += [f"### {name}", "", f"- **Alert**, for example: {entry['says']}"]
        lines += [f"- **{part.capitalize()}**: {entry[part]}" for part in ("cause", "check", "fix")]
        lines.append("")
    return lines


def _command_line() -> str:
    from consumers.cli import main as shell

    lines: list[str] = []
    settings = {**shell.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    top = click.Context(shell, info_name="sealbus", **settings)
    for names, command, context in _commands(shell, top):
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


def _errors_and_reasons() -> str:
    import sealbus
    from bus import errors
    from bus.protocol.reasons import REASON_TABLE
    from bus.vocabulary import error_codes

    lines = ["## Reasons", "", "| check | reason | accepted is | fix | HTTP | A2A |", "|---|---|---|---|---|---|"]
    for gate, reasons in REASON_TABLE.items():
        if not reasons:
            lines.append(f"| {gate} | | a message for this agent; others are skipped and counted | | | |")
        lines += [
            f"| {gate} | `{reason.name}` | {_cell(reason.expected)} | {_cell(reason.cure)} "
            f"| {reason.meaning.http_status} | {reason.meaning.a2a} |"
            for reason in reasons
        ]
    lines += ["", "## Exceptions", "", "```text", inspect.getdoc(errors) or "", "```", ""]
    lines += ["| exception | retriable | |", "|---|---|---|"]
    modules = (sealbus, import_module("sealbus.sagas"), import_module("sealbus.errors"))
    for found in (getattr(module, name) for module in modules for name in module.__all__):
        if isinstance(found, type) and issubclass(found, Exception):
            name = found.__name__
            retriable = "yes" if getattr(found, "retriable", False) else "no"
            lines.append(f"| `{name}` | {retriable} | {_cell((inspect.getdoc(found) or '').partition(chr(10))[0])} |")
    lines += ["", "## Codes of `error.reported`", "", "| code | class | retry | HTTP | A2A |", "|---|---|---|---|---|"]
    for code, row in error_codes.ERROR_CODES.items():
        retried = "yes" if row.is_retryable else "no"
        lines.append(f"| `{code}` | `{row.error_class}` | {retried} | {row.http_status} | {row.a2a} |")
    return "\n".join(lines) + "\n"


def _python() -> str:
    import sealbus

    lines = ["## sealbus", ""]
    for name in sealbus.__all__:
        lines += _name_lines(name, getattr(sealbus, name))
    for subject in sorted(info.name for info in pkgutil.iter_modules(sealbus.__path__)):
        if subject in ("__main__", "errors", "vocabulary"):  # the last two have pages of their own
            continue
        module = import_module(f"sealbus.{subject}")
        lines += [f"## sealbus.{subject}", "", inspect.getdoc(module) or "", ""]
        for name in module.__all__:
            lines += _name_lines(name, getattr(module, name))
    return "\n".join(lines)


def _name_lines(name: str, found: Any) -> list[str]:
    if isinstance(found, type) and issubclass(found, Exception):
        return []
    if inspect.ismodule(found):
        lines = [f"### {name}", "", inspect.getdoc(found) or "", ""]
        for member in found.__all__:
            lines += [f"#### {name}.{member}", "", *_described(member, getattr(found, member))]
        return lines
    if not callable(found):
        return [f"### {name}", "", f"`{found!r}`", ""]
    lines = [f"### {name}", "", *_described(name, found)]
    if isinstance(found, type):
        for member, value in sorted(vars(found).items()):
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                lines += [f"#### {name}.{member}", "", *_described(member, value)]
    return lines


def _vocabulary() -> str:
    """Return every type with its fields, and the parts that types share."""
    from bus.schemas.field_forms import part_rows
    from bus.vocabulary import FAMILIES, older_types, parts, types_of

    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"## {family}", ""]
        for kind in types_of(family):
            lines += _type_lines(kind)
    lines += ["## Older versions", "", "They are read and not written any more.", ""]
    # Modules are read in any order.
    for kind in sorted(older_types(), key=lambda kind: (kind.name, kind.version)):
        lines += _type_lines(kind)
    lines += ["## Parts of several types", ""]
    for name in sorted(parts.__all__):
        part = getattr(parts, name)
        lines += [f"### {name}", "", inspect.getdoc(part) or "", "", *_field_table(part_rows(part)), ""]
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
    said_of_it = (
        f"kind: {spoken}",
        f"risk: {kind.risk}",
        f"lifetime: {lifetime}",
        f"requires: {', '.join(terms.required_options) or 'nothing'}",
        f"side effect: {kind.side_effect or 'by its data'}" + (f" at `{kind.resource}`" if kind.resource else ""),
        f"states: {', '.join(machines_of(kind.name)) or 'none'}",
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
            signature = _signature(found).replace("self, ", "").replace("(self)", "()")
        except (TypeError, ValueError):
            signature = "(...)"
    text = inspect.getdoc(found) or ""
    return ["```python", f"{name}{signature}", "```", "", "```text", text, "```", ""]


class _Written(str):
    """An annotation as it is written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(found: Any) -> str:
    signature = inspect.signature(found)

    def bare(annotation: Any) -> Any:
        return _Written(annotation) if isinstance(annotation, str) else annotation

    parameters = [each.replace(annotation=bare(each.annotation)) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=bare(signature.return_annotation)))
    return re.sub(r"<(?:function )?[\w.<>]+(?: object)? at 0x[0-9a-f]+>", "...", text)


if __name__ == "__main__":
    sys.exit(main())
