"""``python -m holdfast``, and the command ``holdfast``."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130
"""As shells report a command that Ctrl-C ended."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while its modules are imported."""
    try:
        from holdfast.commands.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
