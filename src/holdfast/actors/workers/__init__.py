"""Workers: supervised actors and loops that do the work outside actor turns."""
