// A journey by the typescript-fetch client that openapi-generator generates: node generator_typescript.js URL
import {
  APIKeysApi,
  Configuration,
  CreditApi,
  ModelsApi,
  ResponseError,
  SignInApi,
  TasksApi,
  type ErrorResponse,
  type TaskBody,
} from "./client/index";

declare const process: { argv: string[] };

const basePath = process.argv[2]!;
const email = "typescript-fetch@example.com";
const input = { prompt: "a lighthouse at dusk", width: 256, height: 256 };

function as(accessToken: string) {
  return new Configuration({ basePath, accessToken });
}

async function main() {
  const signIn = new SignInApi(new Configuration({ basePath }));
  const sent = await signIn.requestCode({ codeRequest: { email } });
  const verified = await signIn.verifyCode({
    verifyRequest: { email, otpId: sent.otpId, otp: sent.debugOtp! },
  });
  const keys = new APIKeysApi(as(verified.session.token));
  const created = await keys.createApiKey({ apiKeyRequest: {} });
  const credit = new CreditApi(as(verified.session.token));
  await credit.recharge({ rechargeRequest: { amount: "1.00" } });

  const models = new ModelsApi(as(created.apiKey));
  const tasks = new TasksApi(as(created.apiKey));
  const model = (await models.listModels()).data.find((each) => each.id === "studio/image-1")!.id;
  const priced = await models.quote({ quoteRequest: { model, input } });
  const accepted = await tasks.createTask({
    createTaskRequest: { model, input, quoteId: priced.quoteId },
    idempotencyKey: "one",
  });
  let task: TaskBody;
  for (;;) {
    task = await tasks.readTask({ requestId: accepted.requestId });
    if (["succeeded", "failed", "canceled"].includes(task.status)) break;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  let code: string | undefined;
  try {
    await tasks.readTask({ requestId: "task_none" });
  } catch (fault) {
    if (!(fault instanceof ResponseError)) throw fault;
    code = ((await fault.response.json()) as ErrorResponse).error.code;
  }
  console.log(
    JSON.stringify({
      status: task.status,
      outputs: task.output.length,
      cost: task.usage.costCredits,
      quoted: priced.estimate.credits,
      listed: (await tasks.listTasks({ limit: 10 })).data.length,
      available: (await credit.readAccount()).availableBalance,
      code,
    }),
  );
}

void main();
