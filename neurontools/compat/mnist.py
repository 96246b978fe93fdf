"""The MNIST data set for scripts: the real files if present, else a small set of real digits shipped with the package.

`fixtures/digits` holds 1,797 handwritten digits in the same file format; their use is reported once on
stderr.
"""

from __future__ import annotations

import gzip
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

import torch

from neurontools import paths
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable

_IMAGES, _LABELS = 0x803, 0x801
_reported: set[str] = set()


class IdxError(NeuronToolsError):
    """A file does not have the IDX format."""


class MNIST(torch.utils.data.Dataset):  # type: ignore[misc]
    """Handwritten digits: (28 x 28 uint8 image, label 0..9).

    Args:
        root: directory; the real files are read from `root/MNIST/raw`.
        train: the training part, else the test part.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root = os.fspath(root)
        self.train = train
        self.transform = transform
        self.target_transform = target_transform
        folder = os.path.join(self.root, "MNIST", "raw")
        stem = "train" if train else "t10k"
        if _existing(os.path.join(folder, f"{stem}-images-idx3-ubyte")) is None:
            folder = os.path.join(paths.fixtures_dir(), "digits")
            _notify(
                f"MNIST is not in {self.root}: using the 1,797 real digits that neurontools installs, too few for the "
                "accuracy of tutorials that train on 60,000"
            )
        self.data = read_idx(os.path.join(folder, f"{stem}-images-idx3-ubyte"))
        self.targets = read_idx(os.path.join(folder, f"{stem}-labels-idx1-ubyte")).long()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.data[index], int(self.targets[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(label) if self.target_transform else label,
        )


def read_idx(path: str) -> torch.Tensor:
    """Read an IDX file of images or labels, plain or gzip.

    Returns:
        uint8 tensor, (N, rows, columns) for images, (N,) for labels.

    Raises:
        IdxError: the file is missing, truncated, or not an IDX file.
    """
    found = _existing(path)
    if found is None:
        raise IdxError(f"no such file: {path}[.gz]", "put MNIST's IDX files there")
    try:
        with (gzip.open if found.endswith(".gz") else open)(found, "rb") as file:
            content = file.read()
        (magic,) = struct.unpack_from(">I", content)
        dimensions = {_IMAGES: 3, _LABELS: 1}[magic]
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape)
    except (OSError, EOFError, struct.error, KeyError, RuntimeError, ValueError) as error:
        raise IdxError(f"{found} is not a complete IDX file: {error}", "download it again") from error


def _existing(path: str) -> str | None:
    return next((name for name in (path, path + ".gz") if os.path.exists(name)), None)


def _notify(text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        sys.stderr.write(text + "\n")
