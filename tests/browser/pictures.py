"""`./dev pictures`: stage the database of a shop and write pictures of its pages to docs/pictures."""

from __future__ import annotations

import base64
import shutil
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Browser, sync_playwright

from tenure.embedded import Cluster
from tenure.postgres.migrate import migrate
from tests.browser.conftest import ARGUMENTS
from tests.browser.staged import stage
from tests.dashboard.conftest import serving
from tests.http.conftest import Caller

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
#: File → the page, dark or light, whether on a phone, and how high.
SHOWN = {
    "overview": ("/", "light", False, 800),
    "overview-dark": ("/", "dark", False, 800),
    "job": ("/jobs/", "light", False, 800),
    "contract": ("/contracts/", "light", False, 830),
    "dead-letters": ("/dead-letters", "dark", False, 620),
    "flow": ("/flows/", "light", False, 620),
    "overview-phone": ("/", "light", True, 740),
    "job-phone": ("/jobs/", "dark", True, 740),
}
MOST_BYTES = 150_000
#: A picture in at most 256 colours, the nearest ones of those that occur most often, as the browser computes it.
_REDUCE = """async (address) => {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
    canvas.drawImage(image, 0, 0);
    const pixels = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
    const counts = new Map();
    for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const parts = (color) => [color & 255, (color >> 8) & 255, (color >> 16) & 255];
    const palette = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 256).map(([color]) => parts(color));
    const nearest = new Map();
    const find = (color) => {
        const [r, g, b] = parts(color);
        let best = 0, least = Infinity;
        palette.forEach(([red, green, blue], place) => {
            const distance = (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
            if (distance < least) [best, least] = [place, distance];
        });
        nearest.set(color, best);
        return best;
    };
    let text = '';
    for (const pixel of pixels) text += String.fromCharCode(nearest.get(pixel) ?? find(pixel));
    return {width: image.width, height: image.height, palette: palette.flat(), places: btoa(text)};
}"""


def main() -> int:
    """Write the pictures, or those that are named; 1 if one is too large."""
    program = shutil.which("chromium")
    if program is None:
        sys.stderr.write("Chromium is not installed (Debian: apt-get install chromium)\n")
        return 1
    wanted = sys.argv[1:] or list(SHOWN)
    large = []
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory) / "pg") as cluster:
        migrate(cluster.dsn)
        with (
            serving(cluster.dsn, trace_url="https://traces.example.com/{trace_id}") as url,
            httpx2.Client(base_url=url, timeout=60) as client,
            sync_playwright() as playwright,
        ):
            names = stage(cluster.dsn, http := Caller(client))
            while http.get(f"/api/v1/contracts/{names['/contracts/']}/verification")["state"] == "running":
                time.sleep(0.2)
            browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
            for name in wanted:
                content = take(browser, url, names, name)
                (PICTURES / f"dashboard-{name}.png").write_bytes(content)
                sys.stderr.write(f"docs/pictures/dashboard-{name}.png: {len(content):,} bytes\n")
                large += [name] if len(content) > MOST_BYTES else []
            browser.close()
    if large:
        sys.stderr.write(f"larger than {MOST_BYTES:,} bytes: {', '.join(large)}\n")
    return 1 if large else 0


def take(browser: Browser, url: str, names: dict[str, str], name: str) -> bytes:
    """The picture of a page as a PNG file."""
    path, scheme, is_phone, height = SHOWN[name]
    size = {"width": 360 if is_phone else 1280, "height": height}
    context = browser.new_context(base_url=url, viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(path + names.get(path, ""))
    page.wait_for_function("[...document.querySelectorAll('.chart')].every((one) => one.querySelector('canvas'))")
    page.wait_for_function("[...document.querySelectorAll('time')].every((one) => one.title)")
    taken = base64.b64encode(page.screenshot()).decode()
    context.close()
    reducing = browser.new_page()
    reduced = reducing.evaluate(_REDUCE, f"data:image/png;base64,{taken}")
    reducing.close()
    return to_png(reduced)


def to_png(reduced: dict[str, Any]) -> bytes:
    """A PNG file with a palette."""
    width, height = reduced["width"], reduced["height"]
    places = base64.b64decode(reduced["places"])
    rows = b"".join(b"\0" + places[row * width : (row + 1) * width] for row in range(height))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(reduced["palette"])),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


if __name__ == "__main__":
    sys.exit(main())
