"""The name of a new project: whether it can be a package, a distribution and the start of message types."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple

from consumers.agents.module_path import NEEDED_PACKAGES

__all__ = ["ProjectName", "name_fault", "project_name"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")
_MAX_CHARACTERS: Final = 40
_OURS: Final = frozenset({"sealbus", "src", "test", "tests", "schemas"})
_INSTALLED_LATER: Final = frozenset(
    {
        "agents",
        "annotated_doc",
        "fastapi",
        "griffe",
        "hatchling",
        "httpx",
        "jiter",
        "langchain",
        "langchain_core",
        "langchain_openai",
        "langgraph",
        "langsmith",
        "mypy",
        "openai",
        "openai_agents",
        "pydantic_ai",
        "pydantic_ai_slim",
        "pydantic_graph",
        "pytest",
        "ruff",
        "starlette",
        "tiktoken",
    }
)
"""What templates depend on: it may not be installed yet when the project is made."""


class ProjectName(NamedTuple):
    """The forms of a name: `my-desk` for distribution, agents and types, `my_desk` for the package."""

    distribution: str
    package: str


def project_name(text: str) -> ProjectName:
    """Return the forms of the valid name *text*."""
    return ProjectName(text.replace("_", "-"), text.replace("-", "_"))


def name_fault(text: str) -> str | None:
    """Return why a project cannot be called *text*; None if it can."""
    if _NAME.match(text) is None or len(text) > _MAX_CHARACTERS:
        near = "-".join(re.findall("[a-z0-9]+", text.lower())).lstrip("0123456789-")[:_MAX_CHARACTERS].rstrip("-")
        return (
            f"a name has lower-case letters, digits and single dashes, starts with a letter, and has at most "
            f"{_MAX_CHARACTERS} characters, such as {near or 'desk'}"
        )
    name = project_name(text)
    if keyword.iskeyword(name.package) or keyword.issoftkeyword(name.package):
        return f"{name.package} is a keyword of Python"
    if name.package in sys.stdlib_module_names:
        return f"it would hide the module {name.package} of Python's standard library"
    if name.package in _OURS:
        return f"sealbus uses the name {name.package}"
    if name.package in NEEDED_PACKAGES | _INSTALLED_LATER:
        return f"it would hide the package {name.package}, which sealbus or a template uses"
    return _installed_fault(name)


def _installed_fault(name: ProjectName) -> str | None:
    """Return what is installed under *name*. The current folder does not count: a project may be made beside it."""
    here = Path.cwd().resolve()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    spec = PathFinder.find_spec(name.package, places)
    # A folder without __init__.py hides nothing, and is hidden by nothing.
    if spec is not None and spec.origin is not None:
        return f"it would hide the installed module {name.package}, {spec.origin}"
    try:
        version = metadata.version(name.distribution)
    except metadata.PackageNotFoundError:
        return None
    return f"{name.distribution} {version} is installed: run `pip uninstall {name.distribution}` if it is not needed"
