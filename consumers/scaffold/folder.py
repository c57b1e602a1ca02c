"""The folder of a new project: what may lie there before, its files, the schemas of its types, its keys.

`consumers.scaffold.project` owns what the files say.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final

from bus.clock import SystemClock
from bus.telemetry.terminal import printable
from consumers.scaffold.project import Choice

__all__ = ["KEYS_OF_A_PROJECT", "check_target", "export_types", "make_keys", "source_of_sealbus", "write"]

KEYS_OF_A_PROJECT: Final = ".sealbus/keys"
_LAST_SIGNED_MS: Final = 60_000


def check_target(directory: Path, files: Iterable[str]) -> None:
    """Raise ValueError if *directory* has files that are not those of a version control or an environment."""
    if not directory.exists():
        return
    shown = printable(str(directory))
    if not directory.is_dir():
        raise ValueError(f"{shown} is a file: name a folder that is new or empty")
    present = [path for path in (*files, "schemas", KEYS_OF_A_PROJECT) if (directory / path).exists()]
    present += sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    if present:
        raise ValueError(f"{shown} has {printable(present[0])}: name a folder that is new or empty")


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write *files* below *directory*; one that exists is an OSError."""
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)


def source_of_sealbus() -> str:
    """Return where uv gets the sealbus that runs, as a TOML table; empty if it came from the package index."""
    try:
        text = metadata.distribution("sealbus").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(text) if text else {}
    url, git = str(origin.get("url", "")), origin.get("vcs_info", {})
    if git.get("vcs") == "git":
        return f"{{ git = {json.dumps(url)}, rev = {json.dumps(git.get('commit_id', ''))} }}"
    if url.startswith("file://"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        editable = ", editable = true" if origin.get("dir_info", {}).get("editable") else ""
        return f"{{ path = {json.dumps(url2pathname(urlsplit(url).path))}{editable} }}"
    return f"{{ url = {json.dumps(url)} }}" if url else ""


def export_types(directory: Path, choice: Choice) -> list[str]:
    """Write `schemas/` as `sealbus type export` does; return its files."""
    from bus.payloads.payload_types import payload_type
    from bus.schemas.json_schema import schema_of
    from bus.schemas.schema_folder import SchemaFolder
    from bus.schemas.versions import SchemaVersion

    if "types" not in choice.features:
        return []
    schemas, written = SchemaFolder(directory / "schemas"), []
    with _imported(directory / "src" / choice.name.package / "messages.py") as messages:
        for cls in [found for found in vars(messages).values() if isinstance(found, type)]:
            kind = payload_type(cls)
            schemas.publish(kind.name, SchemaVersion.of(kind.version), schema_of(kind))
            written.append(f"schemas/{kind.name}/{kind.version}.json")
    return written


@contextmanager
def _imported(file: Path) -> Iterator[ModuleType]:
    """Import *file* under a name that nothing else has, without leaving bytecode in the new project."""
    name = "_sealbus_new_messages"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101 - it is a .py file
    assert spec.loader is not None  # noqa: S101
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = before
        del sys.modules[name]


def make_keys(directory: Path, agents: Iterable[str]) -> None:
    """Make a key for each of *agents* in the project at *directory*."""
    from bus.trust.keys.key_folder import KeyFolder

    store, since_ms = KeyFolder(directory / KEYS_OF_A_PROJECT), SystemClock().now_ms() - _LAST_SIGNED_MS
    for agent in agents:
        store.add(agent, principals=[agent], types=(), not_before_ms=since_ms)
