"""Static findings in Python source, for the demo's agents to talk about.

Owns which files are read, five rules, and their findings with exact lines. Foreign source is only parsed, never
imported or run; a file that cannot be parsed is a gap with its reason.
"""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["ScanFinding", "ScanResult", "Severity", "scan"]

Severity: TypeAlias = Literal["low", "medium", "high", "critical"]

_MAX_BYTES: Final = 1_048_576
_MAX_FUNCTION_LINES: Final = 60
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "build", "dist", "__pycache__"})
_MUTABLE: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_RULES: Final[dict[str, tuple[Severity, str]]] = {
    "bare-except": ("high", "name the exceptions that are expected"),
    "mutable-default": ("high", "default to None and make the object inside"),
    "long-function": ("medium", "split it by what its parts decide"),
    "eval-or-exec": ("critical", "parse the input, or look the operation up in a table"),
    "none-comparison": ("low", "use `is None` or `is not None`"),
}


class ScanFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: *file* with forward slashes and relative to the scanned folder, *line* from 1."""

    file: str
    line: int
    rule: str
    issue: str
    severity: Severity
    suggestion: str


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings by file, line and rule, and what was read.

    That is: the numbers of parsed files and lines, and the gaps ("FILE: reason" each).
    """

    findings: tuple[ScanFinding, ...]
    files_scanned: int
    lines: int
    gaps: tuple[str, ...]


def scan(root: Path, *, max_files: int = 2000) -> ScanResult:
    """Return the findings in the Python files under *root*, a folder or one file; deterministic for the same tree.

    Skips hidden folders, environments, build output, symbolic links and special files. Files larger than 1 MiB, files
    beyond the first *max_files*, and files that cannot be read or parsed are gaps. Raises nothing for what it finds on
    the disk.
    """
    files, gaps = _python_files(root)
    findings: list[ScanFinding] = []
    lengths: list[int] = []
    for path in files[:max_files]:
        name = _relative(path, root)
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("larger than 1 MiB")
            source = path.read_bytes()
            findings += _findings(_parse(source), name)
            lengths.append(len(source.splitlines()))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            gaps.append(f"{name}: {_reason(error)}")
    if len(files) > max_files:
        gaps.append(f"{len(files) - max_files} more files: over the limit of {max_files}")
    findings.sort(key=lambda found: (found.file, found.line, found.rule, found.issue))
    return ScanResult(findings=tuple(findings), files_scanned=len(lengths), lines=sum(lengths), gaps=tuple(gaps))


def _python_files(root: Path) -> tuple[list[Path], list[str]]:
    """Return the files to scan, sorted, and gaps for what cannot be listed."""
    if root.is_file():
        return [root], []
    if not root.is_dir():
        return [], [f"{_printable(root.name)}: is no regular file or folder"]
    found: list[Path] = []
    refused: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=refused.append, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS]
        found += [path for name in names if name.endswith(".py") and _is_regular(path := Path(folder, name))]
    gaps = [f"{_relative(Path(error.filename), root)}: {_reason(error)}" for error in refused]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix()), sorted(gaps)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _relative(path: Path, root: Path) -> str:
    return _printable(root.name if path == root else path.relative_to(root).as_posix())


def _printable(name: str) -> str:
    """Make a file name printable: names need not be UTF-8, findings must be."""
    return os.fsencode(name).decode("utf-8", "replace")


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like are the foreign code's business
        return ast.parse(source)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"cannot be parsed: {text or type(error).__name__}{line}".encode(errors="replace").decode()


def _findings(tree: ast.Module, name: str) -> Iterator[ScanFinding]:
    # No recursion, as in ast.walk: foreign code may be nested deeper than our stack allows.
    for node in ast.walk(tree):
        for rule, line, issue in _hits(node):
            severity, suggestion = _RULES[rule]
            yield ScanFinding(file=name, line=line, rule=rule, issue=issue, severity=severity, suggestion=suggestion)


def _hits(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line and issue of each finding at *node* itself."""
    match node:
        case ast.ExceptHandler(type=None):
            yield "bare-except", node.lineno, "bare except also catches KeyboardInterrupt and SystemExit"
        case ast.arguments():
            for default in [*node.defaults, *node.kw_defaults]:
                if isinstance(default, _MUTABLE):
                    yield "mutable-default", default.lineno, "a mutable default is shared by all calls"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > _MAX_FUNCTION_LINES:
                yield "long-function", node.lineno, f"{node.name} is {length} lines long"
        case ast.Call(func=ast.Name(id="eval" | "exec" as called)):
            yield "eval-or-exec", node.lineno, f"{called} runs whatever text it is given"
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=None)]):
            yield "none-comparison", node.lineno, "compared to None by value, which a class can answer as it likes"
