"""What commands show in a terminal while they run: the progress of the audit, the live tree, a provider's check."""
