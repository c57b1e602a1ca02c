"""The references say everything that there is, and the site's links are checked."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import sealbus
from bus.settings import loading
from bus.telemetry.metrics import Metrics
from consumers.cli import main as shell
from deploy.site import ROOT, broken_links, main, page_of, references, write_pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return references()


def test_every_setting_metric_verb_and_name_is_there(pages: dict[str, str]) -> None:
    loaded = loading.load(flags={}, env={}, file=None)
    for name, _, _ in loading.describe(loaded):
        assert f"`{name}`" in pages["settings.md"], name
    for family in Metrics().registry.collect():
        assert f"`{family.name}" in pages["metrics-and-alerts.md"]
    for verb in shell.list_commands(None):
        assert f"## sealbus {verb}\n" in pages["cli.md"]
    for name in (*sealbus.__all__, *import_module("sealbus.sagas").__all__, *import_module("sealbus.errors").__all__):
        page = pages["errors-and-reasons.md"] if f"| `{name}`" in pages["errors-and-reasons.md"] else pages["python.md"]
        assert re.search(rf"(## {name}\n)|(\| `{name}`)", page), name


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures are written differently by other Pythons")
def test_the_generated_pages_are_as_the_code_says(pages: dict[str, str]) -> None:
    folder = ROOT / "docs" / "reference"
    old = [name for name, text in pages.items() if (folder / name).read_text("utf-8") != page_of(name, text)]
    assert old == [], "python -m deploy.site --references"


def test_links_out_of_the_documentation_are_left_out_and_all_others_lead_somewhere(tmp_path: Path) -> None:
    write_pages(tmp_path)
    for page in sorted((tmp_path / "docs").rglob("*.md")):
        links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
        assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == [], page


def test_the_navigation_has_every_page_in_its_section(tmp_path: Path) -> None:
    write_pages(tmp_path)
    settings = tomllib.loads((tmp_path / "zensical.toml").read_text("utf-8"))
    sections = {title: pages for entry in settings["project"]["nav"] for title, pages in entry.items()}
    assert list(sections) == ["Start", "Tutorial", "How-to", "Reference", "Explanation"]
    listed = [page for pages in sections.values() for page in ([pages] if isinstance(pages, str) else pages)]
    written = [page.relative_to(tmp_path / "docs").as_posix() for page in (tmp_path / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text(
        '<a href="../">up</a><a href="https://example.org">away</a>', "utf-8"
    )
    (tmp_path / "index.html").write_text('<a href="there/#part">ok</a><a href="gone/">gone</a>', "utf-8")
    assert broken_links(tmp_path) == ["index.html: gone/"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["site", "--check", str(tmp_path)])
        assert main() == 1
    assert "2 pages, 1 links that lead nowhere" in capsys.readouterr().out
