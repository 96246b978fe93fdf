"""The MNIST stand-in reads real IDX files, and says so when it hands out the small digits instead."""

from __future__ import annotations

import gzip
import struct

import pytest
import torch

from neurontools.compat import mnist


@pytest.fixture(autouse=True)
def _reported_again(monkeypatch):
    monkeypatch.setattr(mnist, "_reported", set())


def idx_images(count, rows=28, columns=28):
    return struct.pack(">IIII", 0x803, count, rows, columns) + bytes(range(256)) * (
        count * rows * columns // 256 + 1
    )


def test_without_files_the_installed_digits_are_used_and_reported_once(home, capsys):
    train = mnist.MNIST(home)
    test = mnist.MNIST(home, train=False)
    assert (len(train), len(test)) == (1500, 297)
    image, label = train[0]
    assert image.shape == (28, 28)
    assert image.dtype == torch.uint8
    assert 0 <= label <= 9
    assert capsys.readouterr().err.count("using the 1,797 real digits") == 1


def test_real_files_win(home, capsys):
    raw = home / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(idx_images(2)[: 16 + 2 * 784])
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(struct.pack(">II", 0x801, 2) + bytes([3, 7]))
    )
    digits = mnist.MNIST(home)
    assert [digits[index][1] for index in range(2)] == [3, 7]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [b"", b"\x00\x00", struct.pack(">I", 1), idx_images(2)[:100]])
def test_a_damaged_file_is_named(home, content):
    path = home / "cut-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(mnist.IdxError, match="cut-idx3-ubyte is not a complete IDX file"):
        mnist.read_idx(str(path))


def test_a_missing_file_is_named(home):
    with pytest.raises(mnist.IdxError, match="no such file"):
        mnist.read_idx(str(home / "none"))
