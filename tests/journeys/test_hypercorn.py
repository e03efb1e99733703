"""The application under another ASGI server: hypercorn with its trio worker, which gives it ASGI alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.clients import ok, refused, until
from tests.event_streams import reading

from .conftest import NewCustomer, NewService
from .hypercorn_service import PROGRAM
from .service_process import Service
from .test_uploads import picture

BODY_BYTES_MAX = 64 * 1024


@pytest.fixture
def service(new_service: NewService) -> Iterator[Service]:
    """A service whose HTTP server is hypercorn."""
    service = new_service(BODY_BYTES_MAX=str(BODY_BYTES_MAX))
    service.program = PROGRAM
    service.start()
    yield service
    assert service.stop() == 0


@pytest.mark.slow
async def test_the_main_job_is_done_under_hypercorn(service: Service, new_customer: NewCustomer) -> None:
    ada = await new_customer(service, credit="5.00")
    assert (await ada.http.get("/healthz")).headers["Server"] == "hypercorn-h11"

    # A stream, whose client leaves it: that ends its request too.
    async with reading(service.url, ada.session, path="/v2/control/stream") as stream:
        created = ok(await ada.create(key="lighthouse"))
        while (event := await stream.next()) is not None:
            if created["request_id"] in event.fields["data"]:
                break
        assert event is not None
        assert service.metric("holdfast_http_waiting") == 1

    async def is_left() -> bool:
        return service.metric("holdfast_http_waiting") == 0

    await until(is_left)

    waited = ok(await ada.as_key("GET", f"/v2/task/{created['request_id']}?wait=60"))
    assert waited["status"] == "succeeded"
    assert ok(await ada.create(key="lighthouse"))["request_id"] == created["request_id"]
    [output] = waited["output"]
    downloaded = await ada.http.get(output["url"])
    assert downloaded.status_code == 200
    assert downloaded.content.startswith(b"\x89PNG")

    content = picture(size=(1000, 1000))
    assert len(content) > BODY_BYTES_MAX
    uploaded = ok(await ada.as_key("POST", "/v2/files", files={"file": ("picture.png", content)}))
    assert uploaded["bytes"] == len(content)

    # Refused before it is read, and after as much of it as is allowed; the client gets the response to both.
    large = b'{"model": "' + b"x" * 4_000_000 + b'"}'
    headers = {"Content-Type": "application/json"}

    async def in_parts() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    for body in (large, in_parts()):
        refused(
            await ada.as_key("POST", "/v2/task/create", content=body, headers=headers), 413, "request_too_large"
        )
    assert service.faults() == []
    assert service.audit() == []
