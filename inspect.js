const all = [...document.querySelectorAll("main details")];
const lines = [...document.querySelectorAll("main code")];
const found = document.getElementById("found");
const setAll = open => all.forEach(d => { d.open = open; });
document.getElementById("open").onclick = () => setAll(true);
document.getElementById("close").onclick = () => setAll(false);

// A line is shown when every word is in it or in the summaries above it.
const pathOf = new Map();
function path(details) {
  if (!details) return "";
  if (!pathOf.has(details)) {
    const own = details.querySelector("summary").textContent;
    pathOf.set(details, path(details.parentElement.closest("details")) + " " + own);
  }
  return pathOf.get(details);
}
function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(w => w);
  let count = 0;
  const shown = new Set();
  for (const line of lines) {
    const whole = (path(line.closest("details")) + " " + line.textContent).toLowerCase();
    const ok = words.every(w => whole.includes(w));
    line.classList.toggle("hidden", !ok);
    if (!ok) continue;
    count++;
    for (let d = line.closest("details"); d && !shown.has(d); d = d.parentElement.closest("details")) shown.add(d);
  }
  for (const d of all) {
    d.classList.toggle("hidden", !shown.has(d));
    if (words.length) d.open = shown.has(d) && count <= 500;
  }
  found.textContent = words.length ? count + " lines" : "";
}
let timer;
document.getElementById("filter").oninput = e => { clearTimeout(timer); timer = setTimeout(() => filter(e.target.value), 150); };

// A link to a value opens what its definition lies in.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let d = target.closest("details"); d; d = d.parentElement.closest("details")) { d.open = true; d.classList.remove("hidden"); }
  target.closest("code")?.classList.remove("hidden");
  target.scrollIntoView({ block: "nearest" });
}
addEventListener("hashchange", reveal);
reveal();
