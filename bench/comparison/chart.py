"""A bar chart of the main figures as one SVG file, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_PANELS = (
    ("drain_per_s", "drained a second (more is better)", False),
    ("enqueue_per_s", "enqueued a second (more is better)", False),
    ("p50_ms", "idle enqueue → start, median ms (less is better)", True),
)
_WIDTH, _LABEL, _VALUE, _BAR, _HEAD = 720, 150, 80, 22, 38

# Colours that stand out on white and on black alike; the text follows the page where the viewer tells.
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #6e7781; }
.head { font-weight: 600; }
.bar { fill: #8b949e; }
.ours { fill: #2f81f7; }
@media (prefers-color-scheme: dark) { text { fill: #adbac7; } }
"""


def svg(rows: Sequence[dict[str, Any]], caption: str) -> str:
    """The chart; each panel is sorted, best first, and a figure that is missing has no bar."""
    parts: list[str] = []
    top = 8
    for figure, title, less in _PANELS:
        shown = sorted((row for row in rows if row[figure]), key=lambda row: row[figure], reverse=not less)
        if shown:
            parts += _panel(shown, figure, title, top)
            top += _HEAD + len(shown) * _BAR
    height = top + 30
    parts.append(f'<text x="0" y="{height - 10}">{escape(caption)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"<title>{escape(caption)}</title>",
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _panel(rows: Sequence[dict[str, Any]], figure: str, title: str, top: int) -> list[str]:
    most = max(row[figure] for row in rows)
    lines = [f'<text class="head" x="0" y="{top + 20}">{escape(title)}</text>']
    for place, row in enumerate(rows):
        y = top + _HEAD - 8 + place * _BAR
        long = max(1.0, (_WIDTH - _LABEL - _VALUE) * row[figure] / most)
        kind = "bar ours" if row["name"] == "tenure" else "bar"
        value = f"{row[figure]:,.1f}" if isinstance(row[figure], float) else f"{row[figure]:,}"
        lines += [
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(row["name"])}</text>',
            f'<rect class="{kind}" x="{_LABEL}" y="{y + 2}" width="{long:.1f}" height="{_BAR - 6}" rx="2"/>',
            f'<text x="{_LABEL + long + 6:.1f}" y="{y + 14}">{value}</text>',
        ]
    return lines
