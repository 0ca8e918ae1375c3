"use strict";

// Quoted systems beyond the paper's main rows fold away; without this script all are shown.
const table = document.querySelector("table.scores");
const toggle = document.getElementById("all-quoted");
const fold = () => table.classList.toggle("folding", !toggle.checked);
if (toggle) toggle.addEventListener("change", () => { fold(); keep(); });

// What the cells of the main table show: mean, median, difference, cost.
const mode = document.getElementById("mode");
const show = () => { table.dataset.mode = mode.value; };
mode.addEventListener("change", () => { show(); sortAgain(); keep(); });

// A column's name sorts it, within each group of rows: empty cells last, equal ones as they were.
const worth = (row, column) => {
  const data = row.cells[column].dataset;
  return data.value ?? data[table.dataset.mode] ?? "";
};
const sort = (sorted, column, order, text) => {
  const sign = order === "ascending" ? 1 : -1;
  for (const body of sorted.tBodies) {
    const rows = [...body.rows].filter((row) => !row.matches(".group, .majority"));
    rows.sort((a, b) => {
      const [left, right] = [worth(a, column), worth(b, column)];
      if (left === "" || right === "") return (left === "") - (right === "");
      return sign * (text ? left.localeCompare(right) : left - right);
    });
    const last = body.querySelector(".majority");
    for (const row of rows) body.insertBefore(row, last);
  }
};
for (const sorted of document.querySelectorAll("table.scores, table.sortable")) {
  sorted.querySelectorAll("thead th").forEach((header, column) => {
    const button = header.querySelector("button");
    button.addEventListener("click", () => {
      const text = button.dataset.sort === "text";
      const [first, other] = text ? ["ascending", "descending"] : ["descending", "ascending"];
      const order = header.getAttribute("aria-sort") === first ? other : first;
      sorted.querySelectorAll("[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", order);
      sort(sorted, column, order, text);
      if (sorted === table) keep();
    });
  });
}
const sortAgain = () => {
  const header = table.querySelector("[aria-sort]");
  if (header) sort(table, header.cellIndex, header.getAttribute("aria-sort"), header.querySelector("[data-sort]"));
};

// Filters: benchmarks and systems that are not selected are hidden everywhere on the page.
const boxes = [...document.querySelectorAll("[data-pick]")];
const shown = () => boxes.filter((box) => box.dataset.pick === "task" && box.checked).map((box) => box.value);
const filter = () => {
  for (const what of ["task", "system"]) {
    const of = boxes.filter((box) => box.dataset.pick === what);
    const gone = new Set(of.filter((box) => !box.checked).map((box) => box.value));
    for (const element of document.querySelectorAll(`[data-${what}]`)) {
      element.classList.toggle(`no-${what}`, gone.has(element.dataset[what]));
    }
    const summary = of[0]?.closest("details").querySelector("summary");
    if (summary) {
      summary.dataset.title ??= summary.textContent;
      summary.textContent = summary.dataset.title + (gone.size ? ` ${of.length - gone.size}/${of.length}` : "");
    }
  }
  average();
  sortAgain();
};
for (const box of boxes) box.addEventListener("change", () => { filter(); keep(); });
for (const [attribute, ticked] of [["all", true], ["none", false]]) {
  for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
    button.addEventListener("click", () => {
      for (const box of boxes) if (box.dataset.pick === button.dataset[attribute]) box.checked = ticked;
      filter();
      keep();
    });
  }
}

// Averages are over the benchmarks that are shown; a system that lacks one of them has none.
const average = () => {
  const tasks = shown();
  const whole = tasks.length === boxes.filter((box) => box.dataset.pick === "task").length;
  const label = document.querySelector("#average small");
  label.dataset.whole ??= label.textContent;
  label.textContent = whole ? label.dataset.whole : `${tasks.length} shown`;
  for (const cell of table.querySelectorAll("td.mean-of-shown")) {
    const place = cell.querySelector(".mode-mean");
    if (!place) continue;
    cell.dataset.whole ??= cell.dataset.mean ?? "";
    place.dataset.whole ??= place.innerHTML;
    if (whole) {
      cell.dataset.mean = cell.dataset.whole;
      place.innerHTML = place.dataset.whole;
      continue;
    }
    const values = tasks.map((task) => cell.parentElement.querySelector(`[data-task="${CSS.escape(task)}"]`)?.dataset.mean ?? "");
    const known = values.filter((value) => value !== "").map(Number);
    const mean = known.length === tasks.length && known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    cell.dataset.mean = mean ?? "";
    place.replaceChildren(Object.assign(document.createElement("span"), mean === null
      ? { className: "std", textContent: `${known.length} of ${tasks.length}` }
      : { className: "mean", textContent: mean.toFixed(1).replace("-", "−") }));
  }
  const means = [...table.querySelectorAll("tr[data-system]:not(.no-system) td.mean-of-shown")];
  const best = Math.max(...means.map((cell) => (cell.dataset.mean && !cell.querySelector(".mean")?.textContent.startsWith("≈") ? Number(cell.dataset.mean) : -Infinity)));
  for (const cell of means) cell.classList.toggle("best", means.length > 1 && Number(cell.dataset.mean || NaN) === best);
};

// What is shown is kept in the address, so that a link or a reload shows the same.
const keep = () => {
  const query = new URLSearchParams();
  if (mode.selectedIndex > 0) query.set("show", mode.value);
  for (const what of ["task", "system"]) {
    const of = boxes.filter((box) => box.dataset.pick === what);
    if (of.some((box) => !box.checked)) query.set(`${what}s`, of.filter((box) => box.checked).map((box) => box.value).join(","));
  }
  if (toggle?.checked) query.set("quoted", "all");
  const header = table.querySelector("[aria-sort]");
  if (header) query.set("sort", `${header.cellIndex},${header.getAttribute("aria-sort")}`);
  const text = query.toString();
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}${location.hash}`);
};
const restore = () => {
  const query = new URLSearchParams(location.search);
  // A browser may remember the choices of an earlier visit; the address decides.
  mode.value = [...mode.options].some((option) => option.value === query.get("show")) ? query.get("show") : mode.options[0].value;
  for (const box of boxes) {
    const picked = query.get(`${box.dataset.pick}s`);
    box.checked = picked === null || picked.split(",").includes(box.value);
  }
  if (toggle) { toggle.checked = query.get("quoted") === "all"; fold(); }
  const [column, order] = (query.get("sort") ?? "").split(",");
  const header = table.tHead.rows[0].cells[column === "" ? -1 : Number(column)];
  if (header && ["ascending", "descending"].includes(order)) header.setAttribute("aria-sort", order);
  show();
  filter();
};
restore();
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.pick[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  tip.hidden = true;
  for (const menu of document.querySelectorAll("details.pick[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
});

// One encoder at a time in the sections with a switch, and a search of the error examples.
const switches = [...document.querySelectorAll("select.switch")];
const search = document.getElementById("search");
const find = () => {
  const wanted = search?.value.trim().toLowerCase() ?? "";
  let count = 0;
  for (const list of document.querySelectorAll("details.errors")) {
    const rows = [...list.querySelectorAll("li")];
    for (const row of rows) row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
    const found = rows.filter((row) => !row.hidden).length;
    if (!list.hidden) count += found;
    list.classList.toggle("no-match", wanted !== "" && found === 0);
    if (wanted !== "") list.open = found > 0;
  }
  if (search) document.getElementById("found").textContent = wanted ? `${count} example${count === 1 ? "" : "s"}` : "";
};
const choose = (name) => {
  for (const one of switches) one.value = name;
  for (const element of document.querySelectorAll("[data-of]")) element.hidden = element.dataset.of !== name;
  find();
};
for (const one of switches) one.addEventListener("change", () => choose(one.value));
if (switches.length) choose(switches[0].options[0].value);
search?.addEventListener("input", find);

// On paper everything is open.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("main details:not(.pick):not([open])")];
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => { for (const one of opened) one.open = false; });

// Tooltips: titles become one floating note that follows mouse, finger and keyboard alike.
const tip = document.getElementById("tip");
for (const element of document.querySelectorAll("main [title]")) {
  element.dataset.tip = element.title;
  element.removeAttribute("title");
}
const note = (event) => {
  const element = event.target.closest?.("[data-tip]");
  tip.hidden = !element;
  if (!element) return;
  tip.textContent = element.dataset.tip.replaceAll("; ", "\n").replace(": ", "\n");
  const place = element.getBoundingClientRect();
  const left = Math.min(Math.max(12, place.left), window.innerWidth - tip.offsetWidth - 12);
  const above = place.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : place.bottom + 8}px`;
};
document.addEventListener("mouseover", note);
document.addEventListener("click", note);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);
