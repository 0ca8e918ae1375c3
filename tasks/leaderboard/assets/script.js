"use strict";

// Quoted systems beyond the paper's main rows fold away; without this script all are shown.
const table = document.querySelector("table.scores");
const toggle = document.getElementById("all-quoted");
if (toggle) {
  const fold = () => table.classList.toggle("folding", !toggle.checked);
  toggle.addEventListener("change", fold);
  fold();
}

// What the cells of the main table show: mean, median, difference, cost.
const mode = document.getElementById("mode");
const show = () => { table.dataset.mode = mode.value; };
mode.addEventListener("change", () => { show(); sortAgain(); });
// A browser may remember the choice of an earlier visit.
show();

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
    });
  });
}
const sortAgain = () => {
  const header = table.querySelector("[aria-sort]");
  if (header) sort(table, header.cellIndex, header.getAttribute("aria-sort"), header.querySelector("[data-sort]"));
};

// Filters: benchmarks and systems that are not selected are hidden everywhere on the page.
const boxes = [...document.querySelectorAll("[data-pick]")];
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
};
for (const box of boxes) box.addEventListener("change", filter);
for (const [attribute, ticked] of [["all", true], ["none", false]]) {
  for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
    button.addEventListener("click", () => {
      for (const box of boxes) if (box.dataset.pick === button.dataset[attribute]) box.checked = ticked;
      filter();
    });
  }
}
filter();
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.pick[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  tip.hidden = true;
  for (const menu of document.querySelectorAll("details.pick[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
});

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
