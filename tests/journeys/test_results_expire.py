"""Expiry of stored results, in a folder and in a bucket: links, bytes, rows and credit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import psycopg
import pytest
import trio
from tests.clients import Customer, code_of, ok, until
from tests.forked_processes import run_holdfast

from .conftest import NewCustomer, NewService
from .service_process import Service

if TYPE_CHECKING:
    from tests.bucket_server import BucketServer

INPUT = {"prompt": "the last light of the year", "width": 256, "height": 256, "n": 1, "seed": 3}


class IsStored(Protocol):
    """Whether content is stored, checked in the store itself."""

    def __call__(self, sha256: str) -> bool: ...


def bring_forward(service: Service, request_id: str) -> None:
    """Let a task's results and their claims expire now."""
    with psycopg.connect(service.database_url) as rows:
        rows.execute("update assets set expires_at = now() where request_id = %s", (request_id,))
        rows.execute(
            "update contents set claimed_until = claimed_until - interval '1 day' where sha256 in "
            "(select sha256 from assets where request_id = %s)",
            (request_id,),
        )


async def expired(ada: Customer, request_id: str) -> dict[str, Any]:
    """Wait until the task's hosting has expired, and return the task."""

    async def look() -> dict[str, Any] | None:
        task = await ada.task(request_id)
        return task if task["hosting"]["status"] == "expired" else None

    return await until(look)


@pytest.mark.slow
async def test_results_in_a_folder_are_served_until_they_expire(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    def is_stored(sha256: str) -> bool:
        return (shared_service.data_dir / "assets" / sha256[:2] / f"{sha256}.png").is_file()

    await check_retention(shared_service, is_stored, await new_customer(shared_service, credit="1.00"))


@pytest.mark.slow
async def test_results_in_a_bucket_are_served_until_they_expire(
    bucket: BucketServer, new_service: NewService, new_customer: NewCustomer
) -> None:
    bucket.empty()
    service = new_service(**bucket.settings())
    await trio.to_thread.run_sync(service.start)
    assert bucket.objects() == {}

    def is_stored(sha256: str) -> bool:
        return f"assets/{sha256[:2]}/{sha256}.png" in bucket.objects()

    await check_retention(service, is_stored, await new_customer(service, credit="1.00"))
    assert not (service.data_dir / "assets").exists()
    assert not any((service.data_dir / "incoming").glob("*"))
    assert service.faults() == []


async def check_retention(service: Service, is_stored: IsStored, ada: Customer) -> None:
    """Two tasks store the same picture; one expires, then the other."""
    with trio.fail_after(240):
        body = {"model": "studio/image-1", "input": INPUT}
        first, second = [ok(await ada.as_key("POST", "/v2/task/create", body))["request_id"] for _ in range(2)]
        tasks = await ada.all_ended()
        [item], [same] = tasks[first]["output"], tasks[second]["output"]
        sha256 = item["sha256"]
        assert same["sha256"] == sha256
        assert is_stored(sha256)

        whole = await ada.http.get(item["url"])
        assert (whole.status_code, whole.headers["Content-Type"]) == (200, "image/png")
        assert (hashlib.sha256(whole.content).hexdigest(), len(whole.content)) == (sha256, item["bytes"])
        for asked, expected in (("bytes=0-7", whole.content[:8]), ("bytes=-5", whole.content[-5:])):
            part = await ada.http.get(item["url"], headers={"Range": asked})
            assert (part.status_code, part.content) == (206, expected)
        beyond = await ada.http.get(item["url"], headers={"Range": f"bytes={item['bytes']}-"})
        assert beyond.status_code == 416
        totals, usage = await ada.totals(), ok(await ada.as_session("GET", "/v2/usage/logs"))

        bring_forward(service, first)
        over = await expired(ada, first)
        assert (over["status"], over["hosting"]["final_url_ready"]) == ("succeeded", False)
        [described] = over["output"]
        assert (described["url"], described["sha256"], described["bytes"]) == (None, sha256, item["bytes"])
        assert over["usage"] == tasks[first]["usage"]
        assert code_of(await ada.http.get(item["url"])) == "asset_expired"
        # The other task produced the same picture, which has not expired.
        assert (await ada.http.get(same["url"])).content == whole.content

        bring_forward(service, second)
        await expired(ada, second)

        async def has_gone() -> bool:
            return not await trio.to_thread.run_sync(is_stored, sha256)

        await until(has_gone)
        gone = await ada.http.get(same["url"])
        assert (gone.status_code, code_of(gone)) == (410, "asset_expired")
        assert await ada.totals() == totals
        assert ok(await ada.as_session("GET", "/v2/usage/logs")) == usage
        # Swept content may be generated and stored again.
        again = ok(await ada.as_key("POST", "/v2/task/create", body))["request_id"]
        [again_stored] = (await ada.all_ended())[again]["output"]
        assert (await ada.http.get(again_stored["url"])).content == whole.content
    assert service.audit() == []


@pytest.mark.slow
def test_a_bucket_that_refuses_access_prevents_the_start(bucket: BucketServer, new_service: NewService) -> None:
    location = msgspec.structs.replace(bucket.location, s3_secret_access_key="not-the-secret")
    wrong = replace(bucket, location=location)
    service = new_service(**wrong.settings())
    done = run_holdfast("serve", environment=service.environment)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "The asset store is not usable: the bucket 'results' refuses access: the secret of the access key is wrong."
    )
    assert "not-the-secret" not in done.stderr + done.stdout
