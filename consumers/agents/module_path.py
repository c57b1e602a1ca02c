"""Where Python looks for the modules of a user's folder: behind its own ones.

Owns the order of `sys.path`, and the texts about files whose names are those of other modules. With the folder first, a
`secrets.py` beside an agent would replace Python's module of that name in every library.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["NEEDED_PACKAGES", "hidden_packages", "own_file_unused", "put_behind_python"]

NEEDED_PACKAGES: Final = frozenset(
    {
        "aiokafka",
        "annotated_types",
        "anyio",
        "async_timeout",
        "asyncpg",
        "cffi",
        "click",
        "cramjam",
        "cryptography",
        "h11",
        "httptools",
        "jinja2",
        "litestar",
        "markdown_it",
        "markupsafe",
        "mdurl",
        "msgspec",
        "opentelemetry",
        "orjson",
        "packaging",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "pygments",
        "rich",
        "sealbus",
        "structlog",
        "typing_extensions",
        "typing_inspection",
        "uvicorn",
        "uvloop",
        "watchfiles",
        "websockets",
        "yaml",
        "zstandard",
    }
)
"""The packages that sealbus imports, some of them only when they are used."""
_FROM: Final = re.compile(r"(?:from|module) '(\w+)")


def put_behind_python(path: str) -> None:
    """Have Python look in *path* for what is not a module of its own, before other packages."""
    is_here = {os.path.realpath(path)}
    own = _own_places()
    sys.path[:] = [each for each in sys.path if os.path.realpath(each or ".") not in is_here]
    behind = [number + 1 for number, each in enumerate(sys.path) if os.path.realpath(each or ".") in own]
    sys.path.insert(max(behind, default=0), path)


def _own_places() -> frozenset[str]:
    """Return the folders and archives of Python's own modules."""
    found = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    found |= {
        each
        for each in sys.path
        if each.endswith(("lib-dynload", f"python{sys.version_info[0]}{sys.version_info[1]}.zip"))
    }
    return frozenset(os.path.realpath(each) for each in found if each)


def hidden_packages(folder: Path) -> str | None:
    """Return what is wrong if a file in *folder* hides a package that sealbus needs; None if none does."""
    for name, path in _modules_in(folder).items():
        if name in NEEDED_PACKAGES and _is_installed_elsewhere(name, folder):
            return f"{path} hides the package {name}, which sealbus needs: rename it"
    return None


def _is_installed_elsewhere(name: str, folder: Path) -> bool:
    here = os.path.realpath(folder)
    places = [Path(each or ".") for each in sys.path if os.path.realpath(each or ".") != here]
    return any(_module_at(place, name) is not None or any(place.glob(f"{name}.*.so")) for place in places)


def own_file_unused(error: BaseException, folder: Path) -> str:
    """Return the hint for *error*, raised because a name was looked up in Python's module and not in the user's file.

    Empty if that is not the cause.
    """
    modules = _modules_in(folder)
    named = [getattr(error, "name", None), *_FROM.findall(str(error))]
    path = next((modules[name] for name in named if name in modules and name in sys.stdlib_module_names), None)
    return "" if path is None else f"; {path} has the name of a module of Python, which is used instead: rename it"


def _modules_in(folder: Path) -> dict[str, Path]:
    """Return the modules and packages in *folder* by their names."""
    try:
        names = {entry.name.partition(".")[0] for entry in folder.iterdir()}
    except OSError:
        return {}
    return {name: path for name in sorted(names) if (path := _module_at(folder, name)) is not None}


def _module_at(folder: Path, name: str) -> Path | None:
    package = folder / name / "__init__.py"
    module = folder / f"{name}.py"
    return package.parent if package.is_file() else module if module.is_file() else None
