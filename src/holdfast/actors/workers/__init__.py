"""Workers: permanent actors that do what has to be done outside a turn, and bring the news back."""
