"use strict";
// Sort rows by a column: numbers in descending order first, empty cells always last.
function value(cell, numeric) {
  const text = cell.textContent.trim();
  if (!numeric) return text;
  const number = parseFloat(text);
  return Number.isNaN(number) ? null : number;
}
function sort(button) {
  const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
  const numeric = head.classList.contains("n"), before = head.getAttribute("aria-sort");
  const falling = before === "none" ? numeric : before === "ascending";
  const sign = falling ? -1 : 1;
  const rows = Array.from(body.rows, row => [value(row.cells[head.cellIndex], numeric), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (numeric ? a - b : a.localeCompare(b, undefined, {numeric: true}));
  });
  for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
  body.replaceChildren(...rows.map(([, row]) => row));
}
for (const picture of document.querySelectorAll("picture")) picture.addEventListener("click", () => picture.classList.toggle("large"));
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));
