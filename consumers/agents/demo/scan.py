"""Look for simple problems in Python source without running it: what the demo's researcher does.

Owns the rules and which files are read. Any tree may be scanned: what cannot be read or parsed is a gap.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from bus.vocabulary.forms import Severity
from bus.vocabulary.review import Finding

__all__ = ["Scanned", "scan"]

_MAX_BYTES: Final = 1_048_576
_MAX_FUNCTION_LINES: Final = 60
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "build", "dist", "__pycache__"})
_MUTABLE: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_Hit: TypeAlias = tuple[Severity, int, str, str]


class Scanned(msgspec.Struct):
    """The findings, the number of files and lines, and the files that could not be read ("FILE: reason" each)."""

    findings: list[Finding] = []
    files: int = 0
    lines: int = 0
    gaps: list[str] = []


def scan(root: Path, base: Path, *, max_files: int = 2_000) -> Scanned:
    """Scan the Python files under *root*, a folder or one file, with names relative to *base*.

    Skips hidden folders, environments, build output and links. Unreadable files do not raise.
    """
    result = Scanned()
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*.py") if _is_wanted(path, root))
    for path in files[:max_files]:
        # Names need not be UTF-8, findings must be.
        name = os.fsencode(path.relative_to(base).as_posix()).decode("utf-8", "replace")
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("larger than 1 MiB")
            source = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes and the like are the foreign code's business
                hits = sorted(_hits(ast.parse(source)))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            result.gaps.append(f"{name}: cannot be parsed: {error}".encode(errors="replace").decode())
            continue
        result.files += 1
        result.lines += len(source.splitlines())
        result.findings += [
            Finding(file=name, line_range=str(line), issue=issue, severity=severity, suggestion=suggestion)
            for severity, line, issue, suggestion in hits
        ]
    if len(files) > max_files:
        result.gaps.append(f"{len(files) - max_files} more files: over the limit of {max_files}")
    return result


def _is_wanted(path: Path, root: Path) -> bool:
    folders = path.relative_to(root).parts[:-1]
    is_skipped = any(name.startswith(".") or name in _SKIPPED_FOLDERS for name in folders)
    return not is_skipped and path.is_file() and not path.is_symlink()


def _hits(tree: ast.Module) -> Iterator[_Hit]:
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=None):
                issue = "bare except also catches KeyboardInterrupt and SystemExit"
                yield "high", node.lineno, issue, "name the exceptions that are expected"
            case ast.arguments():
                for default in [*node.defaults, *node.kw_defaults]:
                    if isinstance(default, _MUTABLE):
                        issue = "a mutable default is shared by all calls"
                        yield "high", default.lineno, issue, "default to None and make the object inside"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > _MAX_FUNCTION_LINES:
                    issue = f"{node.name} is {length} lines long"
                    yield "medium", node.lineno, issue, "split it by what its parts decide"
            case ast.Call(func=ast.Name(id="eval" | "exec" as called)):
                issue = f"{called} runs whatever text it is given"
                yield "critical", node.lineno, issue, "parse the input, or look the operation up in a table"
            case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=None)]):
                issue = "compared to None by value, which a class can answer as it likes"
                yield "low", node.lineno, issue, "use `is None` or `is not None`"
