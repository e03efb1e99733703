"""What is recorded of the past: operators' actions, reports, samples."""
