"""The exit codes of the service, of its parent and of what the parent starts."""

from __future__ import annotations

from typing import Final

CLEAN: Final = 0
GAVE_UP: Final = 1
"""Or failed: what failed may succeed later."""
BAD_CONFIGURATION: Final = 2
"""Starting again is of no use until a setting, a file or a port has changed."""
