"""The page of the documents about one framework: its program runs, and shows what it says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[4] / "docs"
EXTRA = {"openai_agents": "openai", "pydantic_ai": "pydantic-ai", "langgraph": "langgraph"}[os.environ["RIG"]]
BLOCK = re.compile(rf"<!-- runs with: {EXTRA} -->\n```python\n(.*?)```", re.DOTALL)


async def test_the_program_of_the_page_runs() -> None:
    programs = [(page, text) for page in DOCS.rglob("*.md") for text in BLOCK.findall(page.read_text("utf-8"))]
    assert programs
    for page, text in programs:
        module = ModuleType(f"page_{page.stem.replace('-', '_')}")
        sys.modules[module.__name__] = module
        exec(compile(text, page.name, "exec"), module.__dict__)  # noqa: S102 - the page itself
        tests = [function for name, function in vars(module).items() if name.startswith("test_")]
        assert tests
        for function in tests:
            await function()
