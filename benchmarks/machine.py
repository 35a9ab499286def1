"""The machine on which the figures were measured."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import purgatory

__all__ = ["compiled", "describe"]


def compiled() -> bool:
    """Return whether the core that is measured is compiled."""
    return bool(getattr(purgatory, "COMPILED", False))


def describe() -> dict[str, str]:
    """Return the machine and the versions, for the head of the table."""
    return {
        "core": "compiled" if compiled() else "interpreted",
        "cpu": f"{_cpu()}, {_cores()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": _version("uvloop"),
        "anyio": _version("anyio"),
        "purgatory": purgatory.__version__,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return f"{int(line.split()[1]) / 1024 / 1024:.0f} GiB"
    return "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
