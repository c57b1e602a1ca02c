"""The documents are true: the program in the README runs as written, and every link and file that is named exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from consumers.cli import main as shell

ROOT = Path(__file__).parent.parent


def test_the_agent_of_the_readme_passes_its_own_test(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(# agent\.py\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 1
    program = blocks[0] + "\nimport asyncio\nasyncio.run(test_research())\n"
    (tmp_path / "agent.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES[1:3], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:bus|producers|consumers|config|deploy|tests)/[\w/.-]+)`", page.read_text("utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_fits_on_few_screens() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


def test_the_readme_calls_nothing_missing_that_the_command_line_has() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    section = text[text.index("## What is not there yet") :].partition("\n## ")[0].lower()
    verbs = set(shell.list_commands(click.Context(shell)))
    assert section
    assert {verb for verb in verbs if re.search(rf"\b{verb}\b", section)} == set()
