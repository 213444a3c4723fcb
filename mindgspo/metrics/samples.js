"use strict";
// Everything from the run is set as text, never as HTML. Shown in pages of PAGE, since a run has thousands of samples.
const PAGE = 40;
const data = JSON.parse(document.getElementById("data").textContent);
const WORDS = new Map(Object.entries(JSON.parse(document.getElementById("words").textContent)));
const VERDICTS = new Map([["no_answer", "no answer"], ["unparseable_gold", "gold unreadable"]]);
const FIELDS = ["set", "step", "prompt", "sample", "verdict", "score", "advantage", "length", "cut", "extracted", "message", "response", "episode"];
const TURN = ["text", "observation", "tokens", "logprob", "calls", "seconds", "observed", "leftOut", "errors"];
const CALL = /<tool_call>[^]*?(?:<\/tool_call>|$)|<\|python_tag\|>[^]*$/g;
const ENDS = new Map([
  ["done", "ended by the environment"], ["max_turns", "no further turn is allowed"], ["turn_tokens", "a turn was cut"],
  ["episode_tokens", "no room for another turn"], ["failed", "the environment failed"],
]);
const samples = data.samples.map((row) => Object.fromEntries(FIELDS.map((name, place) => [name, row[place]])));
for (const { episode } of samples) {
  if (episode) episode.turns = episode.turns.map((row) => Object.fromEntries(TURN.map((name, place) => [name, row[place]])));
}
const byId = (id) => document.getElementById(id);
let prompt = null; // the number of the prompt that is followed over time
let shown = PAGE;
let found = [];

function inChinese() { return byId("in-zh").checked; }

function t(text, ...values) { // in the page's language; values take the places of {}
  let place = 0;
  return (inChinese() && WORDS.get(text) || text).replaceAll("{}", () => values[place++]);
}

function verdictText(name) { return t(VERDICTS.get(name) || name); }

function setText(name) { // "held-out: eval", the name of a set as it is
  return name.startsWith("held-out: ") ? t("held-out: {}", name.slice("held-out: ".length)) : t(name);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function searched(sample) { // in small letters, made when it is first asked for
  if (sample.lower === undefined) {
    const about = data.prompts[sample.prompt];
    const turns = sample.episode ? sample.episode.turns.flatMap((turn) => [turn.text, turn.observation]) : [];
    sample.lower = [sample.response, ...turns, about.text, about.answer, sample.extracted, sample.message].join("\n").toLowerCase();
  }
  return sample.lower;
}

function bound(id, otherwise) {
  const text = byId(id).value.trim();
  return text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text);
}

function within(value, key) {
  const low = bound(`${key}-min`, -Infinity), high = bound(`${key}-max`, Infinity);
  return (low === -Infinity && high === Infinity) || (value !== null && value >= low && value <= high);
}

const ORDERS = {
  newest: (a, b) => b.step - a.step,
  oldest: (a, b) => a.step - b.step,
  longest: (a, b) => b.length - a.length,
  shortest: (a, b) => a.length - b.length,
  best: (a, b) => b.score - a.score,
  worst: (a, b) => a.score - b.score,
};

function select() {
  const text = byId("search").value.toLowerCase(), set = byId("set").value, verdict = byId("verdict").value;
  found = samples.filter((sample) =>
    (prompt === null || sample.prompt === prompt) &&
    (set === "" || data.sets[sample.set] === set) &&
    (verdict === "" || sample.verdict === verdict) &&
    within(sample.step, "step") && within(sample.score, "score") && within(sample.length, "length") &&
    (text === "" || searched(sample).includes(text)));
  found.sort(prompt === null ? ORDERS[byId("order").value] : ORDERS.oldest); // stable: file order within a step
  shown = PAGE;
  draw();
}

function fact(label, value, className) {
  const made = element("span", "", `${label} `);
  made.append(element("b", className, value));
  return made;
}

function card(sample, place, all) {
  const about = data.prompts[sample.prompt], made = element("article", `card sample ${sample.verdict}`);
  const facts = element("div", "facts");
  facts.append(element("span", `badge ${sample.verdict}`, verdictText(sample.verdict)));
  facts.append(element("span", "", `${setText(data.sets[sample.set])}, ${t("step {}", sample.step)}`));
  if (sample.score !== null) facts.append(fact(t("reward"), sample.score.toPrecision(3).replace(/\.?0+$/, "")));
  if (sample.advantage !== null) {
    const way = sample.advantage > 0 ? "up" : sample.advantage < 0 ? "down" : "";
    facts.append(fact(t("advantage"), (sample.advantage > 0 ? "+" : "") + sample.advantage.toFixed(3), way));
  }
  facts.append(element("span", "", t("{} tokens", sample.length)));
  if (sample.cut && !sample.episode) facts.append(element("span", "badge warn", t("cut at max_new_tokens")));
  if (sample.extracted !== null) facts.append(fact(t("read as"), sample.extracted));
  facts.append(fact(t("gold"), about.answer));
  made.append(facts);
  if (sample.message !== null) made.append(element("div", "caption", sample.message));
  if (prompt === null && (place === 0 || all[place - 1].prompt !== sample.prompt)) { // said once for neighbours
    made.prepend(element("div", "question", about.question));
    const follow = element("button", "link", t("this prompt over time ({})", data.counts[sample.prompt]));
    follow.addEventListener("click", () => { prompt = sample.prompt; select(); window.scrollTo(0, 0); });
    facts.append(follow);
  }
  made.append(sample.episode ? conversation(sample.episode) : element("pre", "", sample.response));
  return made;
}

function said(turn) { // the text of a turn, its tool calls marked
  const made = element("pre", "said");
  let place = 0;
  for (const found of turn.text.matchAll(CALL)) {
    made.append(turn.text.slice(place, found.index), element("span", "call", found[0]));
    place = found.index + found[0].length;
  }
  if (place === 0 && turn.calls && /^\s*\{/.test(turn.text)) made.append(element("span", "call", turn.text)); // bare JSON
  else made.append(turn.text.slice(place));
  return made;
}

function conversation(episode) { // what the policy said, and what it observed behind it
  const made = element("div", "episode");
  episode.turns.forEach((turn, place) => {
    const facts = element("div", "facts");
    facts.append(element("b", "", t("turn {}", place + 1)), element("span", "", t("{} tokens", turn.tokens)));
    if (turn.logprob !== null) facts.append(fact(t("mean log-prob"), turn.logprob.toFixed(3)));
    if (turn.calls) facts.append(fact(t("tool calls"), turn.calls));
    for (const kind of turn.errors) facts.append(element("span", "badge warn", kind));
    made.append(facts, said(turn));
    if (turn.observed || turn.seconds >= 0.01) {
      const about = element("div", "facts observed");
      about.append(element("b", "", t("environment")));
      if (turn.observed) about.append(element("span", "", t("observation, not trained")), element("span", "", t("{} tokens", turn.observed)));
      if (turn.leftOut) about.append(element("span", "badge warn", t("{} tokens left out", turn.leftOut)));
      if (turn.seconds >= 0.01) about.append(fact(t("seconds"), turn.seconds.toFixed(2)));
      made.append(about);
    }
    if (turn.observed) made.append(element("pre", "observed", turn.observation.trim()));
  });
  if (episode.hidden) made.append(element("div", "caption", t("{} further turns in the run folder", episode.hidden)));
  const end = element("div", "facts end");
  end.append(element("span", `badge ${episode.end === "done" ? "good" : episode.end === "failed" ? "alarm" : "warn"}`, episode.end));
  if (ENDS.has(episode.end)) end.append(element("span", "", t(ENDS.get(episode.end))));
  if (episode.reward !== null) end.append(fact(t("environment's reward"), episode.reward));
  for (const [name, value] of episode.info) end.append(fact(name, value));
  made.append(end);
  if (episode.message) made.append(element("div", "caption", episode.message));
  return made;
}

function drawHistory() {
  const place = byId("history");
  place.replaceChildren();
  place.hidden = prompt === null;
  if (prompt === null) return;
  const about = data.prompts[prompt], steps = new Map();
  for (const sample of samples) {
    if (sample.prompt === prompt) {
      if (!steps.has(sample.step)) steps.set(sample.step, []);
      steps.get(sample.step).push(sample);
    }
  }
  const back = element("button", "link", t("all prompts"));
  back.addEventListener("click", () => { prompt = null; select(); });
  place.append(back, element("pre", "", about.text), element("p", "caption", `${t("gold answer")}: ${about.answer}`));
  const row = element("div", "steps");
  for (const step of [...steps.keys()].sort((a, b) => a - b)) {
    const all = steps.get(step), cell = element("div", "at"), dots = element("div", "dots");
    for (const sample of all) dots.append(element("i", sample.verdict));
    const correct = all.filter((sample) => sample.verdict === "correct").length;
    cell.append(element("div", "caption", t("step {}", step)), dots, element("div", "caption", `${correct} / ${all.length}`));
    row.append(cell);
  }
  place.append(row);
}

function draw() {
  drawHistory();
  const correct = found.filter((sample) => sample.verdict === "correct").length;
  const scored = found.filter((sample) => sample.score !== null);
  const reward = scored.reduce((sum, sample) => sum + sample.score, 0) / scored.length;
  const parts = [t("{} samples", found.length.toLocaleString("en"))];
  if (found.length) parts.push(t("{} % correct", (100 * correct / found.length).toFixed(1)));
  if (scored.some((sample) => sample.score !== Number(sample.verdict === "correct"))) parts.push(t("mean reward {}", reward.toFixed(3)));
  byId("count").textContent = parts.join(inChinese() ? "，" : ", ");
  byId("list").replaceChildren(...found.slice(0, shown).map(card));
  byId("more").hidden = shown >= found.length;
}

function options(id, values) {
  for (const value of values) {
    const made = element("option");
    made.value = value;
    byId(id).append(made);
  }
}

const SHOWN = { set: setText, verdict: verdictText }; // of the choices that come from the run
const FIXED = [...document.querySelectorAll("#order option, #set option, #verdict option")].map((made) => [made, made.textContent]);
const HINTS = [...document.querySelectorAll("[placeholder]")].map((made) => [made, made.placeholder]);
options("set", data.sets);
options("verdict", [...new Set(samples.map((sample) => sample.verdict))]);

function relabel() { // what CSS cannot switch
  document.documentElement.lang = inChinese() ? "zh" : "en";
  for (const [made, text] of FIXED) made.textContent = t(text);
  for (const [made, text] of HINTS) made.placeholder = t(text);
  for (const id of Object.keys(SHOWN)) for (const made of byId(id).options) if (made.value) made.textContent = SHOWN[id](made.value);
}
let waiting = 0;
byId("filters").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(select, 150); });
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => { prompt = null; setTimeout(select, 0); });
byId("more").addEventListener("click", () => { shown += PAGE; draw(); });
for (const id of ["in-en", "in-zh"]) byId(id).addEventListener("change", () => { relabel(); draw(); });
if (navigator.language.startsWith("zh") || location.hash === "#zh") byId("in-zh").checked = true;
relabel();
select();
