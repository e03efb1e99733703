from __future__ import annotations

import re
import threading

from holdfast.ledger.values import new_id


def test_an_id_is_a_prefix_and_the_hex_digits_of_a_version_7_uuid() -> None:
    assert re.fullmatch(r"task_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", new_id("task"))


def test_ids_are_unique_and_sort_by_creation_time() -> None:
    ids = [new_id("op") for _ in range(5000)]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)


def test_ids_created_by_several_threads_are_unique() -> None:
    created: list[list[str]] = []

    def make() -> None:
        created.append([new_id("op") for _ in range(2000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({created_id for ids in created for created_id in ids}) == 8000
