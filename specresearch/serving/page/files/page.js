// The page at the server's root: asks for an answer, and shows who wrote it and how fast.

import { drawBars, drawTree } from "./drawing.js";
import { complete, getJson } from "./stream.js";
import { describe, draftsOf, Steps } from "./steps.js";

const DEEPEST_COLOUR = 6;
const $ = (id) => document.getElementById(id);
const slider = $("step");

let model = null;
let steps = new Steps();
let spans = []; // of the tokens of each step
let follows = true; // the newest step is the chosen one
let running = null;
let redraws = false; // before the next frame; drawing at every step would slow the steps down

function redrawSoon() {
  if (redraws) return;
  redraws = true;
  requestAnimationFrame(() => {
    redraws = false;
    showSteps();
    for (const id of ["speculative-text", "plain-text"]) scrollToEnd($(id));
  });
}

// Follows text that grows, unless somebody has scrolled back.
function scrollToEnd(frame) {
  const gap = frame.scrollHeight - frame.scrollTop - frame.clientHeight;
  if (gap < frame.clientHeight / 2) frame.scrollTop = frame.scrollHeight;
}

async function loadModel() {
  try {
    model = (await getJson("v1/models", $("key").value)).data[0].id;
    $("model").textContent = model;
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}

function fail(error) {
  if (error.name === "AbortError") {
    $("status").textContent = "Stopped.";
    return;
  }
  if (error.status === 401) $("key-field").hidden = false;
  $("status").textContent = error.status === 401 ? "This server asks for an API key." : `Failed: ${error.message}`;
}

function request(speculates) {
  const prompt = $("prompt").value;
  const body = {
    model,
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
    stream_options: { include_usage: true, include_speculation: speculates },
  };
  if (!speculates) body.num_draft_tokens = 0;
  if ($("raw").checked) return ["v1/completions", { ...body, prompt }];
  return ["v1/chat/completions", { ...body, messages: [{ role: "user", content: prompt }] }];
}

// Decodes the prompt; returns text and tokens per second, prefill excluded.
async function decode(speculates, onChoice, speed) {
  const [path, body] = request(speculates);
  let text = "", first = null, numFirst = 0, seconds = 0, numTokens = 0;
  for await (const chunk of complete(path, body, $("key").value, running.signal)) {
    const choice = chunk.choices[0];
    const now = performance.now();
    if (choice) {
      text += onChoice(choice);
      const arrived = choice.speculation?.tokens.length ?? 1;
      numTokens += arrived;
      if (first === null && arrived) [first, numFirst] = [now, numTokens];
      seconds = first === null ? 0 : (now - first) / 1000;
    }
    if (chunk.usage) numTokens = chunk.usage.completion_tokens;
  }
  const rate = seconds > 0 ? (numTokens - numFirst) / seconds : null;
  speed.textContent = rate === null ? "–" : rate.toFixed(0);
  return { text, rate };
}

const textOf = (choice) => choice.delta?.content ?? choice.text ?? "";

function showSpeculative(choice) {
  if (!choice.speculation) return textOf(choice);
  for (const step of steps.add(choice.speculation)) {
    spans.push(step.tokens.map(spanOf));
    $("speculative-text").append(...spans.at(-1));
  }
  redrawSoon();
  return textOf(choice);
}

function spanOf(token) {
  const span = document.createElement("span");
  const place = token.position === null ? "own" : `position-${Math.min(token.position, DEEPEST_COLOUR)}`;
  span.className = `token ${place}`;
  span.title = token.position === null ? "the target's own" : `accepted, draft ${token.position} of its step`;
  span.textContent = token.text;
  return span;
}

function showPlain(choice) {
  $("plain-text").append(textOf(choice));
  redrawSoon();
  return textOf(choice);
}

function showSteps() {
  const number = steps.all.length;
  if (!number) return;
  slider.max = number;
  slider.disabled = false;
  if (follows) slider.value = number;
  const share = steps.numDrafts ? ` ${Math.round((100 * steps.numAccepted) / steps.numDrafts)}% of ${steps.numDrafts} drafts accepted;` : "";
  $("acceptance").textContent = `${number} steps;${share} mean acceptance length ${steps.meanLength.toFixed(2)}.`;
  showChosen();
}

function showChosen() {
  const chosen = Number(slider.value) - 1;
  const step = steps.all[chosen];
  for (const span of $("speculative-text").querySelectorAll(".chosen")) span.classList.remove("chosen");
  for (const span of spans[chosen]) span.classList.add("chosen");
  $("step-number").textContent = `${chosen + 1} of ${steps.all.length}`;
  slider.setAttribute("aria-valuetext", `${chosen + 1} of ${steps.all.length}: ${describe(step)}`);
  drawBars($("bars"), steps.all, chosen, choose);
  drawTree($("tree"), step);
  const description = describe(step);
  $("tree").setAttribute("aria-label", description);
  $("step-text").textContent = description;
  $("bars").setAttribute("aria-label", `Drafts by step; step ${chosen + 1} has ${draftsOf(step)}`);
}

function choose(number) {
  follows = false;
  slider.value = number + 1;
  showChosen();
}

function clear() {
  steps = new Steps();
  spans = [];
  follows = true;
  for (const id of ["speculative-text", "plain-text", "bars", "tree"]) $(id).replaceChildren();
  for (const id of ["speedup", "equality", "step-text", "status"]) $(id).textContent = "";
  for (const id of ["speculative-speed", "plain-speed", "step-number"]) $(id).textContent = "–";
  slider.disabled = true;
}

function compare(speculative, plain) {
  if (speculative.rate && plain.rate) {
    $("speedup").textContent = `· ${(speculative.rate / plain.rate).toFixed(2)} times plain decoding`;
  }
  const greedy = Number($("temperature").value) === 0;
  const equal = speculative.text === plain.text;
  if (!greedy) $("equality").textContent = "· sampled, so another text";
  else $("equality").textContent = equal ? "· the same text" : "· another text: rounding decided a tie, or something is wrong";
}

async function ask() {
  if (running || !$("ask").reportValidity()) return;
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  clear();
  try {
    if (model === null && !(await loadModel())) return;
    $("status").textContent = "Decoding with drafts …";
    const speculative = await decode(true, showSpeculative, $("speculative-speed"));
    if ($("compare").checked) {
      $("status").textContent = "Decoding plainly …";
      compare(speculative, await decode(false, showPlain, $("plain-speed")));
    }
    $("status").textContent = "Done.";
  } catch (error) {
    fail(error);
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    if (steps.all.length) showChosen();
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
$("stop").addEventListener("click", () => running?.abort());
slider.addEventListener("input", () => choose(Number(slider.value) - 1));
loadModel();
