"""What users of Replicate's clients write, by client and by what it shows."""

from __future__ import annotations

from typing import Final

_PYTHON: Final = """\
import base64, io, replicate
from replicate.exceptions import ReplicateError
client = replicate.Client(api_token=given["key"], base_url=given["url"] + "/replicate")
def picture():
    file = io.BytesIO(base64.b64decode(given["picture"]))
    file.name = "picture.png"
    return file
"""
_JAVASCRIPT: Final = """\
import Replicate, { validateWebhook } from "replicate";
const client = new Replicate({ auth: given.key, baseUrl: given.url + "/replicate/v1" });
const picture = () => `data:image/png;base64,${given.picture}`;
"""
_AI: Final = """\
import { generateImage, experimental_generateVideo as generateVideo } from "ai";
import { createReplicate } from "@ai-sdk/replicate";
const replicate = createReplicate({ apiToken: given.key, baseURL: given.url + "/replicate/v1" });
const bytes = (files) => files.map((file) => Buffer.from(file.uint8Array).toString("base64"));
"""

_SIZE: Final = '"width": 256, "height": 256'

PYTHON: Final = {
    "image": f"""
output = client.run("studio/image-1", input={{"prompt": "a lighthouse", "n": 2, {_SIZE}}})
show(output)
""",
    "edit": """
output = client.run("studio/edit-1", input={"image": picture(), "format": "webp"}, file_encoding_strategy="base64")
show(output)
""",
    "upload": """
file = client.files.create(picture(), metadata={"why": "a test"})
kept = client.files.get(file.id)
output = client.run("studio/edit-1", input={"image": picture(), "format": "webp"})
listed = [each.id for each in client.files.list()]
deleted = [client.files.delete(each) for each in listed]
show([output, file.id == kept.id == listed[1], kept.content_type, deleted, client.files.list()])
""",
    "sound": """
show([client.run("studio/tone-1", input={"prompt": "rain", "duration": 1})])
""",
    "clip": """
show([client.run("studio/clip-1", input={"prompt": "waves", "duration": 1})])
""",
    "wait": f"""
made = client.models.predictions.create("studio/image-1", input={{"prompt": "a pier", {_SIZE}}}, wait=30)
quick = client.models.predictions.create("studio/clip-1", input={{"prompt": "a pier", "duration": 4}}, wait=1)
first = quick.status
quick.wait()
show([made.status, first, quick.status, quick.progress is not None])
""",
    "late": """
show(client.models.predictions.create(given["model"], input={"prompt": "a gull"}, wait=1).status)
""",
    "stream": f"""
events = client.stream("studio/image-1", input={{"prompt": "a buoy", {_SIZE}}})
show([[event.event.value, event.data] for event in events])
""",
    "webhook": f"""
prediction = client.models.predictions.create(
    "studio/image-1", input={{"prompt": "a bell", {_SIZE}}},
    webhook=given["receiver"], webhook_events_filter=["start", "completed"],
)
prediction.wait()
show(prediction.id)
""",
    "webhook_checked": """
from replicate.webhook import Webhooks, InvalidSignatureError
secret = client.webhooks.default.secret()
Webhooks.validate(headers=given["headers"], body=given["body"], secret=secret)
try:
    Webhooks.validate(headers=given["headers"], body=given["body"] + " ", secret=secret)
    show(False)
except InvalidSignatureError:
    show(True)
""",
    "cancel": """
prediction = client.predictions.create(version=given["model"], input={"prompt": "a gull"})
prediction.cancel()
again = client.predictions.cancel(prediction.id)
show([prediction.id, prediction.status, again.status])
""",
    "list": """
pages, cursor = [], ...
while cursor is not None:
    page = client.predictions.list(cursor)
    pages.append([each.id for each in page.results])
    cursor = page.next
show(pages)
""",
    "models": """
model = client.models.get("studio/image-1")
version = model.versions.get(model.latest_version.id)
listed = [each.id for each in client.models.list().results]
output = client.run(f"studio/image-1:{version.id}", input={"prompt": "a mole", "width": 256, "height": 256})
show([listed, version.openapi_schema["components"]["schemas"]["Input"]["properties"]["n"]["maximum"], len(output)])
""",
    "account": """
show(client.accounts.current().username)
""",
    "errors": """
try:
    client.run(given["model"], input=given["input"])
except ReplicateError as error:
    show([error.status, error.title, error.detail])
""",
}

JAVASCRIPT: Final = {
    "image": f"""
show(await client.run("studio/image-1", {{ input: {{ prompt: "a lighthouse", n: 2, {_SIZE} }} }}));
""",
    "edit": """
show(await client.run("studio/edit-1", { input: { image: picture(), format: "webp" } }));
""",
    "upload": """
const blob = new Blob([Buffer.from(given.picture, "base64")], { type: "image/png" });
const file = await client.files.create(blob, { why: "a test" });
const kept = await client.files.get(file.id);
const output = await client.run("studio/edit-1", { input: { image: blob, format: "webp" } });
const listed = (await client.files.list()).results.map((each) => each.id);
const deleted = [];
for (const each of listed) deleted.push(await client.files.delete(each));
const left = (await client.files.list()).results;
show([output, file.id === kept.id && kept.id === listed[1], kept.content_type, deleted, left]);
""",
    "sound": """
show([await client.run("studio/tone-1", { input: { prompt: "rain", duration: 1 } })]);
""",
    "clip": """
show([await client.run("studio/clip-1", { input: { prompt: "waves", duration: 1 } })]);
""",
    "wait": f"""
import {{ parseProgressFromLogs }} from "replicate";
const made = await client.predictions.create(
  {{ model: "studio/image-1", input: {{ prompt: "a pier", {_SIZE} }}, wait: 30 }});
const quick = await client.predictions.create(
  {{ model: "studio/clip-1", input: {{ prompt: "a pier", duration: 4 }}, wait: 1 }});
const ended = await client.wait(quick);
show([made.status, quick.status, ended.status, parseProgressFromLogs(ended) !== null]);
""",
    "late": """
const late = await client.predictions.create({ model: given.model, input: { prompt: "a gull" }, wait: 1 });
show(late.status);
""",
    "stream": f"""
const events = [];
for await (const event of client.stream("studio/image-1", {{ input: {{ prompt: "a buoy", {_SIZE} }} }}))
  events.push([event.event, event.data]);
show(events);
""",
    "webhook": f"""
const prediction = await client.predictions.create({{
  model: "studio/image-1", input: {{ prompt: "a bell", {_SIZE} }},
  webhook: given.receiver, webhook_events_filter: ["start", "completed"],
}});
await client.wait(prediction);
show(prediction.id);
""",
    "webhook_checked": """
const { key } = await client.webhooks.default.secret.get();
const valid = await validateWebhook({ headers: given.headers, body: given.body }, key);
const altered = await validateWebhook({ headers: given.headers, body: given.body + " " }, key);
show(valid && !altered);
""",
    "cancel": """
const prediction = await client.predictions.create({ version: given.model, input: { prompt: "a gull" } });
const canceled = await client.predictions.cancel(prediction.id);
const again = await client.predictions.cancel(prediction.id);
show([prediction.id, canceled.status, again.status]);
""",
    "list": """
const pages = [];
for await (const page of client.paginate(client.predictions.list)) pages.push(page.map((each) => each.id));
show(pages);
""",
    "models": """
const model = await client.models.get("studio", "image-1");
const version = await client.models.versions.get("studio", "image-1", model.latest_version.id);
const listed = (await client.models.list()).results.map((each) => `${each.owner}/${each.name}`);
const output = await client.run(
  `studio/image-1:${version.id}`, { input: { prompt: "a mole", width: 256, height: 256 } });
show([listed, version.openapi_schema.components.schemas.Input.properties.n.maximum, output.length]);
""",
    "account": """
show((await client.accounts.current()).username);
""",
    "errors": """
try {
  await client.run(given.model, { input: given.input });
} catch (error) {
  const { status, title, detail } = JSON.parse(error.message.slice(error.message.indexOf("{"), -1));
  show([status, title, detail]);
}
""",
}

AI: Final = {
    "image": """
const { images } = await generateImage(
  { model: replicate.image("studio/image-1"), prompt: "a lighthouse", size: "256x256", n: 2 });
show(bytes(images));
""",
    "edit": """
const { images } = await generateImage({
  model: replicate.image("studio/edit-1"),
  prompt: { text: "hello", images: [Buffer.from(given.picture, "base64")] },
  providerOptions: { replicate: { format: "webp" } },
});
show(bytes(images));
""",
    "clip": """
const { videos } = await generateVideo({
  model: replicate.video("studio/clip-1"), prompt: "waves", duration: 1,
  download: async ({ url }) => ({ data: new Uint8Array(await (await fetch(url)).arrayBuffer()) }),
});
show(bytes(videos));
""",
    "webhook": """
import http from "node:http";
const posts = [];
const server = http.createServer((request, response) => {
  let body = "";
  request.on("data", (part) => (body += part));
  request.on("end", () => { posts.push(JSON.parse(body)); response.end(); server.emit("post"); });
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const received = new Promise((resolve) => server.once("post", () => resolve({ headers: {}, body: posts[0] })));
const { videos } = await generateVideo({
  model: replicate.video("studio/clip-1"), prompt: "waves", duration: 1,
  webhook: async () => ({ url: `http://127.0.0.1:${server.address().port}/hook`, received }),
  download: async ({ url }) => ({ data: new Uint8Array(await (await fetch(url)).arrayBuffer()) }),
});
server.close();
show([posts.length, posts[0].status, posts[0].model, bytes(videos).length]);
""",
    "wait": """
const { responses } = await generateImage(
  { model: replicate.image("studio/image-1"), prompt: "a pier", size: "256x256",
    providerOptions: { replicate: { maxWaitTimeInSeconds: 30 } } });
show(responses.length);
""",
    "errors": """
try {
  await generateImage({ model: replicate.image(given.model), prompt: given.input.prompt, maxRetries: 0 });
} catch (error) {
  const { status, title, detail } = JSON.parse(error.responseBody);
  show([status, title, error.message]);
}
""",
}

STARTS: Final = {"replicate (Python)": _PYTHON, "replicate (JavaScript)": _JAVASCRIPT, "@ai-sdk/replicate": _AI}
PROGRAMS: Final = {"replicate (Python)": PYTHON, "replicate (JavaScript)": JAVASCRIPT, "@ai-sdk/replicate": AI}
