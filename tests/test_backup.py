"""The daily backup of deploy/holdfast-backup, restored as docs/operating.md says."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import psycopg

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.server_folders import place_programs

from .fresh_databases import drop_tables

SCRIPT = Path(__file__).parent.parent / "deploy" / "holdfast-backup"


def test_a_restored_backup_has_every_operation_and_result(
    books_url: str, database_url: str, tmp_path: Path
) -> None:
    backups, data_dir = tmp_path / "backups", tmp_path / "var"
    backups.mkdir()
    (data_dir / "assets" / "ab").mkdir(parents=True)
    (data_dir / "assets" / "ab" / "picture").write_bytes(b"pixels")
    programs = place_programs(tmp_path / "postgres", None)
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    parameters = psycopg.conninfo.conninfo_to_dict(books_url)
    where = {f"PG{name.upper().replace('DBNAME', 'DATABASE')}": str(value) for name, value in parameters.items()}
    subprocess.run([SCRIPT, backups, data_dir], env=environment | where, check=True)

    [dump] = backups.glob("ledger-[1-7].dump")
    [assets] = backups.glob("assets-[1-7].tgz")
    assert sorted(backups.iterdir()) == sorted([dump, assets])
    assert {each.stat().st_mode & 0o777 for each in (dump, assets)} == {0o600}
    drop_tables(database_url)
    subprocess.run([programs / "pg_restore", f"--dbname={database_url}", "--exit-on-error", dump], check=True)
    with connected(database_url) as restored, connected(books_url) as original:
        assert run_audit(restored) == {}
        counts = [
            each.exec_driver_sql("select count(*), sum(amount_micro) from postings where amount_micro > 0").one()
            for each in (restored, original)
        ]
    assert counts[0] == counts[1]
    assert counts[0][0] > 0
    with tarfile.open(assets) as archive:
        assert archive.getnames() == ["assets", "assets/ab", "assets/ab/picture"]
