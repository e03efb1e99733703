// A journey by openapi-fetch with the types that openapi-typescript generates: node openapi_typescript.ts URL
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.d.ts";

type Input = components["schemas"]["CreateTaskRequest"]["input"];

declare const process: { argv: string[] };

const baseUrl = process.argv[2]!;
const email = "openapi-fetch@example.com";
const input: Input = { prompt: "a lighthouse at dusk", width: 256, height: 256 };

function client(token?: string) {
  return createClient<paths>({ baseUrl, headers: token ? { Authorization: `Bearer ${token}` } : {} });
}

function found<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

const visitor = client();
const sent = found(await visitor.POST("/v2/control/auth/otp", { body: { email } }));
const proof = { email, otp_id: sent.otp_id, otp: sent.debug_otp! };
const verified = found(await visitor.POST("/v2/control/auth/verify", { body: proof }));
const session = client(verified.session.token);
const created = found(await session.POST("/v2/control/api-keys", { body: {} }));
found(await session.POST("/v2/control/sandbox/recharge", { body: { amount: "1.00" } }));

const caller = client(created.api_key);
const models = found(await caller.GET("/v2/models"));
const model = models.data.find((each) => each.id === "studio/image-1")!.id;
const priced = found(await caller.POST("/v2/quote", { body: { model, input } }));
const accepted = found(
  await caller.POST("/v2/task/create", {
    body: { model, input, quote_id: priced.quote_id },
    params: { header: { "Idempotency-Key": "one" } },
  }),
);
const path = { request_id: accepted.request_id };
let task: components["schemas"]["TaskBody"];
for (;;) {
  task = found(await caller.GET("/v2/task/{request_id}", { params: { path } }));
  if (["succeeded", "failed", "canceled"].includes(task.status)) break;
  await new Promise((resolve) => setTimeout(resolve, 100));
}
const page = found(await caller.GET("/v2/task/list", { params: { query: { limit: 10 } } }));
const totals = found(await session.GET("/v2/control/account"));
const missing = await caller.GET("/v2/task/{request_id}", { params: { path: { request_id: "task_none" } } });
const code: components["schemas"]["ErrorBody"]["code"] = missing.error!.error.code;
console.log(
  JSON.stringify({
    status: task.status,
    outputs: task.output.length,
    cost: task.usage.cost_credits,
    quoted: priced.estimate.credits,
    listed: page.data.length,
    available: totals.available_balance,
    code,
  }),
);
