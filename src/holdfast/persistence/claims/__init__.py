"""Claims: work found in rows and taken with ``FOR UPDATE SKIP LOCKED``, so that one process does it."""
