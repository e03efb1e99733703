"""The HTTP API: routes, credentials, request and response bodies, the error table. Handlers only ask and read."""
