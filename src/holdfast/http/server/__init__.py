"""An HTTP/1.1 server for ASGI applications on trio, with bounds on what a client can take of time and memory.

It replaces hypercorn's connection class and uses hypercorn's lifespan protocol, ASGI types and Config. Requests are
parsed by httptools (llhttp in its strict mode).

- :mod:`.limits`          every bound, in one frozen object, and the limit of open files
- :mod:`.request_parser`  bytes to requests, and refusals of invalid requests
- :mod:`.response_framing` status line, headers, length or chunks
- :mod:`.sources`         clients behind proxies: what each has in progress
- :mod:`.connection`      one connection: a task that reads, a task that responds, requests as ASGI scopes
- :mod:`.connections`     all open connections: their limit, their deadlines, the stop
- :mod:`.listener`        the accept loop of one listening socket
"""
