"use strict";
// Leaves the rows that have every word of the search.
(() => {
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const rows = [...document.getElementById("rows").rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row, at) => {
      row.hidden = !wanted.every((word) => texts[at].includes(word));
      left += row.hidden ? 0 : 1;
    });
    shown.textContent = wanted.length ? `${left} of ${rows.length} match` : "";
  };
  search.addEventListener("input", filter);
  document.getElementById("search-tools").hidden = false;
  filter();
})();
