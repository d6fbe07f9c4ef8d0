"""The command line as ``python -m fedslice``."""

from fedslice.cli import main

main()
