"""Tables of numpy columns."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ColumnTable:
    """Columns of equal length by name. Times are nanoseconds, as the names say."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with Python's own types; missing values are None."""
        lists = [_values(column) for column in self.columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def arrow(self) -> Any:
        """Return a `pyarrow.Table`.

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        return _module("pyarrow").table({name: _values(column) for name, column in self.columns.items()})

    def pandas(self) -> Any:
        """Return a `pandas.DataFrame`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _module("pandas").DataFrame({name: _plain(column) for name, column in self.columns.items()})

    def polars(self) -> Any:
        """Return a `polars.DataFrame`.

        Raises:
            MissingDependencyError: Polars is not installed.
        """
        return _module("polars").DataFrame({name: _values(column) for name, column in self.columns.items()})


def table_of(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> ColumnTable:
    """Return rows as a table.

    Args:
        names: of the columns.
        rows: values by name; None where there is no value.
    """
    listed = list(rows)
    return ColumnTable({name: _column([row[name] for row in listed]) for name in names})


def _column(values: list[Any]) -> NDArray[Any]:
    """Return values as an array of their type; of objects where one is missing or is text."""
    if any(value is None or isinstance(value, (str, list, dict)) for value in values):
        column: NDArray[Any] = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    return np.array(values)


def _values(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = column.tolist()
    if isinstance(column, np.ma.MaskedArray):
        return values
    return [None if isinstance(value, float) and value != value else value for value in values]  # noqa: PLR0124


def _plain(column: NDArray[Any]) -> Any:
    return _values(column) if isinstance(column, np.ma.MaskedArray) else column


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name} is not installed", f"pip install {name}") from error
