"""The sources as a wheel carries them: everything of ours inside one package, `sealbus`.

In the checkout `bus`, `producers` and `consumers` stand at the top level. Installed under these names they would meet
the folders of the same names that users have. So the wheel holds `sealbus.bus` and so on, as plain files.

Owns rewriting the names by which our modules import each other, by the syntax tree: imports everywhere, and texts in
the files of `_NAMED_IN_TEXTS`. Refuses what it could not rewrite for certain. Does not own collecting files
(`pyproject.toml`), or the rest of a build (`deploy.wheel`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGE", "SourceError", "rewrite", "stage"]

PACKAGE = "sealbus"
_OURS = ("bus", "producers", "consumers")
_FACADE = "sealbus.py"

_NAMED_IN_TEXTS = frozenset({_FACADE, "bus/transports/__init__.py", "consumers/cli/__init__.py"})
"""Where a text names a module to be imported. Elsewhere such a text ends the build."""

_CHECKOUT_ONLY = re.compile(r"^# In a checkout only\b.*?^# In a wheel, too\b[^\n]*\n\n?", re.DOTALL | re.MULTILINE)
_STATEMENT = re.compile(rf"\b(?:from|import)\s+(?:{'|'.join(_OURS)})\b")
_NOQA = re.compile(r"  # noqa: E402[^\n]*")
_MAIN = f'''"""`python -m {PACKAGE}`: the same as the `{PACKAGE}` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The current folder comes first, where a file may have the name of a module of Python.
        sys.path.append(sys.path.pop(0))
    from {PACKAGE}.consumers.cli import main

    main(prog_name="{PACKAGE}")
'''


class SourceError(Exception):
    """A source that cannot be rewritten for certain: where, and what to write instead."""


class _Edit(NamedTuple):
    """*text* is put in at *place*, an offset in bytes."""

    place: int
    text: str


def stage(root: Path, folder: Path) -> dict[Path, str]:
    """Write into *folder* what a wheel has otherwise than the checkout at *root*.

    Returns each file with its path inside the wheel. Raises SourceError.
    """
    sources = [
        path for name in _OURS for path in sorted((root / name).rglob("*.py*")) if path.suffix in (".py", ".pyi")
    ]
    modules = frozenset(_module(path.relative_to(root)) for path in sources)
    texts = {f"{PACKAGE}/__main__.py": _MAIN, f"{PACKAGE}/py.typed": ""}
    for path in sources:
        place = path.relative_to(root).as_posix()
        texts[f"{PACKAGE}/{place}"] = rewrite(path.read_text("utf-8"), place, modules)
    texts[f"{PACKAGE}/__init__.py"] = _facade((root / _FACADE).read_text("utf-8"), modules)
    staged = {}
    for place, text in texts.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        staged[target] = place
    return staged


def rewrite(source: str, place: str, modules: frozenset[str]) -> str:
    """Return *source*, the file at *place* in the checkout, with our *modules* named as in a wheel.

    Raises SourceError.
    """
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    rewriting = _Rewriting(data, starts, place, modules)
    for edit in sorted(rewriting.edits(ast.parse(data, place)), reverse=True):
        data = data[: edit.place] + edit.text.encode() + data[edit.place :]
    return data.decode()


def _facade(source: str, modules: frozenset[str]) -> str:
    """Return `sealbus.py` as the package's `__init__`, which runs before any of its modules, the command line's too."""
    source, cuts = _CHECKOUT_ONLY.subn("", source)
    if cuts != 1:
        raise SourceError(f"{_FACADE} has {cuts} parts marked as for a checkout only, expected one")
    return rewrite(_NOQA.sub("", source), _FACADE, modules)


class _Rewriting:
    """The edits of one file."""

    def __init__(self, data: bytes, starts: list[int], place: str, modules: frozenset[str]) -> None:
        self._data = data
        self._starts = starts
        self._place = place
        self._modules = modules

    def edits(self, tree: ast.Module) -> Iterator[_Edit]:
        """Every change to the file, in no order."""
        # Docstrings, and the parts of f-strings, whose places Python 3.11 does not tell.
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                yield from self._from(node)
            elif isinstance(node, ast.Import):
                yield from self._import(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield from self._text(node, node.value, inside=id(node) in parts)

    def _from(self, node: ast.ImportFrom) -> Iterator[_Edit]:
        module = node.module or ""
        if node.level or module.partition(".")[0] not in _OURS:
            return
        start = self._offset(node.lineno, node.col_offset)
        found = re.compile(rb"from[ \t]+" + re.escape(module.encode()) + rb"[ \t]").match(self._data, start)
        if found is None:
            raise self._error(node, f"write `from {module} import` on one line")
        yield _Edit(found.end() - len(module) - 1, f"{PACKAGE}.")

    def _import(self, node: ast.Import) -> Iterator[_Edit]:
        for alias in node.names:
            if alias.name.partition(".")[0] not in _OURS:
                continue
            start = self._offset(alias.lineno, alias.col_offset)
            yield _Edit(start, f"{PACKAGE}.")
            if alias.asname is None:
                if "." in alias.name:
                    raise self._error(node, f"write `import {alias.name} as ...` or `from ... import`")
                yield _Edit(start + len(alias.name), f" as {alias.name}")

    def _text(self, node: ast.Constant, text: str, *, inside: bool) -> Iterator[_Edit]:
        """A text that names a module alone, or with what is wanted of it: `consumers.cli.demo.agents:writer`."""
        if _STATEMENT.search(text):
            raise self._error(node, "a text holds an import of ours; use `__name__` for the module")
        name = text.partition(":")[0]
        if "." not in name or name not in self._modules:
            return
        if inside or self._place not in _NAMED_IN_TEXTS:
            raise self._error(node, f"a text names the module {name}; use its `__name__`, or _NAMED_IN_TEXTS")
        start = self._offset(node.lineno, node.col_offset)
        if self._data[start + 1 : start + 1 + len(text)] != text.encode():
            raise self._error(node, f"write {name} as one plain text")
        yield _Edit(start + 1, f"{PACKAGE}.")

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _error(self, node: ast.stmt | ast.expr, why: str) -> SourceError:
        return SourceError(f"{self._place}:{node.lineno}: {why}")


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
