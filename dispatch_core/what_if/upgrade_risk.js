"use strict";
// Leaves the rows that have every word of the search, and opens the parts that have such rows.
(() => {
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const rows = [...document.querySelectorAll("tbody")].slice(1).flatMap((body) => [...body.rows]);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const parts = [...document.querySelectorAll("details")];
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Set();
    let left = 0;
    rows.forEach((row, at) => {
      row.hidden = !wanted.every((word) => texts[at].includes(word));
      left += row.hidden ? 0 : 1;
      if (!row.hidden) found.add(row.closest("details"));
    });
    for (const part of parts) {
      part.hidden = !found.has(part);
      part.open = wanted.length > 0 && found.has(part);
    }
    shown.textContent = wanted.length ? `${left} of ${rows.length} match` : "";
  };
  search.addEventListener("input", filter);
  document.getElementById("search-tools").hidden = false;
})();
