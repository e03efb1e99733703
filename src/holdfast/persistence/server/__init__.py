"""The PostgreSQL server: connections, the embedded server, migrations."""
