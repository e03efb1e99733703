"""The programs that the parent starts: the workers, the emulators, and the migration before them."""
