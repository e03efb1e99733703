"""The operators' pages: HTML of what the operators' endpoints return, and forms for their actions."""
