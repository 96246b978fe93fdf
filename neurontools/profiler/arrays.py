"""Names for the numpy arrays that pass between modules."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.uint32]
Mask: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Records: TypeAlias = NDArray[Any]
