"""Find the App named by `MODULE:APP`.

Owns importing the user's module, with its folder on the path behind Python's own modules, and reporting exactly why
that failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

import click

from bus.errors import BusError, ConfigurationError, text_of
from bus.nearest import nearest
from bus.settings.loading import Loaded
from bus.settings.project import find_settings_file
from bus.settings.texts import outside_name
from bus.telemetry.terminal import printable
from consumers.agents.module_path import hidden_packages, own_file_unused, put_behind_python
from consumers.app.app import App

__all__ = ["AppNotFoundError", "ImportFailedError", "load_app", "load_project_apps"]


class AppNotFoundError(BusError):
    """The text names no App."""


_SOURCES: Final = "src"
_OURS: Final = tuple(
    str(Path(__file__).parents[2] / package) + os.sep for package in ("bus", "consumers", "producers", "sealbus")
)


class ImportFailedError(BusError):
    """The user's module was found and failed during its import."""


def load_app(target: str, folder: Path | None = None) -> App:
    """Return the App behind `MODULE:APP`, or one of the bus's own agents by its id.

    The module is looked for in *folder*, by default the current one and that of the project, in `src` beside
    `sealbus.toml`, and where Python looks.
    Raises AppNotFoundError if it names none, ImportFailedError for errors in the module itself, ConfigurationError for
    a `sealbus.toml` of another user.
    """
    target = outside_name(target, "MODULE:APP")
    if (own := _OWN_AGENTS.get(target)) is not None:
        return own()
    name, separator, attribute = target.partition(":")
    if not name or not separator or not attribute:
        raise AppNotFoundError(
            f"{printable(target)!r} is not MODULE:APP, such as agents:app for `app = App(...)` in agents.py, and none "
            f"of the bus's own agents, {', '.join(_OWN_AGENTS)}"
        )
    module = _import(name, _places(folder))
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise AppNotFoundError(f"module {name} has no {attribute!r}; {_known_apps(module, name)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise AppNotFoundError(f"{target} is a {type(found).__name__}, not an App; {_known_apps(module, name)}")
    return found


def load_project_apps(loaded: Loaded) -> list[App]:
    """Return the apps of the setting project.apps. Raises ConfigurationError, ImportFailedError, which name it."""
    return [_project_app(target, loaded) for target in loaded.settings.project.apps]


def _project_app(target: str, loaded: Loaded) -> App:
    origin = loaded.origins["project.apps"]
    folder = None if loaded.file is None or origin != f"file {loaded.file}" else loaded.file.parent.resolve()
    try:
        return load_app(target, folder)
    except AppNotFoundError as error:
        raise ConfigurationError(f"project.apps ({origin}): {error}") from error
    except ImportFailedError as error:
        error.add_note(f"project.apps ({origin}) names it; another app can be named in the command")
        raise


def _workflow_engine() -> App:
    from consumers.agents.workflows.engine import workflow_engine

    return workflow_engine()


def _registry() -> App:
    from bus.settings.loading import load_project
    from consumers.agents.directory.registry import registry_app

    return registry_app(load_project(env=os.environ).settings)


def _gateway() -> App:
    from consumers.gateway.app import GatewayApp

    return GatewayApp()


def _permits() -> App:
    from consumers.gateway.permits import permits_app

    return permits_app()


_OWN_AGENTS: Final[Mapping[str, Callable[[], App]]] = MappingProxyType(
    {
        "workflow@sealbus": _workflow_engine,
        "registry@sealbus": _registry,
        "gateway@sealbus": _gateway,
        "permits@svc": _permits,
    }
)
"""The bus's own agents, by their ids."""


def _places(folder: Path | None) -> list[Path]:
    """Return the folders in which modules are looked for, the first one first."""
    here = folder or Path.cwd()
    settings_file = find_settings_file() if folder is None else None
    project = here if settings_file is None else settings_file.parent
    # In front of what is installed: there may be an older copy of the project.
    sources = [project / _SOURCES] if (project / _SOURCES).is_dir() else []
    return [here, *sources, *([] if project == here else [project])]


def _import(name: str, places: Sequence[Path]) -> ModuleType:
    for place in reversed(places):
        _look_in(place)
    here, folder = str(places[0]), places[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; {Path(name).stem} is meant without .py?" if name.endswith(".py") or "/" in name else ""
            hint = hint or printable(nearest(error.name, _modules_beside(error.name, places)))
            raise AppNotFoundError(
                f"no module {name!r}; looked in {here} and {len(sys.path) - 1} more places{hint}"
            ) from error
        raise _failed(name, error, folder) from error
    except ConfigurationError as error:
        _show_frames(_own_frames(error))
        raise
    except Exception as error:
        raise _failed(name, error, folder) from error


def _look_in(folder: Path) -> None:
    """Have Python look for modules in *folder* right behind its own ones.

    Raises ConfigurationError for a file there that hides a package which sealbus needs.
    """
    if (hiding := hidden_packages(folder)) is not None:
        raise ConfigurationError(hiding)
    put_behind_python(str(folder))


def _modules_beside(name: str, places: Sequence[Path]) -> list[str]:
    """Return the modules and packages of *places* that are in the same package as *name* would be."""
    package = name.rpartition(".")[0]
    prefix = f"{package}." if package else ""
    entries: list[Path] = []
    for place in places:
        with contextlib.suppress(OSError):
            entries += sorted(place.joinpath(*package.split(".")).iterdir())
    return [
        prefix + entry.stem
        for entry in entries
        if entry.stem.isidentifier() and (entry.suffix == ".py" or (entry / "__init__.py").is_file())
    ]


def _failed(name: str, error: Exception, folder: Path) -> ImportFailedError:
    """Print the user's own part of the traceback, and return the error."""
    own = _own_frames(error)
    hint = own_file_unused(error, folder)
    if _is_declaration_error(error):
        _show_frames(own)
        return ImportFailedError(f"importing {name} failed: {text_of(error)}{hint}")
    click.echo("Traceback (most recent call last):", err=True)
    _show_frames(own)
    click.echo("".join(traceback.format_exception_only(error)), err=True, nl=False)
    return ImportFailedError(f"importing {name} failed: {type(error).__name__}: {text_of(error)}{hint}")


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the frames of *error* in the user's modules; of other errors than a declaration's, those of libraries
    too."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return [frame for frame in own if not _is_ours(frame)] if _is_declaration_error(error) else own


def _is_declaration_error(error: Exception) -> bool:
    """Return whether *error* is a sentence that the bus itself says about what the user wrote."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return _is_ours(last) and (isinstance(error, BusError) or (last.line or "").startswith("raise "))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _show_frames(frames: list[traceback.FrameSummary]) -> None:
    click.echo("".join(traceback.format_list(frames)), err=True, nl=False)


def _known_apps(module: ModuleType, name: str) -> str:
    apps = sorted(attribute for attribute, value in vars(module).items() if isinstance(value, App))
    if not apps:
        return "there is no App in it: write `app = App(...)`"
    return "its apps: " + ", ".join(f"{name}:{attribute}" for attribute in apps)
