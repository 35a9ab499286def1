"""Texts about the user's objects, for errors and reports.

A message must not replace the error that it describes: ``repr`` runs the user's code, which may raise.
"""

from typing import Any, Final

__all__ = ["class_name", "safe_repr", "safe_str", "type_name", "uncopyable"]

_NAME: Final[Any] = type.__dict__["__name__"]  # the descriptor itself: a metaclass may have another ``__name__``


def class_name(kind: type) -> str:
    """Return the name of the class, without running any code of its metaclass."""
    name: str = _NAME.__get__(kind)
    return name


def type_name(thing: object) -> str:
    """Return the name of the object's class, without running any code of that class."""
    return class_name(type(thing))


def safe_repr(thing: object) -> str:
    """Return ``repr(thing)``, or a text that names the class and the error if the ``repr`` raises one."""
    try:
        return repr(thing)
    except Exception as error:
        return f"<{type_name(thing)} whose repr raised {type_name(error)}>"


def safe_str(thing: object) -> str:
    """Return ``str(thing)``, or a text that names the class and the error if the ``str`` raises one."""
    try:
        return str(thing)
    except Exception as error:
        return f"<{type_name(thing)} whose str raised {type_name(error)}>"


def uncopyable(thing: object, why: str) -> TypeError:
    """Return the error of an object that must not be copied or pickled."""
    name = type_name(thing)
    return TypeError(f"{name} must not be copied or pickled: {why}, so make a new {name}")
