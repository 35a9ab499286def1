"""Say which extra is missing, instead of which module."""

from importlib.util import find_spec

__all__ = ["need"]


def need(room: str, extra: str, *modules: str) -> None:
    """Raise ImportError with the command that helps, unless all the modules are there."""
    for module in modules:
        if not _is_there(module):
            message = f"{room} needs {module!r}, which is not installed: pip install 'aiopurgatory[{extra}]'"
            raise ImportError(message, name=module)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
