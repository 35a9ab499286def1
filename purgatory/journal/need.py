"""Say which extra is missing, instead of which module."""

from importlib import import_module

__all__ = ["need"]


def need(extra: str, *modules: str) -> None:
    """Raise ImportError with the command that helps, unless all the modules can be imported."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            package = __name__.rsplit(".", 2)[0]
            raise ImportError(
                f"{package}.{extra if extra == 'journal' else 'pipeline'} needs {module!r}, which cannot be imported"
                f" ({error}): pip install 'aiopurgatory[{extra}]'",
                name=module,
            ) from error
