"""What calls take and answer, and how values are rendered."""
