"""The operators' endpoints: decisions about reviews and payments."""
