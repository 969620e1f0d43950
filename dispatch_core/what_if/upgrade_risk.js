"use strict";
// Leaves the subscriptions that have every word of the search, and opens the sections that have some; others are hidden.
// A subscription is a row, with its partitions in the row beneath.
(() => {
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const found = (row) => {
    const below = row.nextElementSibling;
    const rows = below?.classList.contains("parts") ? [row, below] : [row];
    return { rows, text: rows.map((each) => each.textContent.toLowerCase()).join(" ") };
  };
  const tables = [...document.querySelectorAll("main table")].slice(1).map((table) => ({
    table,
    part: table.closest("details"),
    rows: [...table.tBodies[0].rows].filter((row) => !row.classList.contains("parts")).map(found),
  }));
  const total = tables.reduce((sum, { rows }) => sum + rows.length, 0);
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { table, part, rows } of tables) {
      let here = 0;
      for (const { rows: both, text } of rows) {
        const hidden = !wanted.every((word) => text.includes(word));
        for (const row of both) row.hidden = hidden;
        here += hidden ? 0 : 1;
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
