"""``python -m holdfast``, and the command ``holdfast``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

INTERRUPTED: Final = 130
"""As shells report a command that Ctrl-C ended."""
INIT_PID: Final = 1


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while its modules are imported."""
    # Inherited from a caller who ignores the ends of its children, it would hide those of ours.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if os.getpid() == INIT_PID:
            from holdfast.start.init_process import run_in_child

            run_in_child()
        from holdfast.start.loading import load_structlog

        load_structlog()
        from holdfast.commands.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
