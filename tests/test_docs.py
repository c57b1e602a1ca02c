"""The pages of `docs/` are true: each Python block runs, page by page, with the tests in it.

A block below `<!-- fragment -->` is only compiled: it is a part of a program that stands elsewhere.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_BLOCK = re.compile(r"(<!-- fragment -->\n)?```python\n(.*?)```", re.DOTALL)


def blocks(page: Path) -> list[tuple[bool, str]]:
    """Whether each block is a fragment, and its code."""
    return [(bool(mark), code) for mark, code in _BLOCK.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for _, code in blocks(page):
        ast.parse(code, page.name)


@pytest.mark.medium
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_a_page_runs(page: Path) -> None:
    code = "\n\n".join(code for is_fragment, code in blocks(page) if not is_fragment)
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, page.name, "exec"), module.__dict__)  # noqa: S102 - the page itself
        tests = [function for name, function in vars(module).items() if name.startswith("test_")]
        assert tests, "a page without a test shows nothing"
        for function in tests:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(result)
    finally:
        del sys.modules[module.__name__]


EXAMPLES = [
    *((page.name, code) for page in (*PAGES, DOCS.parent / "README.md") for _, code in blocks(page)),
]


def test_every_type_of_a_page_says_whether_it_asks_or_informs() -> None:
    silent = [
        f"{name}: {ast.unparse(call)}"
        for name, code in EXAMPLES
        for call in ast.walk(ast.parse(code))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "payload"
        and not any(keyword.arg == "performative" for keyword in call.keywords)
    ]
    assert len(EXAMPLES) > len(PAGES)
    assert silent == []


def test_every_page_is_listed() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    assert [page.name for page in PAGES if page.name != "index.md" and f"({page.name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_verb_that_a_page_names_exists(page: Path) -> None:
    from consumers.cli import main

    named = set(re.findall(r"(?:^\$ |`)sealbus ([a-z]+)", page.read_text("utf-8"), re.MULTILINE))
    assert named <= set(main.list_commands(None))
