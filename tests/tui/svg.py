"""Smaller SVG pictures of screens, and animated ones."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLE = re.compile(r"\.(r\d+) \{ ([^}]*) \}\n?")
_RECT = re.compile(r'<rect fill="([^"]*)" x=[^>]*/>')
_TEXT = re.compile(r'<text class="(r\d+)"([^>]*>[^<]*</text>)')
_SCREEN = ' clip-path="url(#clip-terminal)"'
_CRISP = ' shape-rendering="crispEdges"'
_MATRIX = '<g class="matrix">'


def slim(svg: str) -> str:
    """Return a picture made by Textual at a third of its size, which looks the same.

    It loses names that keep several pictures in one page apart, clips of every line, and all cells with the most common
    background, which is drawn once.
    """
    svg = re.sub(r"terminal-\d+-", "", svg)
    svg = re.sub(r'<clipPath id="line-\d+">\s*<rect [^>]*/>\s*</clipPath>\s*', "", svg)
    svg = re.sub(r' clip-path="url\(#line-\d+\)"', "", svg)
    svg = svg.replace("&#160;", "\N{NO-BREAK SPACE}").replace(_CRISP, "")
    fill = Counter(match[1] for match in _RECT.finditer(svg)).most_common(1)[0][0]
    svg = _RECT.sub(lambda match: "" if match[1] == fill else match[0], svg)
    background = f'{_SCREEN}{_CRISP}>\n    <rect fill="{fill}" width="100%" height="100%"/>'
    svg = svg.replace(f"{_SCREEN}>", background, 1)
    return "\n".join([line.rstrip() for line in svg.splitlines()]) + "\n"


class _Frame(NamedTuple):
    rects: list[str]
    texts: list[str]


def animated(pictures: Sequence[str], seconds: Sequence[float]) -> str:
    """Return one picture that shows slim pictures of one size one after the other, again and again.

    What all of them have is drawn once. Viewers without animations show the first.

    Args:
        pictures: from `slim`.
        seconds: how long each is shown.
    """
    names: dict[str, str] = {}
    frames = [_frame(picture, names) for picture in pictures]
    head, _, rest = pictures[0].partition("    </style>")
    outline, _, cells = rest.partition(_MATRIX)
    end = cells[cells.rindex("</text>") + len("</text>") :]
    styles = "".join([f".{name} {{ {style} }}\n" for style, name in names.items()])
    return "".join(
        [
            *(_STYLE.sub("", head), styles, _timing(seconds), "    </style>"),
            *(_RECT.sub("", outline), _layers([frame.rects for frame in frames])),
            *(_MATRIX, _layers([frame.texts for frame in frames]), end),
        ]
    )


def _frame(picture: str, names: dict[str, str]) -> _Frame:
    # Equal styles have other names in other pictures.
    own = {name: names.setdefault(style, f"s{len(names)}") for name, style in _STYLE.findall(picture)}
    texts = [f'<text class="{own[name]}"{rest}' for name, rest in _TEXT.findall(picture)]
    return _Frame([match[0] for match in _RECT.finditer(picture)], texts)


def _layers(frames: Sequence[Sequence[str]]) -> str:
    common = set(frames[0]).intersection(*frames[1:])
    groups = [
        f'<g class="f f{number}">{"".join([one for one in frame if one not in common])}</g>\n'
        for number, frame in enumerate(frames)
    ]
    return "".join([*[one for one in frames[0] if one in common], "\n", *groups])


def _timing(seconds: Sequence[float]) -> str:
    whole = sum(seconds)
    rules = [
        f".f {{ visibility: hidden; animation: {whole:g}s step-end infinite }}\n.f0 {{ visibility: visible }}\n"
    ]
    start = 0.0
    for number, length in enumerate(seconds):
        begin, end = 100 * start / whole, 100 * (start + length) / whole
        hidden = "0% { visibility: hidden } " if number else ""
        gone = f"{end:.2f}% {{ visibility: hidden }} " if end < 99.99 else ""
        rules.append(
            f"@keyframes k{number} {{ {hidden}{begin:.2f}% {{ visibility: visible }} {gone}}}\n"
            f".f{number} {{ animation-name: k{number} }}\n"
        )
        start += length
    return "".join(rules)
