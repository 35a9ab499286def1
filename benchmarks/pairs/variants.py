"""Copies of a checkout that lack one feature: what this feature costs."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VARIANTS", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of one line of the sources.  ``line`` must occur in ``file`` exactly once."""

    file: str
    line: str
    instead: str

    def build(self, tree: Path, folder: Path) -> Path:
        """Copy the sources of the checkout into a new folder, change the line, and compile.

        Raises ValueError if the line is not there.
        """
        ignore = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
        copy = Path(shutil.copytree(tree / "purgatory", folder / "purgatory", ignore=ignore)).parent
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(tree / name, copy)
        source = (copy / self.file).read_text(encoding="utf-8")
        if source.count(self.line) != 1:
            raise ValueError(f"{self.line.strip()!r} must be in {tree / self.file} once, got {source.count(self.line)}")
        (copy / self.file).write_text(source.replace(self.line, self.instead), encoding="utf-8")
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        environment = {**os.environ, "PURGATORY_COMPILE": "1"}
        subprocess.run(command, cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)
        return copy


VARIANTS = {
    "thread-check": Variant(
        "purgatory/core/timer/thread_guard.py",
        "        is_here = self._is_here\n",
        "        is_here: Any = None\n",
    ),
    "weak-references": Variant("setup.py", "        support_weak_references(built)\n", "        pass\n"),
}
