"""Storage: tables, the journal (the one write path), queries, migrations, the embedded database."""
