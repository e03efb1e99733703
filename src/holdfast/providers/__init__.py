"""What stands outside: media servers, card and mail, storage. Each a small protocol and its adapters."""
