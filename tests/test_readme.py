"""The first page is true: its agent passes its own test, its first screen shows what matters, each link leads on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import PAGES, README, ROOT, name_of, project_files


def test_the_agent_of_the_readme_passes_its_own_test(tmp_path: Path) -> None:
    files = project_files(README)
    assert set(files) == {"agent.py", "test_agent.py", "ask.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    url = f"sqlite:///{tmp_path}/desk.db"
    program = (
        "import asyncio\n"
        "from agent import Answer, app\n"
        "from ask import ask\n"
        "from test_agent import test_a_question_is_answered\n"
        "async def main():\n"
        "    await test_a_question_is_answered()\n"
        f"    async with app.running({url!r}):\n"
        f"        assert 'networks' in (await ask({url!r})).text\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


LINKED = [README, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *PAGES]


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", LINKED[1:3], ids=name_of)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:bus|producers|consumers|config|deploy|tests|docs)/[\w/.-]+)`", page.read_text("utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


NAMING = [
    path
    for folder in ("bus", "producers", "consumers", "sealbus", "config", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".toml", ".yaml", ".md", ".tmpl"} and "vectors" not in path.parts
]


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in NAMING
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {(path, page) for path, page in named if not (ROOT / page).exists()} == set()


def test_the_first_screen_shows_an_agent_its_test_a_failure_a_person_and_kafka() -> None:
    screen = "\n".join(README.read_text("utf-8").splitlines()[:80])
    headings = re.findall(r"^## (.*)$", screen, re.MULTILINE)
    assert headings == ["Start", "The agent", "Its test", "When it fails", "A person decides", "On Kafka"]
    assert "sealbus topic apply" in screen


def test_the_readme_fits_on_few_screens() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []
    assert any("on Windows use WSL" in line for line in lines)
