"""Name the extra to install where an optional part lacks one."""

from importlib.util import find_spec

__all__ = ["need"]


def need(part: str, extra: str, *modules: str) -> None:
    """Raise ImportError with the command to run, unless all the modules are installed."""
    for module in modules:
        if not _is_there(module):
            message = f"{part} needs {module!r}, which is not installed: pip install 'aiopurgatory[{extra}]'"
            raise ImportError(message, name=module)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
