"""Mail: the interface, and what sends it: through an SMTP server, or in development into files."""
