"""Empty migrated databases, reused between tests: emptying one is ten times cheaper than creating one.

Each test finds one as if it had just been created, also without the planner's statistics of an earlier test.
"""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit, urlunsplit

import psycopg

from holdfast.persistence.server.migrate import migrate

_SCHEMA = """
    select md5(string_agg(part, '|' order by part)) from (
        select format('%s %s %s %s %s', c.relkind, c.oid::regclass, c.reloptions, c.relacl, (
            select string_agg(format('%s %s %s %s', attname, atttypid, attnotnull, atthasdef), ',' order by attnum)
            from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped)) as part
        from pg_class c where c.relnamespace = 'public'::regnamespace
        union all select format('trigger %s %s %s', tgrelid::regclass, tgname, tgenabled)
        from pg_trigger where not tgisinternal
        union all select format('constraint %s %s', conname, pg_get_constraintdef(oid))
        from pg_constraint where connamespace = 'public'::regnamespace
        union all select format('function %s %s', proname, prosrc)
        from pg_proc where pronamespace = 'public'::regnamespace
        union all select format('namespace %s %s', nspname, nspacl) from pg_namespace where nspname not like 'pg_%'
        union all select format('setting %s', setconfig) from pg_db_role_setting
        union all select format('version %s', version_num) from alembic_version
    ) parts
"""


_TABLE_BYTES_MAX = 2 * 8192
"""A larger table is truncated, even if its rows are gone. The planner takes every table without statistics that has
fewer than ten pages for one of ten, so the deleted rows of earlier tests change no plan."""
_BEGIN_RECEIPTS = "update receipt_series set last_number = 0, begun_at = now()"
"""As the migration leaves it, which is the one that adds a row."""


def on_database(url: str, name: str) -> str:
    """The same server's URL for another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _name(url: str) -> str:
    return urlsplit(url).path[1:]


def drop_tables(url: str) -> None:
    """Leave a database as it is created, without a table."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")


class FreshDatabases:
    """Databases of one server. A database whose schema a test has changed is dropped, not reused."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._free: list[str] = []
        self._connections: dict[str, psycopg.Connection] = {}
        """By the name of their database; a new one finds nothing cached at its server."""
        self._template = self._create()
        migrate(on_database(server_url, self._template))
        is_large = f"(reltuples >= 0 or pg_relation_size(oid) > {_TABLE_BYTES_MAX})"
        with psycopg.connect(on_database(server_url, self._template)) as connection:
            tables = connection.execute(
                "select oid::regclass from pg_class"
                " where relkind = 'r' and relnamespace = 'public'::regnamespace"
                " and relname not in ('alembic_version', 'receipt_series')"
            ).fetchall()
            self._used = " union all ".join(
                f"select '{table}', {is_large} from pg_class where oid = '{table}'::regclass"
                f" and (exists (select from {table}) or {is_large})"
                for (table,) in tables
            )
            self._schema = self._schema_of(connection)

    def take(self) -> str:
        """The URL of an empty database."""
        if self._free:
            return on_database(self._server_url, self._free.pop())
        # Without fsync the checkpoint before a copy of files costs less than logging each page.
        url = on_database(self._server_url, self._create(f" template {self._template} strategy file_copy"))
        with psycopg.connect(url, autocommit=True) as connection:
            # The audit expects receipts of money that has moved long ago: the history may be older by now.
            connection.execute(_BEGIN_RECEIPTS)
        return url

    def give_back(self, url: str) -> None:
        """Empty a database for the next test, after closing its other connections."""
        name = _name(url)
        if self._emptied(name) or self._emptied(name):
            self._free.append(name)
        else:
            self.drop(url)

    def drop(self, url: str) -> None:
        """Drop a database, after closing its connections."""
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(f"drop database if exists {_name(url)} with (force)")

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def _create(self, options: str = "") -> str:
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(f"create database {name}{options}")
        return name

    def _emptied(self, name: str) -> bool:
        """Empty a database by the connection that was used for it before, or by a new one; False if that fails."""
        connection = self._connections.pop(name, None)
        try:
            if connection is None:
                connection = psycopg.connect(on_database(self._server_url, name), autocommit=True)
            connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            if self._schema_of(connection) != self._schema:
                connection.close()
                return False
            with connection.transaction():
                self._empty(connection)
        except psycopg.Error:
            if connection is not None:
                connection.close()
            return False
        self._connections[name] = connection
        return True

    def _empty(self, connection: psycopg.Connection) -> None:
        connection.execute(_BEGIN_RECEIPTS)
        used = connection.execute(self._used).fetchall()
        if not used:
            return
        small = [table for table, is_large in used if not is_large]
        large = [table for table, is_large in used if is_large]
        guards = connection.execute(
            "select tgrelid::regclass, tgname from pg_trigger where tgenabled = 'A' and not tgisinternal"
        )
        # A truncation reaches tables that refer to a used one.
        protected = [(table, trigger) for table, trigger in guards if large or table in small]
        for table, trigger in protected:
            connection.execute(f"alter table {table} disable trigger {trigger}")
        if large:
            connection.execute(f"truncate {', '.join(large)} cascade")
            connection.execute("delete from pg_statistic where starelid::regclass::text = any(%s)", (large,))
        # In any order: foreign keys are not checked then. A truncation costs five times as much, most of it for the
        # tables that refer to a table.
        connection.execute("set local session_replication_role = replica")
        for table in small:
            connection.execute(f"delete from {table}")
        for table, trigger in protected:
            connection.execute(f"alter table {table} enable always trigger {trigger}")

    @staticmethod
    def _schema_of(connection: psycopg.Connection) -> str:
        found = connection.execute(_SCHEMA).fetchone()
        assert found is not None
        return str(found[0])
