"use strict";

// Quoted systems beyond the paper's main rows fold away; without this script all are shown.
const table = document.querySelector("table.scores");
const toggle = document.getElementById("all-quoted");
if (toggle) {
  const fold = () => table.classList.toggle("folding", !toggle.checked);
  toggle.addEventListener("change", fold);
  fold();
}

// A column's name sorts it, within each group of rows: empty cells last, equal ones as they were.
const values = (row, column) => row.cells[column].dataset.value;
table.querySelectorAll("thead th").forEach((header, column) => {
  header.querySelector("button").addEventListener("click", () => {
    const text = column === 0;
    const first = text ? "ascending" : "descending";
    const other = text ? "descending" : "ascending";
    const order = header.getAttribute("aria-sort") === first ? other : first;
    table.querySelectorAll("[aria-sort]").forEach((sorted) => sorted.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.matches(".group, .majority"));
      rows.sort((a, b) => {
        const [left, right] = [values(a, column), values(b, column)];
        if (!left || !right) return (left ? 0 : 1) - (right ? 0 : 1);
        return sign * (text ? left.localeCompare(right) : left - right);
      });
      const last = body.querySelector(".majority");
      for (const row of rows) body.insertBefore(row, last);
    }
  });
});

// Tooltips: titles become one floating note that follows mouse, finger and keyboard alike.
const tip = document.getElementById("tip");
for (const element of document.querySelectorAll("main [title]")) {
  element.dataset.tip = element.title;
  element.removeAttribute("title");
}
const show = (event) => {
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
document.addEventListener("mouseover", show);
document.addEventListener("click", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);
