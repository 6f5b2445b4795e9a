// The official client as it comes: address and key are in OPENAI_BASE_URL and OPENAI_API_KEY.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const GREETING = "Hello, how can I help you today?";
const tools = [{
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];
const response_format = {
  type: "json_schema",
  json_schema: {
    name: "reading",
    schema: { type: "object", properties: { city: { type: "string" }, degrees: { type: "integer" } } },
  },
};

for (const model of process.env.MODELS.split(",")) {
  describe(model, () => {
    it("answers", async () => {
      const { data, response } = await client.chat.completions
        .create({ model, messages: user("Hi") }).withResponse();
      assert.equal(data.object, "chat.completion");
      assert.equal(data.choices[0].message.content, GREETING);
      assert.equal(data.choices[0].finish_reason, "stop");
      assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
      assert.equal(response.headers.get("x-cache"), "bypass");
    });

    it("streams, with the usage where it is asked for", async () => {
      const stream = await client.chat.completions.create({
        model, messages: user("Hi"), stream: true, stream_options: { include_usage: true },
      });
      let text = "", finish = null, usage = null;
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta?.content ?? "";
        finish = chunk.choices[0]?.finish_reason ?? finish;
        usage = chunk.usage ?? usage;
      }
      assert.deepEqual([text, finish, usage.completion_tokens > 0], [GREETING, "stop", true]);
      const helper = client.chat.completions.stream({ model, messages: user("Hi") });
      assert.equal(await helper.finalContent(), GREETING);
    });

    it("calls tools, and answers with their results", async () => {
      const messages = user("What is the weather in Rome?");
      const first = await client.chat.completions.create({ model, messages, tools });
      const [call] = first.choices[0].message.tool_calls;
      assert.equal(first.choices[0].finish_reason, "tool_calls");
      assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["weather", { city: "Rome" }]);
      const second = await client.chat.completions.create({
        model,
        messages: [...messages, first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "20" }],
      });
      assert.equal(second.choices[0].message.content, "It is 20 degrees in Rome.");
      const asked = [];
      const runner = client.chat.completions.runTools({
        model, messages, stream: true,
        tools: [{ type: "function", function: { ...tools[0].function, parse: JSON.parse,
          function: ({ city }) => { asked.push(city); return "20"; } } }],
      });
      assert.equal(await runner.finalContent(), "It is 20 degrees in Rome.");
      assert.deepEqual(asked, ["Rome"]);
    });

    it("answers in the shape that was asked for", async () => {
      const whole = await client.chat.completions.parse({ model, messages: user("Read it"), response_format });
      assert.deepEqual(JSON.parse(whole.choices[0].message.content), { city: "Rome", degrees: 20 });
      const streamed = client.chat.completions.stream({ model, messages: user("Read it"), response_format });
      assert.deepEqual(JSON.parse(await streamed.finalContent()), { city: "Rome", degrees: 20 });
    });

    it("tells its errors as the client's own", async () => {
      const asks = (content, more = {}) => client.chat.completions.create({ model, messages: user(content), ...more });
      await assert.rejects(asks("limit"), OpenAI.RateLimitError);
      await assert.rejects(asks("refuse"), OpenAI.BadRequestError);
      await assert.rejects(asks("break"), (error) => error instanceof OpenAI.InternalServerError
        && error.status === 502 && error.code === "upstream_failed");
      await assert.rejects(asks("Hi", { model: "nobody" }), (error) => error instanceof OpenAI.NotFoundError
        && error.code === "model_not_found" && error.param === "model");
      const stranger = new OpenAI({ apiKey: "key-of-nobody-here", maxRetries: 0 });
      await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
      await assert.rejects(async () => {
        for await (const chunk of await asks("cut", { stream: true })) assert.ok(chunk);
      }, OpenAI.APIError);
    });

    it("embeds", async () => {
      const { data, usage } = await client.embeddings.create({ model, input: ["one two", "two three"] });
      assert.deepEqual(data.map((each) => [each.index, each.embedding.length]), [[0, 64], [1, 64]]);
      assert.equal(data[0].embedding.reduce((sum, each) => sum + each), 2);
      assert.ok(usage.prompt_tokens > 0);
      const plain = await client.embeddings.create({ model, input: "one two", encoding_format: "float" });
      assert.deepEqual(plain.data[0].embedding, data[0].embedding);
    });

    it("is listed", async () => {
      const ids = [];
      for await (const each of client.models.list()) ids.push(each.id);
      assert.ok(ids.includes(model));
      assert.equal((await client.models.retrieve(model)).id, model);
    });
  });
}

it("what a backend cannot do is refused before it is asked", async () => {
  const asked = client.chat.completions.create({ model: "ollama-model", messages: user("Hi"), n: 2 });
  await assert.rejects(asked, (error) => error instanceof OpenAI.BadRequestError
    && error.code === "unsupported" && error.param === "n");
});
