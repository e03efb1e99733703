"""What starts and stops the service: its processes, and what they do before and after they serve."""
