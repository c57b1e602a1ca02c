"""`python -m sealbus`: the same as the `sealbus` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The current folder comes first, where a file may have the name of a module of Python.
        sys.path.append(sys.path.pop(0))
    from consumers.cli import main

    main(prog_name="sealbus")
