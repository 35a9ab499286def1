"""``python -m examples``: run the long poll and then the join-group simulation (half a minute in total)."""

import sys

from purgatory.broken_pipe import run_command

__all__ = ["main"]


def main() -> int:
    """Run both demonstrations.  Return the exit status of the first demonstration that fails."""
    try:
        from .join_group.__main__ import main as join_group
        from .long_poll.demo import main as long_poll
    except ImportError as error:
        print(f"the examples need {error.name!r}: pip install 'aiopurgatory[examples]'", file=sys.stderr)
        return 1
    print("A long poll: python -m examples.long_poll.demo\n", flush=True)
    status = long_poll()
    if status:
        return status
    print("\nKafka consumer groups that rebalance: python -m examples.join_group\n", flush=True)
    return join_group([])


if __name__ == "__main__":
    sys.exit(run_command(main))
