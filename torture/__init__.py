"""A torture harness: injects faults around the service and compares its responses with its rows."""
