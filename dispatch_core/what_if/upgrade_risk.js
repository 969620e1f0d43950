"use strict";
// Leaves the rows that have every word of the search, and opens the parts that have such rows; others are hidden.
(() => {
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const tables = [...document.querySelectorAll("main table")].slice(1).map((table) => ({
    table,
    part: table.closest("details"),
    rows: [...table.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase() })),
  }));
  const total = tables.reduce((sum, { rows }) => sum + rows.length, 0);
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { table, part, rows } of tables) {
      let here = 0;
      for (const { row, text } of rows) {
        row.hidden = !wanted.every((word) => text.includes(word));
        here += row.hidden ? 0 : 1;
      }
      table.hidden = !here;
      if (part) {
        part.open = wanted.length > 0 && here > 0;
        part.closest("section").hidden = !here;
      }
      left += here;
    }
    shown.textContent = wanted.length ? `${left} of ${total} match` : "";
  };
  search.addEventListener("input", filter);
  document.getElementById("search-tools").hidden = false;
})();
