"""What agents' programs do with the clients of the Model Context Protocol, by client."""

from __future__ import annotations

from typing import Final

PYTHON: Final = """\
import anyio, base64, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

NEW = {"model": "studio/image-1", "input": {"prompt": "a lighthouse", "width": 256, "height": 256}}

async def main():
    steps = []
    async def on_progress(progress, total, text):
        steps.append([progress, total])
    headers = {"Authorization": "Bearer " + given["key"]}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(given["url"] + "/mcp", http_client=http)
        async with Client(transport, mode=given["mode"]) as client:
            async def call(name, arguments, **options):
                found = await client.call_tool(name, arguments, **options)
                assert not found.is_error, found
                return found
            tools = {each.name: each.description for each in (await client.list_tools()).tools}
            models = (await call("list_models", {})).structured_content["models"]
            quote = (await call("quote", NEW)).structured_content
            file = (await call("upload_file", {"data": given["picture"], "filename": "a.png"})).structured_content
            files = (await call("list_files", {})).structured_content["files"]
            new = {**NEW, "max_credits": quote["estimate"]["max_credits"], "idempotency_key": given["name"]}
            task = (await call("create_task", new)).structured_content
            again = (await call("create_task", new)).structured_content
            done = await call("wait_for_task", {"request_id": task["request_id"]}, progress_callback=on_progress)
            clip = {"model": "studio/clip-1", "input": {"prompt": "waves", "duration": 8}, "max_credits": "5"}
            other = (await call("create_task", clip)).structured_content
            canceled = (await call("cancel_task", {"request_id": other["request_id"]})).structured_content
            dear = await client.call_tool("create_task", {**NEW, "max_credits": "0.001"})
            account = (await call("get_account", {})).structured_content
            show({
                "tools": sorted(tools),
                "price": "studio/image-1 (image): 0.012 credits per image" in tools["create_task"],
                "models": [each["model"] for each in models],
                "file": file["file_id"] == files[0]["file_id"],
                "task": [task["request_id"], again["request_id"], again["replayed"]],
                "status": done.structured_content["status"],
                "parts": [each.type for each in done.content],
                "link": [str(each.uri) for each in done.content if each.type == "resource_link"][0],
                "image": [each.data for each in done.content if each.type == "image"][0],
                "steps": steps,
                "canceled": canceled["status"],
                "dear": [dear.is_error, dear.content[0].text],
                "left": account["limits"][0]["left"],
            })

anyio.run(main, backend=given["backend"])
"""

NODE: Final = """\
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const NEW = { model: "studio/image-1", input: { prompt: "a lighthouse", width: 256, height: 256 } };
const requestInit = { headers: { Authorization: `Bearer ${given.key}` } };
const client = new Client({ name: "agent", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(given.url + "/mcp"), { requestInit }));
const steps = [];
const call = async (name, args, options) => {
  const found = await client.callTool({ name, arguments: args }, undefined, options);
  if (found.isError) throw new Error(found.content[0].text);
  return found;
};
const onprogress = ({ progress, total }) => steps.push([progress, total]);
const tools = Object.fromEntries((await client.listTools()).tools.map((each) => [each.name, each.description]));
const { models } = (await call("list_models", {})).structuredContent;
const quote = (await call("quote", NEW)).structuredContent;
const file = (await call("upload_file", { data: given.picture, filename: "a.png" })).structuredContent;
const { files } = (await call("list_files", {})).structuredContent;
const fresh = { ...NEW, max_credits: quote.estimate.max_credits, idempotency_key: given.name };
const task = (await call("create_task", fresh)).structuredContent;
const again = (await call("create_task", fresh)).structuredContent;
const done = await call("wait_for_task", { request_id: task.request_id }, { onprogress });
const clip = { model: "studio/clip-1", input: { prompt: "waves", duration: 8 }, max_credits: "5" };
const other = (await call("create_task", clip)).structuredContent;
const canceled = (await call("cancel_task", { request_id: other.request_id })).structuredContent;
const dear = await client.callTool({ name: "create_task", arguments: { ...NEW, max_credits: "0.001" } });
const account = (await call("get_account", {})).structuredContent;
const part = (type) => done.content.find((each) => each.type === type);
show({
  tools: Object.keys(tools).sort(),
  price: tools.create_task.includes("studio/image-1 (image): 0.012 credits per image"),
  models: models.map((each) => each.model),
  file: file.file_id === files[0].file_id,
  task: [task.request_id, again.request_id, again.replayed],
  status: done.structuredContent.status,
  parts: done.content.map((each) => each.type),
  link: part("resource_link").uri,
  image: part("image").data,
  steps,
  canceled: canceled.status,
  dear: [dear.isError, dear.content[0].text],
  left: account.limits[0].left,
});
await client.close();
"""

REFUSED: Final = """\
import anyio, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

NEW = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}, "max_credits": "5"}

async def tried(key):
    headers = {"Authorization": "Bearer " + key}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        try:
            async with Client(streamable_http_client(given["url"] + "/mcp", http_client=http)) as client:
                created = await client.call_tool("create_task", NEW)
                read = await client.call_tool("get_task", {"request_id": given["task"]})
                ended = await client.call_tool("cancel_task", {"request_id": given["task"]})
                return [found.content[0].text.split(":")[0] for found in (created, read, ended) if found.is_error]
        except BaseException as refused:
            return ["not let in"]

async def main():
    show({name: await tried(key) for name, key in given["keys"].items()})

anyio.run(main, backend="trio")
"""
