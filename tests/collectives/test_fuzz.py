"""Any command line and any file ends with an exit code and words, never with a traceback."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.collectives.operations import NAMES
from neurontools.commands.nccom_flags import build_parser
from neurontools.commands.nccom_test import main

FLAGS = sorted(
    name
    for action in build_parser()._actions
    for name in action.option_strings
    if name not in {"-h", "--help"}
)
VALUES = ["", "0", "1", "2", "4", "-1", "1kb", "64", "99999999999999999999", "nan", "x", "p50", "avg", "all_ones", "bf16",
          "fp8", "mesh", "rdh", "ring", "2,2", "f.json", "nowhere", "é", "trn2.3xlarge"]  # fmt: skip
words = st.lists(st.sampled_from([*FLAGS, *VALUES, *NAMES]), max_size=6)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.floats()
    | st.sampled_from(["", "allr", "random", "1kb"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["operation", "minbytes", "check", "stats", "ops_per_iter", "iters"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
quiet = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ends_well(argv, capsys):
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code in {0, 1, 2}
    assert "Traceback" not in captured.err
    assert code == 0 or captured.err or captured.out
    return code


@quiet
@given(words)
def test_any_command_line(capsys, words):
    without_machine = [word for word in words if word not in {"--machine", "--debug"}]
    ends_well(
        ["--instance", "trn2.3xlarge", "-r", "4", "-e", "4kb", "-b", "64", "-f", "8", *without_machine],
        capsys,
    )
    ends_well(without_machine, capsys)


@quiet
@given(
    st.sampled_from(
        [
            "--streams-json",
            "--custom-replica-groups",
            "--custom-src-target-pairs",
            "--variable-size-op-metadata",
        ]
    ),
    st.sampled_from(["streams", "replica_groups", "src_target_pairs", "counts"]),
    plain,
    st.sampled_from(["allr", "allgv", "alltoallv", "permute", ""]),
)
def test_any_file(home, capsys, flag, key, content, operation):
    (home / "f.json").write_text(json.dumps({key: content}))
    line = ["--instance", "trn2.3xlarge", "-r", "4", flag, "f.json", *filter(None, [operation])]
    ends_well(line, capsys)
