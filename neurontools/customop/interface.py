"""Numbers of the interface to compiled libraries that are needed where nothing is called: `abi.py` has the rest."""

VERSION = 4
MAX_ARGUMENTS = 16
