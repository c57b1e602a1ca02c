"""Extras: the packages that a server needs and sealbus alone does not bring."""

from __future__ import annotations

from importlib.util import find_spec

from bus.errors import ConfigurationError

__all__ = ["need_extra"]


def need_extra(extra: str, *packages: str) -> None:
    """Raise ConfigurationError where one of *packages*, which the extra *extra* brings, is missing."""
    missing = next((name for name in packages if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigurationError(
            f"this needs the extra `{extra}` ({missing} is missing): pip install 'sealbus[{extra}]'"
        )
