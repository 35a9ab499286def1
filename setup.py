"""Build the package: the core compiled by mypyc where that is possible, as plain Python where it is not.

The source is the same either way.  It is compiled when a wheel is built or installed and a C compiler is at hand.  It
is not compiled in an editable install, where an extension beside a source that is being edited would win over it,
unless ``PURGATORY_COMPILE=1`` asks for it; ``PURGATORY_COMPILE=0`` says no everywhere.

Where the project lives is not written down in it, because a copy would not know: ``PURGATORY_URL`` tells the address of
the repository that publishes, and the metadata then has the project's URLs.  A source distribution remembers them for
the wheels that are built from it.
"""

import email
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

# The synchronous floors; what is above them awaits, and stays interpreted.
CORE = [
    "histogram",
    "units",
    "timer/task",
    "timer/wheel",
    "timer/system",
    "endings",
    "operation",
    "watch",
    "thresholds",
    "keys",
    "watchers",
    "books",
    "ledger",
    "hearing",
    "clock",
    "timekeeper",
    "keeper",
    "checks",
    "desk",
    "room",
    "timeouts",
]

PLACES = {
    "Homepage": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
    "Source": "",
}
HERE = Path(__file__).parent


def say(message: str) -> None:
    """Tell the one who installs; pip shows it with -v, and where the build fails."""
    print(f"aiopurgatory: {message}", file=sys.stderr)


def has_compiler() -> bool:
    """Whether the compiler that Python was built with, or the one in CC, is on the PATH."""
    if sys.platform == "win32":
        return True  # found through the registry, not on the PATH; build_ext tells
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0]) is not None


def is_wanted() -> bool:
    """Whether to compile, saying so in one line if not."""
    asked = os.environ.get("PURGATORY_COMPILE", "")
    if asked == "0":
        say("PURGATORY_COMPILE=0: installing as pure Python")
        return False
    if asked != "1":
        if not {"bdist_wheel", "install", "build", "build_ext"} & set(sys.argv[1:]):
            return False
        if {"editable_wheel", "develop"} & set(sys.argv[1:]):
            return False
    if not has_compiler():
        say("no C compiler at hand: installing as pure Python")
        return False
    return True


class OptionalBuild(build_ext):
    """Compile if possible; a compiler that does not work is no reason not to install."""

    def run(self) -> None:
        """Compile, or leave the sources as they are."""
        try:
            super().run()
        except Exception as error:
            if os.environ.get("PURGATORY_COMPILE") == "1":
                raise
            say(f"the C compiler failed ({error}): installing as pure Python")
            self.extensions.clear()


def extensions() -> list[object]:
    """The compiled core, or nothing."""
    if not is_wanted():
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        say("mypyc is not there: installing as pure Python")
        return []
    return list(mypycify(["--strict", *[f"purgatory/{name}.py" for name in CORE]], opt_level="3"))


def address() -> str:
    """Where the project lives: what is asked for, or what the source distribution remembers; empty: not known."""
    url = os.environ.get("PURGATORY_URL", "").rstrip("/").removesuffix(".git")
    if url and not re.fullmatch(r"https://[^\s/]+/\S+", url):
        raise SystemExit(f"PURGATORY_URL is the https:// address of the repository, not {url!r}")
    remembered = HERE / "PKG-INFO"
    if not url and remembered.exists():
        told = email.message_from_bytes(remembered.read_bytes()).get_all("Project-URL", [])
        url = dict(line.split(", ", 1) for line in told).get("Source", "")
    return url


url = address()
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuild},
    project_urls={label: url + path for label, path in PLACES.items()} if url else {},
)
