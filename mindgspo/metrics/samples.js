"use strict";
// Everything from the run is set as text, never as HTML. Shown in pages of PAGE, since a run has thousands of samples.
const PAGE = 40;
const data = JSON.parse(document.getElementById("data").textContent);
const WORDS = {
  correct: "correct · 正确", wrong: "wrong · 错误", no_answer: "no answer · 未找到答案",
  unparseable_gold: "gold unreadable · 标准答案无法解析", timeout: "timeout · 超时", error: "error · 评分出错",
};
const FIELDS = ["set", "step", "prompt", "sample", "verdict", "score", "advantage", "length", "cut", "extracted", "message", "response"];
const samples = data.samples.map((row) => Object.fromEntries(FIELDS.map((name, place) => [name, row[place]])));
const byId = (id) => document.getElementById(id);
let prompt = null; // the number of the prompt that is followed over time
let shown = PAGE;
let found = [];

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function searched(sample) { // in small letters, made when it is first asked for
  if (sample.lower === undefined) {
    const about = data.prompts[sample.prompt];
    sample.lower = [sample.response, about.text, about.answer, sample.extracted, sample.message].join("\n").toLowerCase();
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
  facts.append(element("span", `badge ${sample.verdict}`, WORDS[sample.verdict] || sample.verdict));
  facts.append(element("span", "", `${data.sets[sample.set]}, step ${sample.step}`));
  if (sample.score !== null) facts.append(fact("reward", sample.score.toPrecision(3).replace(/\.?0+$/, "")));
  if (sample.advantage !== null) {
    const way = sample.advantage > 0 ? "up" : sample.advantage < 0 ? "down" : "";
    facts.append(fact("advantage", (sample.advantage > 0 ? "+" : "") + sample.advantage.toFixed(3), way));
  }
  facts.append(element("span", "", `${sample.length} tokens`));
  if (sample.cut) facts.append(element("span", "badge warn", "cut at max_new_tokens"));
  if (sample.extracted !== null) facts.append(fact("read as", sample.extracted));
  facts.append(fact("gold", about.answer));
  made.append(facts);
  if (sample.message !== null) made.append(element("div", "caption", sample.message));
  if (prompt === null && (place === 0 || all[place - 1].prompt !== sample.prompt)) { // said once for neighbours
    made.append(element("div", "question", about.text));
    const follow = element("button", "link", `this prompt over time (${data.counts[sample.prompt]})`);
    follow.addEventListener("click", () => { prompt = sample.prompt; select(); window.scrollTo(0, 0); });
    made.append(follow);
  }
  made.append(element("pre", "", sample.response));
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
  const back = element("button", "link", "all prompts · 所有提示词");
  back.addEventListener("click", () => { prompt = null; select(); });
  place.append(back, element("pre", "", about.text), element("p", "caption", `gold answer · 标准答案: ${about.answer}`));
  const row = element("div", "steps");
  for (const step of [...steps.keys()].sort((a, b) => a - b)) {
    const all = steps.get(step), cell = element("div", "at"), dots = element("div", "dots");
    for (const sample of all) dots.append(element("i", sample.verdict));
    const correct = all.filter((sample) => sample.verdict === "correct").length;
    cell.append(element("div", "caption", `step ${step}`), dots, element("div", "caption", `${correct} of ${all.length}`));
    row.append(cell);
  }
  place.append(row);
}

function draw() {
  drawHistory();
  const correct = found.filter((sample) => sample.verdict === "correct").length;
  byId("count").textContent = `${found.length.toLocaleString("en")} samples` + (found.length ? `, ${(100 * correct / found.length).toFixed(1)} % correct` : "");
  byId("list").replaceChildren(...found.slice(0, shown).map(card));
  byId("more").hidden = shown >= found.length;
}

function options(id, values, show) {
  for (const value of values) {
    const made = element("option", "", show(value));
    made.value = value;
    byId(id).append(made);
  }
}

options("set", data.sets, (name) => name);
options("verdict", [...new Set(samples.map((sample) => sample.verdict))], (name) => WORDS[name] || name);
let waiting = 0;
byId("filters").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(select, 150); });
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => { prompt = null; setTimeout(select, 0); });
byId("more").addEventListener("click", () => { shown += PAGE; draw(); });
select();
