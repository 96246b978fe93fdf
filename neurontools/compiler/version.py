"""The compiler's version, in the format of the real compiler and recognizable as simulated.

The part before the plus sign names the release whose interface is followed (flags, cache layout). The part after it is a
git hash in the real compiler; here it is `5eed` and a revision, which changes whenever equal graphs get other NEFFs, so
such NEFFs are never in the same cache directory.
"""

from __future__ import annotations

INTERFACE_VERSION = "2.16.372.0"
REVISION = 1
COMMIT_PREFIX = "5eed"
COMPILER_VERSION = f"{INTERFACE_VERSION}+{COMMIT_PREFIX}{REVISION:04x}"
BUILD_VERSION = f"neurontools simulated compiler {COMPILER_VERSION}"
