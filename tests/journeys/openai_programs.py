"""What users of OpenAI's clients write, by client and by what it shows."""

from __future__ import annotations

from typing import Final

_PYTHON: Final = """\
import base64, io, warnings, openai
warnings.simplefilter("ignore", DeprecationWarning)
client = openai.OpenAI(base_url=given["url"] + "/v1", api_key=given["key"], max_retries=given.get("max_retries", 2))
def picture():
    return io.BytesIO(base64.b64decode(given["picture"]))
"""
_JAVASCRIPT: Final = """\
import OpenAI, { toFile } from "openai";
const client = new OpenAI({ baseURL: given.url + "/v1", apiKey: given.key, maxRetries: given.max_retries ?? 2 });
const picture = () => toFile(Buffer.from(given.picture, "base64"), "picture.png", { type: "image/png" });
const base64 = async (response) => Buffer.from(await response.arrayBuffer()).toString("base64");
"""
_LITELLM: Final = """\
import base64, io, os
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices
import litellm
where = {"api_base": given["url"] + "/v1", "api_key": given["key"]}
def picture():
    file = io.BytesIO(base64.b64decode(given["picture"]))
    file.name = "picture.png"
    return file
"""

PYTHON: Final = {
    "image": """
made = client.images.generate(model="studio/image-1", prompt="a lighthouse", n=2, size="256x256")
show([each.url for each in made.data])
""",
    "image in base64": """
made = client.images.generate(
    model="studio/image-1", prompt="a pier", size="256x256", response_format="b64_json",
    extra_body={"style": "mosaic", "seed": 7},
)
show([each.b64_json for each in made.data])
""",
    "edit": """
made = client.images.edit(
    model="studio/edit-1", image=picture(), prompt="hello", size="64x48", user="ann",
    extra_body={"format": "webp", "metadata": {"job": "7", "for whom": "a b"}},
)
show([each.url for each in made.data])
""",
    "upload": """
made = client.images.edit(model="studio/edit-1", image=picture(), prompt="hello", size="64x48")
show([each.url for each in made.data])
""",
    "sound": """
made = client.audio.speech.create(
    model="studio/tone-1", input="rain", voice="alloy", response_format="wav", extra_body={"duration": 1}
)
show([base64.b64encode(made.content).decode()])
""",
    "clip": """
video = client.videos.create(model="studio/clip-1", prompt="waves", seconds="1")
assert video.status == "queued" and video.seconds == "1" and video.prompt == "waves"
video = client.videos.poll(video.id)
assert (video.status, video.progress, video.size) == ("completed", 100, "640x360"), video
assert video.prompt == "waves"
show([base64.b64encode(client.videos.download_content(video.id).content).decode()])
""",
    "wait": """
video = client.videos.create_and_poll(model="studio/clip-1", prompt="waves", seconds="1")
show(int(video.status == "completed"))
""",
    "cancel": """
video = client.videos.create(model=given["model"], prompt="a gull", seconds="12")
deleted = client.videos.delete(video.id)
show([video.id, deleted.deleted, client.videos.retrieve(video.id).error.code])
""",
    "list": """
made = [client.videos.create(model=given["model"], prompt=f"wave {n}", seconds="1").id for n in range(3)]
listed = [each.id for each in client.videos.list(limit=2)]
oldest = [each.id for each in client.videos.list(limit=2, order="asc")]
show([made, listed, oldest])
""",
    "models": """
show([[each.id for each in client.models.list()], client.models.retrieve("studio/image-1").id])
""",
    "errors": """
found = []
for key, model, fields in given["cases"]:
    try:
        client.copy(api_key=key).images.generate(model=model, prompt="a lighthouse", extra_body=fields)
    except openai.APIStatusError as error:
        found.append([error.status_code, error.code, error.param, type(error).__name__])
show(found)
""",
}

JAVASCRIPT: Final = {
    "image": """
const made = await client.images.generate({
  model: "studio/image-1", prompt: "a lighthouse", n: 2, size: "256x256",
});
show(made.data.map((each) => each.url));
""",
    "image in base64": """
const made = await client.images.generate({
  model: "studio/image-1", prompt: "a pier", size: "256x256", response_format: "b64_json", style: "mosaic", seed: 7,
});
show(made.data.map((each) => each.b64_json));
""",
    "edit": """
const made = await client.images.edit({
  model: "studio/edit-1", image: await picture(), prompt: "hello", size: "64x48", format: "webp", user: "ann",
  metadata: { job: "7", "for whom": "a b" },
});
show(made.data.map((each) => each.url));
""",
    "upload": """
const made = await client.images.edit({
  model: "studio/edit-1", image: await picture(), prompt: "hello", size: "64x48",
});
show(made.data.map((each) => each.url));
""",
    "sound": """
const made = await client.audio.speech.create({
  model: "studio/tone-1", input: "rain", voice: "alloy", response_format: "wav", duration: 1,
});
show([await base64(made)]);
""",
    "clip": """
let video = await client.videos.create({ model: "studio/clip-1", prompt: "waves", seconds: "1" });
while (["queued", "in_progress"].includes(video.status)) {
  await new Promise((done) => setTimeout(done, 200));
  video = await client.videos.retrieve(video.id);
}
if (video.status !== "completed" || video.progress !== 100 || video.size !== "640x360") throw new Error(video);
show([await base64(await client.videos.downloadContent(video.id))]);
""",
    "wait": """
const made = await client.images.generate({ model: "studio/image-1", prompt: "a buoy", size: "256x256" });
show(made.data.length);
""",
    "cancel": """
const video = await client.videos.create({ model: given.model, prompt: "a gull", seconds: "12" });
const deleted = await client.videos.delete(video.id);
show([video.id, deleted.deleted, (await client.videos.retrieve(video.id)).error.code]);
""",
    "list": """
const made = [];
for (const n of [0, 1, 2])
  made.push((await client.videos.create({ model: given.model, prompt: `wave ${n}`, seconds: "1" })).id);
const all = async (order) => {
  const found = [];
  for await (const each of client.videos.list({ limit: 2, ...order })) found.push(each.id);
  return found;
};
show([made, await all({}), await all({ order: "asc" })]);
""",
    "models": """
const listed = [];
for await (const each of client.models.list()) listed.push(each.id);
show([listed, (await client.models.retrieve("studio/image-1")).id]);
""",
    "errors": """
const found = [];
for (const [apiKey, model, fields] of given.cases) {
  try {
    await client.withOptions({ apiKey }).images.generate({ model, prompt: "a lighthouse", ...fields });
  } catch (error) {
    found.push([error.status, error.code, error.param, error.constructor.name]);
  }
}
show(found);
""",
}

LITELLM: Final = {
    "image": """
made = litellm.image_generation(model="openai/studio/image-1", prompt="a lighthouse", n=2, size="256x256", **where)
show([each.url for each in made.data])
""",
    "edit": """
made = litellm.image_edit(
    model="openai/studio/edit-1", image=picture(), prompt="hello", size="64x48", format="webp", **where
)
show([each.url for each in made.data])
""",
    "upload": """
made = litellm.image_edit(model="openai/studio/edit-1", image=picture(), prompt="hello", size="64x48", **where)
show([each.url for each in made.data])
""",
    "sound": """
made = litellm.speech(model="openai/studio/tone-1", input="rain", voice="alloy", response_format="wav", **where)
show([base64.b64encode(made.content).decode()])
""",
    "clip": """
import time
video = litellm.video_generation(model="openai/studio/clip-1", prompt="waves", seconds="1", **where)
while video.status in ("queued", "in_progress"):
    time.sleep(0.2)
    video = litellm.video_status(video_id=video.id, **where)
show([base64.b64encode(litellm.video_content(video_id=video.id, **where)).decode()])
""",
    "wait": """
made = litellm.image_generation(model="openai/studio/image-1", prompt="a buoy", size="256x256", **where)
show(len(made.data))
""",
    "errors": """
found = []
for key, model, fields in given["cases"]:
    try:
        litellm.image_generation(
            model=f"openai/{model}", prompt="a lighthouse", extra_body=fields, **{**where, "api_key": key}
        )
    except Exception as error:
        found.append([error.status_code, type(error).__name__])
show(found)
""",
}

STARTS: Final = {
    "openai (Python, 3)": _PYTHON,
    "openai (Python, 2)": _PYTHON,
    "openai (JavaScript)": _JAVASCRIPT,
    "litellm": _LITELLM,
}
PROGRAMS: Final = {
    "openai (Python, 3)": PYTHON,
    "openai (Python, 2)": PYTHON,
    "openai (JavaScript)": JAVASCRIPT,
    "litellm": LITELLM,
}
