"""What a user would write instead, for comparison: whole tasks on FastAPI, uvicorn (with uvloop and
httptools, as its ``standard`` extra has), asyncpg and aiohttp, with row locks.

Create (hold), submit, signed callback, download, store with fsync, capture: one transaction each under
``SELECT … FOR UPDATE``. It has no idempotency, fences, retries, deadlines or audit, and a crash loses tasks that
are between two of its steps.

Run: python -m benchmarks.row_lock_peer PORT PROCESSES, with PEER_DATABASE_URL, PEER_PROVIDER_URL, PEER_URL,
PEER_SECRET and PEER_FOLDER in the environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from uvicorn.supervisors import Multiprocess

TABLES = """
create table peer_accounts (id bigint primary key, balance bigint not null, held bigint not null);
create table peer_keys (key text primary key, account_id bigint not null);
create table peer_tasks (
  id uuid primary key, account_id bigint not null, status text not null, model text not null, input jsonb not null,
  cost bigint not null, output text, created_at timestamptz not null default now(), updated_at timestamptz
);
create index on peer_tasks (account_id, created_at);
create index on peer_tasks (created_at) where status = 'queued';
create index on peer_tasks (id) where status = 'succeeded';
create table peer_entries (
  id bigserial primary key, operation uuid not null, account_id bigint not null, side text not null,
  amount bigint not null, at timestamptz not null default now()
);
create index on peer_entries (account_id, id);
"""
COST = 12_000
BATCH_MAX = 32
IDLE_S = 0.02
TOLERANCE_S = 300

_CLAIM = """
update peer_tasks set status = 'processing' where id in (
  select id from peer_tasks where status = 'queued' order by created_at limit $1 for update skip locked
) returning id, model, input
"""
_ENTRIES = """
insert into peer_entries (operation, account_id, side, amount)
values ($1, $2, $3, -$5::bigint), ($1, $2, $4, $5)
"""

_ONE = "select t.* from peer_tasks t join peer_keys k using (account_id) where t.id = $1 and k.key = $2"
_NEWEST = """
select t.* from peer_tasks t join peer_keys k using (account_id) where k.key = $1 order by created_at desc limit $2
"""
_BALANCE = "select a.balance, a.held from peer_accounts a join peer_keys k on k.account_id = a.id where k.key = $1"


class Peer:
    """The peer's connections, and the tasks it works on."""

    def __init__(self, pool: Any, http: aiohttp.ClientSession) -> None:
        self.pool = pool
        self.http = http
        self.secret = os.environ["PEER_SECRET"].encode()
        self._provider_url = os.environ["PEER_PROVIDER_URL"]
        self._callback_url = os.environ["PEER_URL"] + "/v2/callback"
        self._folder = Path(os.environ["PEER_FOLDER"])
        self._hosting: set[asyncio.Task[None]] = set()

    async def submit_queued(self) -> None:
        """Submit queued tasks, some at a time, until cancelled."""
        while True:
            rows = await self.pool.fetch(_CLAIM, BATCH_MAX)
            await asyncio.gather(*map(self._submit, rows))
            if not rows:
                await asyncio.sleep(IDLE_S)

    async def _submit(self, row: Any) -> None:
        request_id = str(row["id"])
        job = {"input": json.loads(row["input"]), "model": row["model"], "webhook": self._callback_url}
        async with self.http.put(f"{self._provider_url}/predictions/{request_id}.1", json=job) as answer:
            await answer.read()

    def host_later(self, request_id: uuid.UUID, urls: list[str]) -> None:
        """Store a task's outputs and capture its hold, after the callback has been answered."""
        task = asyncio.create_task(self._host(request_id, urls))
        self._hosting.add(task)
        task.add_done_callback(self._hosting.discard)

    async def _host(self, request_id: uuid.UUID, urls: list[str]) -> None:
        names = []
        for url in urls:
            async with self.http.get(url) as answer:
                names.append(await asyncio.to_thread(self._store, await answer.read()))
        async with self.pool.acquire() as rows, rows.transaction():
            account_id = await rows.fetchval(
                "select account_id from peer_tasks where id = $1 and status = 'processing' for update", request_id
            )
            if account_id is None:
                return
            await rows.fetchrow("select balance, held from peer_accounts where id = $1 for update", account_id)
            await rows.execute(
                "update peer_tasks set status = 'succeeded', output = $2, updated_at = clock_timestamp() "
                "where id = $1",
                request_id,
                " ".join(names),
            )
            await rows.execute(_ENTRIES, uuid.uuid4(), account_id, "held", "revenue", COST)
            await rows.execute(
                "update peer_accounts set held = held - $2, balance = balance - $2 where id = $1", account_id, COST
            )

    def _store(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        path = self._folder / name
        if not path.exists():
            aside = self._folder / f"{name}.{uuid.uuid4().hex}"
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        return name


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the connections and run the submitter."""
    async with (
        asyncpg.create_pool(os.environ["PEER_DATABASE_URL"], min_size=16, max_size=16) as pool,
        aiohttp.ClientSession() as http,
    ):
        app.state.peer = Peer(pool, http)
        submitter = asyncio.create_task(app.state.peer.submit_queued())
        yield
        submitter.cancel()


async def create(request: Request) -> dict[str, str]:
    """Create a task and hold its cost."""
    peer: Peer = request.app.state.peer
    body = await request.json()
    request_id = uuid.uuid4()
    async with peer.pool.acquire() as rows, rows.transaction():
        key = request.headers["authorization"].removeprefix("Bearer ")
        account_id = await rows.fetchval("select account_id from peer_keys where key = $1", key)
        if account_id is None:
            raise HTTPException(401)
        account = await rows.fetchrow(
            "select balance, held from peer_accounts where id = $1 for update", account_id
        )
        if account["balance"] - account["held"] < COST:
            raise HTTPException(402)
        await rows.execute(
            "insert into peer_tasks (id, account_id, status, model, input, cost, created_at) "
            "values ($1, $2, 'queued', $3, $4, $5, clock_timestamp())",
            request_id,
            account_id,
            body["model"],
            json.dumps(body["input"]),
            COST,
        )
        await rows.execute(_ENTRIES, request_id, account_id, "available", "held", COST)
        await rows.execute("update peer_accounts set held = held + $2 where id = $1", account_id, COST)
    return {"request_id": str(request_id), "status": "queued"}


def _shown(row: Any) -> dict[str, Any]:
    return {
        "request_id": str(row["id"]),
        "status": row["status"],
        "model": row["model"],
        "input": json.loads(row["input"]),
        "estimated_cost": {"credits": str(row["cost"])},
        "created_at": row["created_at"].isoformat(),
        "output": [],
        "error": None,
    }


async def list_tasks(request: Request, limit: int = 20) -> dict[str, Any]:
    """List the account's newest tasks."""
    key = request.headers["authorization"].removeprefix("Bearer ")
    async with request.app.state.peer.pool.acquire() as rows:
        found = await rows.fetch(_NEWEST, key, limit)
    return {"data": [_shown(row) for row in found]}


async def read_task(request: Request, request_id: uuid.UUID) -> dict[str, Any]:
    """Read one task."""
    key = request.headers["authorization"].removeprefix("Bearer ")
    async with request.app.state.peer.pool.acquire() as rows:
        row = await rows.fetchrow(_ONE, request_id, key)
    if row is None:
        raise HTTPException(404)
    return _shown(row)


async def read_account(request: Request) -> dict[str, str]:
    """Read the balance."""
    key = request.headers["authorization"].removeprefix("Bearer ")
    async with request.app.state.peer.pool.acquire() as rows:
        row = await rows.fetchrow(_BALANCE, key)
    return {
        "balance": str(row["balance"]),
        "held": str(row["held"]),
        "available": str(row["balance"] - row["held"]),
    }


async def receive_callback(request: Request) -> dict[str, bool]:
    """Receive the provider's signed callback."""
    peer: Peer = request.app.state.peer
    raw = await request.body()
    sent_at, signature = (part.partition("=")[2] for part in request.headers["x-callback-signature"].split(","))
    expected = hmac.new(peer.secret, sent_at.encode() + b"." + raw, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature, expected) or abs(time.time() - int(sent_at)) > TOLERANCE_S:
        raise HTTPException(401)
    event = json.loads(raw)
    peer.host_later(uuid.UUID(event["request_id"]), [output["url"] for output in event["outputs"]])
    return {"received": True}


app = FastAPI(lifespan=lifespan)
app.post("/v2/task/create")(create)
# Without a declared response, as endpoints are written that return what they read.
app.get("/v2/task/list", response_model=None)(list_tasks)
app.get("/v2/task/{request_id}", response_model=None)(read_task)
app.get("/v2/control/account", response_model=None)(read_account)
app.post("/v2/callback")(receive_callback)


def serve(port: int, processes: int) -> None:
    """Serve until a signal."""
    # Connections inherit the option. Those of uvicorn's own socket for several workers do not have it, so that each
    # answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        "benchmarks.row_lock_peer:app", workers=processes, loop="uvloop", http="httptools", log_level="warning"
    )
    if processes == 1:
        uvicorn.Server(config).run(sockets=[listener])
    else:
        Multiprocess(config, sockets=[listener]).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
