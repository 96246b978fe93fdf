"""What tells one kernel from another in a graph: changes that are seen, and those that must not matter."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from neurontools.nki.kernel_identity import KernelCode, describe, kernel_code, named_arguments

SOURCE = """\
FACTOR = 2.0
TABLE = np.arange(4)

class Config:
    depth: int = 1
    def scaled(self, x):
        return x * 5

def helper(x):
    return x + 1

def kernel(a, alpha=1.0):
    # one line
    b = Config().scaled(helper(a)) * alpha * FACTOR * TABLE[0]
    return b
"""


def _code(source: str = SOURCE, name: str = "kernel") -> KernelCode:
    names: dict[str, Any] = {"np": np, "__name__": "kernels"}
    exec(compile(source, "some/place/kernels.py", "exec"), names)
    return kernel_code(names[name])


def test_a_kernel_is_known_by_file_functions_and_values():
    code = _code()
    assert [item.partition("=")[0] for item in code.source] == [
        "kernels.py:kernel",
        "kernels.py:scaled",
        "kernels.py:helper",
    ]
    assert code.captured[:2] == ("alpha=1.0", "FACTOR=2.0")
    assert code.captured[2].startswith("TABLE=int64[4] ")


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("b = Config", "c = 1\n    b = Config", "kernels.py:kernel"),
        ("x + 1", "x + 2", "kernels.py:helper"),
        ("x * 5", "x * 6", "kernels.py:scaled"),
        ("FACTOR = 2.0", "FACTOR = 3.0", "FACTOR"),
        ("np.arange(4)", "np.arange(4) + 1", "TABLE"),
        ("alpha=1.0", "alpha=1.5", "alpha"),
        ("# one line", "# another", None),
        ("FACTOR = 2.0", "# above\n\nFACTOR = 2.0", None),
        ("depth: int = 1", "depth: int = 1\n    unused = 7", None),
    ],
)
def test_changes_of_code_and_values_are_seen_and_those_of_comments_are_not(old, new, changed):
    assert old in SOURCE
    before, after = _code(), _code(SOURCE.replace(old, new))
    pairs = zip((*before.source, *before.captured), (*after.source, *after.captured), strict=True)
    assert [a.partition("=")[0] for a, b in pairs if a != b] == ([] if changed is None else [changed])


def test_closures_partial_functions_and_kernels_that_a_kernel_calls_count():
    def make(factor: float) -> Any:
        return lambda x: x * factor

    assert kernel_code(make(2.0)).captured == ("factor=2.0",)
    assert kernel_code(functools.partial(make(2.0), 3)).captured == ("partial=((3), {})", "factor=2.0")

    class Kernel:
        def __init__(self, func: Any) -> None:
            self.func = func

        def __call__(self, x: Any) -> Any:
            return self.func(x)

    inner = Kernel(make(4.0))
    code = kernel_code(lambda x: inner(x) + 1)
    assert len(code.source) == 2
    assert code.captured == ("factor=4.0",)


def test_arguments_are_named_and_long_ones_are_cut():
    def kernel(a: Any, *rest: Any, options: Any = None) -> None: ...

    class Options:
        def __init__(self) -> None:
            self.depth = 3

    named = named_arguments(kernel, (1, 2.5, "x"), {"options": Options()})
    assert named == ("a=1", "rest=(2.5, 'x')", "options=Options(depth=3)")
    (long,) = named_arguments(kernel, (list(range(1000)),), {})
    assert len(long) < 100
    assert long != named_arguments(kernel, (list(range(1001)),), {})[0]


def test_values_have_equal_text_in_all_processes():
    assert describe({"a": [1, None], "b": {3, 1}}) == "{'a': list(1, None), 'b': set(1, 3)}"
    assert describe(np) == "numpy"
    assert describe(np.float32) == "float32"
    assert (
        describe(test_values_have_equal_text_in_all_processes)
        == test_values_have_equal_text_in_all_processes.__name__
    )


def test_values_that_hold_themselves_have_a_text():
    class Holder:
        pass

    holder = Holder()
    holder.me = [holder]
    assert describe(holder).startswith("Holder(me=list(Holder(me=")
    assert describe(holder).count("Holder") == 5
