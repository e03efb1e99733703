"""Media tasks: their states and transitions, provider updates, hosting of outputs, and events for their owners."""
