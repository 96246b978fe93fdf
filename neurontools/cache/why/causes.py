"""The causes of a compile, told from what differs between an entry and its nearest neighbour."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools.cache.graphs.graph_facts import GraphForm
from neurontools.cache.why.cause import Cause, CauseName, Confidence
from neurontools.cache.why.compare import Subject
from neurontools.cache.why.graph_causes import causes_of_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.why.compare import Comparison

_PATH = re.compile(r"(?:^|=|:)(?:/|\./|\.\./|~|s3://)|[^/]/[^/]+/")
_METADATA_ADVICE = (
    "real compilers may hash names, ids and source lines of the HLO: an edited line above can be a miss"
)


def causes_of(comparison: Comparison, *, together: bool = True) -> tuple[Cause, ...]:
    """Return what explains the difference of two entries, the surest first; () for entries that do not differ.

    Args:
        comparison: the two entries.
        together: whether one run may have used both; False where it is known that none did.
    """
    found = [*_of_key(comparison)]
    diff = comparison.diff
    if diff is not None and not diff.is_empty:
        found += causes_of_graphs(comparison, diff, together=together)
    found += [
        Cause(
            CauseName.METADATA,
            Confidence.LIKELY,
            item.text,
            "" if diff is None or diff.new.form is not GraphForm.HLO else _METADATA_ADVICE,
        )
        for item in comparison.about(Subject.METADATA)
    ]
    order = list(Confidence)
    return tuple(sorted(found, key=lambda cause: order.index(cause.confidence)))


def _of_key(comparison: Comparison) -> Iterator[Cause]:
    same = comparison.same_graph
    for item in comparison.about(Subject.COMPILER):
        alone = same and not comparison.about(Subject.FLAGS)
        yield Cause(
            CauseName.COMPILER,
            Confidence.CERTAIN if alone else Confidence.LIKELY,
            f"{item.text}: each version has its own directory"
            + (", and the graph is the same" if same else ""),
            "keep one version on all hosts and in CI; 'neuron-cache prune --old-compilers' frees the old entries",
        )
    flags = comparison.about(Subject.FLAGS)
    if not flags:
        return
    sure = Confidence.CERTAIN if same and not comparison.about(Subject.COMPILER) else Confidence.LIKELY
    if "order" in flags[0].text:
        yield Cause(
            CauseName.FLAG_ORDER, sure, flags[0].text, "write NEURON_CC_FLAGS in one order everywhere"
        )
        return
    paths = [item.text for item in flags if _has_path(item.old) or _has_path(item.new)]
    others = [item.text for item in flags if item.text not in paths]
    if paths:
        yield Cause(
            CauseName.FLAG_PATH,
            sure,
            "; ".join(paths),
            "leave the path out, or make it the same for every run and host: flags are part of the key as they stand",
        )
    if others:
        yield Cause(
            CauseName.FLAGS,
            sure,
            "; ".join(others),
            "set the same NEURON_CC_FLAGS for all runs that share a cache",
        )


def _has_path(flag: str) -> bool:
    return bool(_PATH.search(flag))
