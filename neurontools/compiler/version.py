"""The compiler's version: the real shape, and clearly ours.

Figures before the plus sign name the release whose interface is followed (flags, cache layout). The commit part of the
real compiler is a git hash; ours is always `5eed` and a revision, which changes whenever equal graphs get other NEFFs,
so that such NEFFs never meet in one cache directory.
"""

from __future__ import annotations

INTERFACE_VERSION = "2.16.372.0"
REVISION = 1
COMMIT_PREFIX = "5eed"
COMPILER_VERSION = f"{INTERFACE_VERSION}+{COMMIT_PREFIX}{REVISION:04x}"
BUILD_VERSION = f"neurontools simulated compiler {COMPILER_VERSION}"
