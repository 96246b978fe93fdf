"""Status codes and the texts of errors."""

from __future__ import annotations

import pytest

from neurontools.errors import NeuronToolsError
from neurontools.runtime.status import NrtError, NrtStatus


@pytest.mark.parametrize(
    ("status", "name", "text"),
    [
        (1, "NRT_FAILURE", "Non specific failure"),
        (4, "NRT_RESOURCE", "Allocation Failure"),
        (1004, "NRT_EXEC_COMPLETED_WITH_ERR", "Execution was completed with other errors"),
    ],
)
def test_documented_texts(status: int, name: str, text: str) -> None:
    assert (NrtStatus(status).name, NrtStatus(status).text) == (name, text)


def test_every_status_has_a_text_and_unused_numbers_have_none() -> None:
    assert all(status.text for status in NrtStatus)
    assert not {8, 12} & set(NrtStatus)


def test_an_error_reads_like_the_frameworks_print_it() -> None:
    error = NrtError("nrt_tensor_allocate", NrtStatus.NRT_RESOURCE, "free something")
    assert str(error) == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert isinstance(error, NeuronToolsError)
    assert (error.message, error.remedy, error.exit_code) == (str(error), "free something", 1)


def test_a_detail_takes_the_place_of_the_text() -> None:
    error = NrtError("nrt_init", NrtStatus.NRT_INVALID, detail="Neuron cores are not contiguous")
    assert str(error) == 'nrt_init status=2 message="Neuron cores are not contiguous"'
