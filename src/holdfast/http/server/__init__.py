"""An HTTP/1.1 server for ASGI applications on trio, whose time, memory and life do not depend on its clients.

It takes the place of hypercorn's connection class. What it keeps of hypercorn is the lifespan protocol, its ASGI
types and its Config. Requests are parsed by httptools (llhttp in its strict mode).

- :mod:`.limits`          every bound, in one frozen object
- :mod:`.request_parser`  bytes to requests, and which requests are refused below the application
- :mod:`.answer`          how an answer is framed
- :mod:`.connection`      one connection: a task that reads, a task that answers
- :mod:`.connections`     all open connections: how many there may be, deadlines, the stop
- :mod:`.listener`        the accept loop of one listening socket
- :mod:`.open_files`      the limit of open files
"""
