"""What operators see: log lines, metrics, reports and traces."""
