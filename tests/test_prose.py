"""Pages, settings and texts of the program in plain words. The budgets only fall; each hit is one to write better."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.documents import PAGES, README, ROOT

WORDS = {
    "is no X": r"\b(is|are|was) no (?!longer|more|one\b)[a-z]+",
    "a clause as subject": (
        r"(?:^|[.:;] )(Whoever|Who|What|Whose) [a-z ]{3,60}?(is|are|may|can|has|says|dies|holds|comes)\b"
    ),
    "anew": r"\banew\b",
    "mend": r"\bmend(s|ed|ing)?\b",
    "bury": r"\bbur(y|ies|ied)\b",
    "lies, stands": r"\b(lies|stands|lie|stand) (in|at|there|beside|behind|twice|only|under)\b",
    "holds, for is valid": r"\b(does not hold|holds\b(?! (a|the|up|one|data|jwks|its)))",
    "believed, proven": r"\b(believed|unproven|proven)\b",
    "by itself": r"\bby itself\b",
    "nobody": r"\b(nobody|anybody|somebody)\b",
    "told": r"\b(told|tells)\b",
    "says": r"\bsays?\b",
    "put away": r"\b(put|set|sent)s? (them |it |what is )?(aside|away)\b",
    "letter, for dead letter": r"(?<!dead )(?<!dead-)\bletters?\b",
    "for ever": r"\b(meanwhile|by now|for ever)\b",
    "stranger": r"\bstrangers?\b",
}
PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS.values()), re.MULTILINE)
SOURCES = sorted(path for room in ("bus", "producers", "consumers", "sealbus") for path in (ROOT / room).rglob("*.py"))
MAX_IN_DOCUMENTS, MAX_IN_TEXTS = 15, 40


def prose_of_documents() -> Iterator[tuple[str, str]]:
    for file in (*PAGES, README, ROOT / "config" / "default.toml"):
        inside = False
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            inside ^= line.startswith("```")
            if not inside:
                yield f"{file.relative_to(ROOT)}:{number}", line


def texts_of_the_program() -> Iterator[tuple[str, str]]:
    """Yield the strings with a space that are no docstrings, and the helps of commands."""
    for file in SOURCES:
        tree = ast.parse(file.read_text("utf-8"))
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        bare -= {id(text) for node in ast.walk(tree) if (text := help_of_a_command(node)) is not None}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in bare:
                continue
            if " " in node.value:
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value


def help_of_a_command(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not isinstance(node.body[0], ast.Expr):
        return None
    marked = any(re.search("command|group", ast.dump(each)) for each in node.decorator_list)
    return node.body[0].value if marked else None


@pytest.mark.parametrize(
    ("texts", "budget"),
    [(prose_of_documents, MAX_IN_DOCUMENTS), (texts_of_the_program, MAX_IN_TEXTS)],
    ids=["documents", "texts"],
)
def test_the_words_of_the_past_become_fewer(texts: Callable[[], Iterator[tuple[str, str]]], budget: int) -> None:
    hits = [f"{place}: {found[0]}" for place, text in texts() for found in PATTERN.finditer(text)]
    assert len(hits) <= budget, "\n".join(hits)
    assert len(hits) == budget, f"the budget falls to {len(hits)}"


@pytest.mark.parametrize("word", ["A stranger may read it.", "It is no agent.", "Whoever has the key may sign."])
def test_such_words_are_found(word: str) -> None:
    assert PATTERN.search(word)
