"""Data folders with an embedded database, migrated and empty: copying one costs a tenth of creating one."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import migrate


def create_data_folder(data_dir: Path) -> None:
    """Create a data folder whose database is at its first use."""
    data_dir.mkdir(mode=0o700)
    # With owners: the server's user may be another one.
    subprocess.run(["cp", "-a", _template(), data_dir / "postgres"], check=True)


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-template-"))
    folder.chmod(0o711)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = EmbeddedPostgres(folder / "var")
    try:
        migrate(server.start())
    finally:
        server.stop()
        server.release()
    return folder / "var" / "postgres"
