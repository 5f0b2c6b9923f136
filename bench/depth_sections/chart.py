"""Line charts as one SVG file, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.depth_sections.section import Lines, shown

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 300, 62, 74, 34
_COLOURS = ("#2f7ed8", "#d9822b", "#2ca06b", "#c2456b", "#8a63d2", "#7f8c99")
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #6e7781 } .title { font-weight: 600; font-size: 15px }
.grid { stroke: #8884; stroke-width: 1 } .line { fill: none; stroke-width: 2.2 }
@media (prefers-color-scheme: dark) { text { fill: #adbac7 } }
"""


def draw(pictures: Sequence[Lines]) -> str:
    """All pictures, one below the other."""
    height = _HEIGHT * len(pictures)
    named = escape("; ".join(picture.title for picture in pictures))
    inside = "\n".join(
        f'<g transform="translate(0 {n * _HEIGHT})">\n' + "\n".join(_picture(picture)) + "\n</g>"
        for n, picture in enumerate(pictures)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{named}">\n<style>{_STYLE}</style>\n{inside}\n</svg>\n'
    )


def _picture(picture: Lines) -> Iterator[str]:
    top = _ceiling(max(value for line in picture.lines.values() for value in line))
    yield f'<text class="title" x="12" y="22">{escape(picture.title)}</text>'
    yield f'<text x="12" y="42">{escape(picture.unit)}</text>'
    for part in range(5):
        y = _y(top * part / 4, top)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(top * part / 4)}</text>'
    for n, place in enumerate(picture.places):
        x = _x(n, len(picture.places))
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(place)}</text>'
    across = 155.0
    for (name, line), colour in zip(picture.lines.items(), _COLOURS, strict=False):
        points = [(_x(n, len(line)), _y(value, top)) for n, value in enumerate(line)]
        yield (f'<polyline class="line" stroke="{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
        label = f"{name} {shown(line[-1])}"
        yield f'<rect x="{across:.0f}" y="33" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{across + 14:.0f}" y="42">{escape(label)}</text>'
        across += 22 + 6.7 * len(label)


def _x(n: int, places: int) -> float:
    return _LEFT + 40 + n * (_WIDTH - _LEFT - 100) / max(1, places - 1)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)


def _ceiling(value: float) -> float:
    """A round number above all values, so that quarters of it are round too."""
    step = 10 ** math.floor(math.log10(value))
    return float(
        next(step * share for share in (1, 1.2, 1.6, 2, 2.4, 3, 4, 6, 8, 10, 12) if step * share >= value * 1.02)
    )
