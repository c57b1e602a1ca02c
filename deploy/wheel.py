"""What is done while a wheel is built: our packages go into one, and the compiled hot path where it can be built.

Owns that the wheel says whom it is for: with compiled code only this platform and this Python, without it everybody.
Does not own how sources are changed for it (`deploy.wheel_sources`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["WheelHook"]


class WheelHook(BuildHookInterface[Any]):
    """`SEALBUS_NATIVE` as in `deploy.native`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files: these take the places of those in the checkout."""
        sys.path.insert(0, self.root)
        from deploy.wheel_sources import PACKAGE, stage

        if version == "editable":
            # There the packages stay where they are.
            self.metadata.core.scripts[PACKAGE] = "consumers.cli:main"
            self.metadata.core.entry_points["pytest11"][PACKAGE] = "consumers.app.pytest_plugin"
            return
        self._folder = TemporaryDirectory(prefix="sealbus-wheel-")
        staged = stage(Path(self.root), Path(self._folder.name))
        build_data["force_include"] |= {str(path): place for path, place in staged.items()}
        module = self._native()
        if module is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(module)] = f"{PACKAGE}/bus/native/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called by hatchling when the wheel is written."""
        if version != "editable":
            self._folder.cleanup()

    def _native(self) -> Path | None:
        from deploy.native import BuildError, build

        wish = os.environ.get("SEALBUS_NATIVE", "")
        if wish == "off":
            return None
        try:
            return build(Path(self.root))
        except BuildError as error:
            if wish == "require":
                raise
            self.app.display_warning(f"without the compiled hot path: {error}")
            return None
