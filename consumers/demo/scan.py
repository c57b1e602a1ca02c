"""Static findings in Python source, for the demo's agents to talk about.

Owns which files are read, the rules, and their findings with exact lines. Foreign source is only parsed, never imported
or run; a file that cannot be parsed is a gap with its reason.
"""

from __future__ import annotations

import ast
import io
import os
import re
import stat
import tokenize
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

__all__ = ["ScanFinding", "ScanResult", "Severity", "scan"]

Severity: TypeAlias = Literal["low", "medium", "high", "critical"]

_MAX_BYTES: Final = 1_048_576
_MAX_FUNCTION_LINES: Final = 60
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "build", "dist", "__pycache__"})
_MARKER: Final = re.compile(r"\b(TODO|FIXME|XXX)\b")
_MARKER_BYTES: Final = re.compile(rb"TODO|FIXME|XXX")
_MUTABLE_CALLS: Final = frozenset({"bytearray", "defaultdict", "deque", "dict", "list", "set"})
_MUTABLE_LITERALS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_BROAD: Final = frozenset({"BaseException", "Exception"})
# Curated: builtins that code needs again a few lines later. Names like `copyright` or `exit` are left out.
_BUILTINS: Final = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "callable",
        "dict",
        "dir",
        "enumerate",
        "eval",
        "exec",
        "filter",
        "float",
        "format",
        "frozenset",
        "getattr",
        "hash",
        "help",
        "id",
        "input",
        "int",
        "isinstance",
        "iter",
        "len",
        "list",
        "map",
        "max",
        "min",
        "next",
        "object",
        "open",
        "ord",
        "pow",
        "print",
        "property",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "setattr",
        "slice",
        "sorted",
        "str",
        "sum",
        "super",
        "tuple",
        "type",
        "vars",
        "zip",
    ]
)


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


class _ScanPlace(NamedTuple):
    node: ast.AST
    in_class_body: bool


class _Rule(NamedTuple):
    name: str
    severity: Severity
    suggestion: str
    hits: Callable[[_ScanPlace], Iterator[tuple[ast.AST, str]]]


class _Report(NamedTuple):
    findings: list[ScanFinding]
    lines: int
    gap: str


def scan(root: Path, *, max_files: int = 2000) -> ScanResult:
    """Return the findings in the Python files under *root*, a folder or one file; deterministic for the same tree.

    Skips hidden folders, environments, build output, symbolic links and special files. Files larger than 1 MiB, files
    beyond the first *max_files*, and files that cannot be read or parsed are gaps. Raises nothing for what it finds on
    the disk.
    """
    files, gaps = _python_files(root)
    reports = [_scan_file(path, _relative(path, root)) for path in files[:max_files]]
    gaps += [report.gap for report in reports if report.gap]
    if len(files) > max_files:
        gaps.append(f"{len(files) - max_files} more files: over the limit of {max_files}")
    findings = sorted(
        (finding for report in reports for finding in report.findings),
        key=lambda found: (found.file, found.line, found.rule, found.issue),
    )
    parsed = [report.lines for report in reports if report.lines >= 0]
    return ScanResult(findings=tuple(findings), files_scanned=len(parsed), lines=sum(parsed), gaps=tuple(gaps))


# --- files ------------------------------------------------------------------------------------------------------------


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
    gaps = [f"{_relative(Path(error.filename), root)}: cannot be listed: {error.strerror}" for error in refused]
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


def _scan_file(path: Path, name: str) -> _Report:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return _Report([], -1, f"{name}: larger than 1 MiB")
        source = path.read_bytes()
    except OSError as error:
        return _Report([], -1, f"{name}: cannot be read: {error.strerror}")
    try:
        tree = _parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _Report([], -1, f"{name}: cannot be parsed: {_reason(error)}")
    findings, gap = _findings(tree, name), ""
    try:
        findings += _markers(source, name)
    except (tokenize.TokenError, SyntaxError, ValueError) as error:
        gap = f"{name}: comments cannot be read: {_reason(error)}"
    return _Report(findings, len(source.splitlines()), gap)


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like are the foreign code's business
        return ast.parse(source)


def _reason(error: Exception) -> str:
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{text or type(error).__name__}{line}".encode(errors="replace").decode()


def _findings(tree: ast.Module, name: str) -> list[ScanFinding]:
    return [
        ScanFinding(
            file=name,
            line=getattr(node, "lineno", 1),
            rule=rule.name,
            issue=issue,
            severity=rule.severity,
            suggestion=rule.suggestion,
        )
        for place in _places(tree)
        for rule in _RULES
        for node, issue in rule.hits(place)
    ]


def _places(tree: ast.Module) -> Iterator[_ScanPlace]:
    """Yield every node without recursion: foreign code may be nested deeper than our stack allows."""
    waiting = [_ScanPlace(tree, in_class_body=False)]
    while waiting:
        place = waiting.pop()
        yield place
        inside = isinstance(place.node, ast.ClassDef) or (
            place.in_class_body and not isinstance(place.node, (*_FUNCTIONS, ast.Lambda))
        )
        waiting += [_ScanPlace(child, inside) for child in ast.iter_child_nodes(place.node)]


# --- rules ------------------------------------------------------------------------------------------------------------


def _markers(source: bytes, name: str) -> list[ScanFinding]:
    if not _MARKER_BYTES.search(source):  # tokenizing takes longer than all the rest
        return []
    comments = (token for token in tokenize.tokenize(io.BytesIO(source).readline) if token.type == tokenize.COMMENT)
    return [
        ScanFinding(
            file=name,
            line=token.start[0],
            rule="todo",
            issue=f"{found[1]} left in a comment",
            severity="low",
            suggestion=_TODO_SUGGESTION,
        )
        for token in comments
        if (found := _MARKER.search(token.string))
    ]


def _bare_except(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, ast.ExceptHandler) and place.node.type is None:
        yield place.node, "bare except also catches KeyboardInterrupt and SystemExit"


def _swallowed_exception(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    node = place.node
    if (
        isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and _is_broad(node.type)
        and all(map(_does_nothing, node.body))
    ):
        yield node, "every exception is swallowed without a trace"


def _is_broad(caught: ast.expr) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(kind, ast.Name) and kind.id in _BROAD for kind in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _mutable_default(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, (*_FUNCTIONS, ast.Lambda)):
        arguments = place.node.args
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None and _is_mutable(default):
                yield default, "a mutable default is shared by all calls"


def _is_mutable(node: ast.expr) -> bool:
    return isinstance(node, _MUTABLE_LITERALS) or (isinstance(node, ast.Call) and _name(node.func) in _MUTABLE_CALLS)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _long_function(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    node = place.node
    if (
        isinstance(node, _FUNCTIONS)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > _MAX_FUNCTION_LINES
    ):
        yield node, f"{node.name} is {length} lines long"


def _shadowed_builtin(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    node, name = place.node, ""
    if isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not place.in_class_body:
        name = node.id
    elif isinstance(node, _FUNCTIONS) and not place.in_class_body:
        name = node.name
    if name in _BUILTINS:
        yield node, f"{name} hides the builtin of that name"


def _eval_or_exec(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, ast.Call) and (name := _name(place.node.func)) in {"eval", "exec"}:
        yield place.node, f"{name} runs whatever text it is given"


def _none_comparison(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, ast.Compare):
        sides = [place.node.left, *place.node.comparators]
        for operator, left, right in zip(place.node.ops, sides, sides[1:], strict=False):
            if isinstance(operator, ast.Eq | ast.NotEq) and (_is_none(left) or _is_none(right)):
                yield place.node, "compared to None by value, which a class can answer as it likes"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _assert_on_tuple(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, ast.Assert) and isinstance(place.node.test, ast.Tuple) and place.node.test.elts:
        yield place.node, "assert on a tuple is always true"


def _duplicate_key(place: _ScanPlace) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(place.node, ast.Dict):
        seen: set[object] = set()
        for key in place.node.keys:
            if isinstance(key, ast.Constant):
                if key.value in seen:
                    yield key, f"key {_shown(key.value)} is given twice; the first value is lost"
                seen.add(key.value)


def _shown(key: object) -> str:
    return f"{key!r:.40}" if isinstance(key, str | bytes | bool) else f"of type {type(key).__name__}"


_TODO_SUGGESTION: Final = "do it, or keep it where work is tracked"
_RULES: Final = (
    _Rule("bare-except", "high", "name the exceptions that are expected", _bare_except),
    _Rule("swallowed-exception", "high", "handle it, log it, or catch only what may be ignored", _swallowed_exception),
    _Rule("mutable-default", "high", "default to None and make the object inside", _mutable_default),
    _Rule("long-function", "medium", "split it by what its parts decide", _long_function),
    _Rule("shadowed-builtin", "low", "choose another name", _shadowed_builtin),
    _Rule("eval-or-exec", "critical", "parse the input, or look the operation up in a table", _eval_or_exec),
    _Rule("none-comparison", "low", "use `is None` or `is not None`", _none_comparison),
    _Rule("assert-on-tuple", "medium", "remove the parentheses", _assert_on_tuple),
    _Rule("duplicate-key", "medium", "remove one of the two", _duplicate_key),
)
