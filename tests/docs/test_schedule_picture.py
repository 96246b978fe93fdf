"""The picture of a layer's schedule in docs/explanation/cost-model.md."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
_SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_shows_every_engine_and_the_critical_path_from_end_to_end():
    drawn = ET.fromstring(run_path(str(ROOT / "docs" / "schedule_picture.py"))["picture"]())
    texts = [text.text for text in drawn.iter(f"{_SVG}text")]
    assert {"DMA", "Tensor", "Vector", "Scalar", "GpSimd", "SBUF", "critical path"} <= set(texts)
    (lane, *_) = drawn.iterfind(f"{_SVG}rect[@class='lane']")
    critical = [
        (float(box.attrib["x"]), float(box.attrib["width"]))
        for box in drawn.iterfind(f"{_SVG}rect[@class='critical']")
        if float(box.attrib["y"]) >= float(lane.attrib["y"])
    ]
    left, width = float(lane.attrib["x"]), float(lane.attrib["width"])
    assert min(x for x, _ in critical) < left + 0.05 * width
    assert max(x + length for x, length in critical) > left + 0.95 * width
    shares = [int(text.rstrip("%")) for text in texts if text and re.fullmatch(r"\d+%", text)]
    assert len(shares) == 5
    assert all(0 <= share <= 100 for share in shares)


def test_the_page_shows_the_committed_picture():
    page = (ROOT / "docs" / "explanation" / "cost-model.md").read_text()
    assert "(../images/schedule-of-a-layer.svg)" in page
    committed = (ROOT / "docs" / "images" / "schedule-of-a-layer.svg").read_text(encoding="utf-8")
    assert ET.fromstring(committed).tag == f"{_SVG}svg"
