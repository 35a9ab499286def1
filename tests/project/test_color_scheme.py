"""The hook of the documentation that makes pictures follow the page's switch between light and dark."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_picture_becomes_an_image_for_each_scheme() -> None:
    """Every picture in the documentation has the form that the hook replaces."""
    spec = importlib.util.spec_from_file_location("color_scheme", ROOT / "docs" / "color_scheme.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    pictures = [
        picture
        for page in (ROOT / "docs").rglob("*.md")
        for picture in re.findall(r"<picture>.*?</picture>", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(pictures) >= 4
    for picture in pictures:
        shown = hook.on_page_content(f"<p>{picture}</p>", page=None)
        assert re.fullmatch(
            r'<p><img alt="[^"]+" src="[^"]+#only-light"><img alt="[^"]+" src="[^"]+#only-dark"></p>', shown
        )


def test_every_screenshot_and_diagram_in_pixels_has_both_schemes() -> None:
    """A picture with a background of its own exists in a light and in a dark form."""
    names = {path.stem for path in (ROOT / "docs" / "images").glob("*.png")}
    bare = {name.removesuffix("-light").removesuffix("-dark") for name in names}
    assert names == {f"{name}-{scheme}" for name in bare for scheme in ("light", "dark")}
