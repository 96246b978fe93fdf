"""Published times of whole models: where they are from, and how they are split."""

from collections import Counter

from benchmarks.engine_model.anchors import anchors
from benchmarks.engine_model.model_anchors import half_of, model_anchors, read_file
from benchmarks.engine_model.published import CALIBRATION
from neurontools.machine.instances.catalogue import instance_type

LEAST_FIGURES, LEAST_FAMILIES = 150, 8


def test_figures_are_many_and_of_many_families() -> None:
    names = [anchor.name for anchor in model_anchors()]
    assert len(set(names)) == len(names) >= LEAST_FIGURES
    assert len({anchor.family for anchor in model_anchors()}) >= LEAST_FAMILIES


def test_the_half_of_a_name_follows_from_the_name_alone() -> None:
    halves = "".join(half_of(f"figure-{number}")[0] for number in range(16))
    assert halves == "ccrcccrrcrccrrcr", (
        "the rule has changed: what was reported blind would be blind no longer"
    )


def test_each_family_is_split_in_the_middle() -> None:
    all_of = Counter(anchor.family for anchor in model_anchors())
    chosen = Counter(anchor.family for anchor in model_anchors() if anchor.half == CALIBRATION)
    for family, count in all_of.items():
        assert abs(chosen[family] - count / 2) <= max(0.5, count * 0.1), family


def test_a_figure_that_constants_were_fitted_with_is_not_reported() -> None:
    assert {half_of(anchor.name) for anchor in anchors()} == {CALIBRATION}


def test_each_figure_says_where_it_is_from_and_what_was_run() -> None:
    assumed = read_file()["assumed"]
    for anchor in model_anchors():
        assert anchor.family in assumed, anchor.name
        assert anchor.sizes["config"], anchor.name
        assert anchor.row, anchor.name
        assert anchor.published_ms > 0, anchor.name
        assert list(anchor.published) in (["latency_ms"], ["per_s"]), anchor.name
        workers, copies = anchor.workload["workers"], anchor.workload.get("copies", 1)
        kind = instance_type(anchor.instance)
        cores = (
            kind.device_count
            * kind.device.physical_cores
            // anchor.workload.get("lnc", 1)
            * anchor.workload.get("nodes", 1)
        )
        assert workers * copies <= cores, anchor.name
