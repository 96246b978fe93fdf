"""The formats that a profile can be written in, and what opens them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class TraceFormat(StrEnum):
    """Formats of files and, for PARQUET and TENSORBOARD, of directories."""

    CHROME = "chrome"
    PERFETTO = "perfetto"
    SPEEDSCOPE = "speedscope"
    FOLDED = "folded"
    CSV = "csv"
    PARQUET = "parquet"
    TENSORBOARD = "tensorboard"
    HTML = "html"


class FormatUse(NamedTuple):
    """Where a format is written by default, and what opens it."""

    default_path: str
    opens: str


FORMAT_USES = {
    TraceFormat.CHROME: FormatUse("ntff.trace.json", "open it in chrome://tracing or ui.perfetto.dev"),
    TraceFormat.PERFETTO: FormatUse("ntff.pftrace", "open it in ui.perfetto.dev"),
    TraceFormat.SPEEDSCOPE: FormatUse("ntff.speedscope.json", "open it in speedscope.app"),
    TraceFormat.FOLDED: FormatUse(
        "ntff.collapsedstack.txt", "open it in speedscope.app, inferno or flamelens"
    ),
    TraceFormat.CSV: FormatUse("ntff.csv", "one line for each operator"),
    TraceFormat.PARQUET: FormatUse("ntff_parquet", "one file a table: DuckDB, pandas, Polars"),
    TraceFormat.TENSORBOARD: FormatUse(
        "ntff_tensorboard", "pip install tensorboard xprof; tensorboard --logdir with this directory"
    ),
    TraceFormat.HTML: FormatUse("ntff.html", "open it in a browser"),
}
