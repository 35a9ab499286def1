"""Two distributions install a package named ``purgatory``: ``aiopurgatory`` (this one) and a circuit breaker.

pip does not detect that they share files.  The distribution that is installed last replaces ``purgatory/__init__.py``,
and uninstalling either one removes files of the other.  This module detects the conflict and names the commands that
repair the installation:

===========================================  =============================================
installed last                               the error is raised by
===========================================  =============================================
``aiopurgatory``                             ``import purgatory``
the circuit breaker                          the command ``purgatory`` and the pytest plugin
the circuit breaker, then uninstalled        the same
===========================================  =============================================

In the last two cases, ``import purgatory`` runs no code from this package.
"""

import os
import sys

__all__ = ["require_sole_package"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_THEIRS = ("domain", "service")  # folders of the circuit breaker


def require_sole_package(package: str = _HERE) -> None:
    """Raise ImportError if the circuit breaker is or was installed into the folder ``package``."""
    if any([os.path.isfile(os.path.join(package, name, "__init__.py")) for name in _THEIRS]):
        raise ImportError(
            "the distributions 'aiopurgatory' and 'purgatory' (a circuit breaker) are both installed. Both are imported"
            f" as purgatory, from {package}, so they need separate environments. To keep only aiopurgatory:"
            " pip uninstall -y purgatory aiopurgatory && pip install aiopurgatory"
        )
    # Without its first file, the folder is imported as a namespace package, which has no file.  The first file may also
    # be compiled, in a ZIP file, or frozen.
    if getattr(sys.modules[__name__.partition(".")[0]], "__file__", None) is None:
        raise ImportError(
            f"files of aiopurgatory are missing from {package}: uninstalling the distribution 'purgatory' (a circuit"
            " breaker) removes them. To restore them: pip install --force-reinstall --no-deps aiopurgatory"
        )
