"""What is set: settings from the environment, their checks, and secrets in files."""
