"""The journal: the only write path. Units of work are grouped into batches, one transaction each."""
