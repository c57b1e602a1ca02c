"""Building the compiled hot path in place: `python -m deploy.native`. A wheel is given it by `deploy.wheel`.

Owns running cargo and where its product goes: beside its source. Without a Rust toolchain, or where its crates cannot
be had, everything is left as it is and sealbus does its work in Python. SEALBUS_NATIVE=off builds nothing, `require`
(or --require) makes a failure of what is otherwise a remark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

__all__ = ["BuildError", "build"]

_TIMEOUT_S = 900


class BuildError(Exception):
    """Why there is no compiled hot path."""


def build(root: Path) -> Path:
    """Compile for the Python that runs this; the module, in place. Raises BuildError."""
    crate = root / "bus" / "native"
    cargo = shutil.which("cargo")
    if cargo is None:
        raise BuildError("there is no cargo: install a Rust toolchain")
    target = root / "build" / "native"
    command = [
        cargo,
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--manifest-path",
        str(crate / "Cargo.toml"),
        "--target-dir",
        str(target),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            command,
            env=os.environ | {"PYO3_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"cargo could not be run: {error}") from error
    if done.returncode:
        raise BuildError(f"cargo failed:\n{done.stderr.strip()[-4000:]}")
    library = next(
        (
            path
            for name in ("lib_core.so", "lib_core.dylib", "_core.dll")
            if (path := target / "release" / name).exists()
        ),
        None,
    )
    if library is None:
        raise BuildError(f"cargo left no library in {target / 'release'}")
    module = crate / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists() or module.read_bytes() != library.read_bytes():
        # Another process may have the old one open.
        fresh = module.with_name(f".{module.name}.{os.getpid()}")
        shutil.copy(library, fresh)
        fresh.replace(module)
    return module


def main() -> int:
    """Build in place and say what became of it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--require", action="store_true", help="fail where it cannot be built")
    wish = os.environ.get("SEALBUS_NATIVE", "")
    required = parser.parse_args().require or wish == "require"
    if wish == "off":
        return 0
    try:
        module = build(Path(__file__).resolve().parent.parent)
    except BuildError as error:
        sys.stderr.write(f"The compiled hot path was not built, Python does its work: {error}\n")
        return 1 if required else 0
    sys.stderr.write(f"The compiled hot path: {module.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
