"""Media providers: what all processes see of them, and checks of one by a real job."""
