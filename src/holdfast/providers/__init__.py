"""External services (media, card, mail, storage): for each a small protocol and its adapters."""
