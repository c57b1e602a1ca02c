"""`python -m sealbus`: the same as the `sealbus` command."""

from consumers.cli import main

if __name__ == "__main__":
    main(prog_name="sealbus")
