"""Take the screenshots of the inspector: ``python docs/screenshots.py``.

Like the browser tests, the script needs Playwright and Chromium.  It also needs Pillow, to reduce the size of the
files.
"""

import io
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
COMMAND = [sys.executable, "-m", "examples.join_group", "--web", "--port", "0", "--plain", "--crash-rate", "3"]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"": (1200, 900), "phone-": (390, 844)}
LATER = "() => frame !== null && frame.rooms[0].clock > 300 && frame.rooms.every((room) => room.minute.completed > 0)"


def main() -> None:
    """Start a simulation, and take screenshots of its inspector on a desktop and on a phone, in light and dark mode."""
    with (
        subprocess.Popen(COMMAND, cwd=IMAGES.parent.parent, stdout=subprocess.PIPE, text=True) as simulation,
        sync_playwright() as playwright,
    ):
        assert simulation.stdout is not None
        url = simulation.stdout.readline().removeprefix("live page: ").strip()
        chromium = shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for (size, (width, height)), scheme in itertools.product(SIZES.items(), SCHEMES):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
            page.goto(f"{url}purgatory/")
            page.wait_for_function(LATER, timeout=90_000)
            taken = Image.open(io.BytesIO(page.screenshot(full_page=not size)))
            path = IMAGES / f"inspector-{size}{scheme}.png"
            taken.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size // 1024} KiB")
            page.close()
        browser.close()
        simulation.terminate()


if __name__ == "__main__":
    main()
