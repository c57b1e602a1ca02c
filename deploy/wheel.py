"""What is done while a wheel is built: the compiled hot path goes into it, where it can be built.

Owns that the wheel says whom it is for: with compiled code only this platform and this Python, without it everybody.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["NativeHook"]


class NativeHook(BuildHookInterface[Any]):
    """`SEALBUS_NATIVE` as in `deploy.native`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        sys.path.insert(0, self.root)
        from deploy.native import BuildError, build

        wish = os.environ.get("SEALBUS_NATIVE", "")
        if version == "editable" or wish == "off":
            return
        try:
            module = build(Path(self.root))
        except BuildError as error:
            if wish == "require":
                raise
            self.app.display_warning(f"without the compiled hot path: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(module)] = f"bus/native/{module.name}"
