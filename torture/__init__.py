"""A harness that breaks everything around the service and compares what it answered with what its rows say."""
