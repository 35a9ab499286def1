"""A process that imports one version of the library: ``python -m benchmarks.pairs.child TREE load NAME``.

It takes a sample for each line of its standard input, and prints it.  ``... TREE server FORM FD`` is the server of
``benchmarks.server.app`` with that version.  Imports nothing of the library before ``TREE`` is first on the path.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the load or the server."""
    tree, what, *rest = sys.argv[1:]
    sys.path.insert(0, tree)
    import purgatory

    if not Path(purgatory.__file__).is_relative_to(tree):
        raise SystemExit(f"purgatory must be imported from {tree}, got {purgatory.__file__}")
    if what == "server":
        from benchmarks.server import app

        sys.argv[1:] = rest
        app.main()
    else:
        _take_samples(*rest)


def _take_samples(name: str) -> None:
    import gc

    from .loads import LOADS

    gc.disable()  # chance would decide which sample contains a collection
    with LOADS[name].prepared() as sample:
        for _ in sys.stdin:
            print(sample(), flush=True)


if __name__ == "__main__":
    main()
