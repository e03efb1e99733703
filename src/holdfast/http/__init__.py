"""Who asks: routes, credentials, request and response shapes, the error table. Handlers only ask and read."""
