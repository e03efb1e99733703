"""An HTTP/1.1 server for ASGI applications on trio, with bounds on what a client can take of time and memory.

It serves any application of ASGI 3, and knows none: proxies, the form of error responses and what else happens at
a stop are arguments of :class:`.connections.Connections`. The lifespan of the application is not run here. Requests
are parsed by httptools (llhttp in its strict mode).

Beyond ASGI, it cancels the application's call if the client disconnects before the response is complete, and if the
response starts before the body has come, it discards the rest for ``rest_of_body_s``. The extension
``holdfast.cancels`` of a request's scope says so to the application, which then need not await ``http.disconnect``.
``holdfast.undelivered`` is a list of functions, to which the application adds: they are called if the response
could not be sent, or the client closed before its machine had all of it. After a reset that is not known.

- :mod:`.limits`       every bound, in one frozen object, and the limit of open files
- :mod:`.http1`        bytes to requests, responses to bytes, and the responses that the server itself gives
- :mod:`.sources`      clients behind proxies: what each has in progress
- :mod:`.connection`   one connection: a task that reads, a task that responds, requests as ASGI scopes
- :mod:`.connections`  all open connections: their limit, their deadlines, the stop
- :mod:`.listener`     the accept loop of one listening socket
"""
