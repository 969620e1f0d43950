"use strict";
// Draws the pictures and builds the table of findings. Texts of the data reach the page as text only, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const draw = () => {
    for (const [name, figure] of Object.entries(data.pictures)) {
      Plotly.newPlot(`plot-${name}`, figure.data, figure.layout, settings);
    }
  };
  if (data.library === null) {
    draw();
  } else {
    const script = document.createElement("script");
    script.src = data.library;
    script.onload = draw;
    script.onerror = () => {
      for (const name of Object.keys(data.pictures)) {
        document.getElementById(`plot-${name}`).textContent =
          `No picture: the file ${data.library} is not where it was beside this page. ` +
          "dispatch-audit report --self-contained makes a page that needs no other file.";
      }
    };
    document.head.append(script);
  }

  const STEP = 50;
  const findings = data.findings;
  const search = document.getElementById("search");
  const kind = document.getElementById("kind");
  const rows = document.getElementById("findings");
  const more = document.getElementById("more");
  const shown = document.getElementById("shown");
  if (!rows) return;

  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const evidence = (list, left) => list.join(", ") + (left ? `, and ${left} more` : "");
  const SEVERITIES = ["critical", "major", "minor", "info"];

  const row = (finding) => {
    const line = element("tr", null, "finding");
    const grade = SEVERITIES.includes(finding.severity) ? finding.severity : "";
    line.append(element("td", finding.severity + (finding.uncertain ? ", uncertain" : ""), grade));
    line.append(element("td", finding.kind));
    line.append(element("td", finding.key === null ? "" : finding.key));
    line.append(element("td", finding.at));
    const cell = element("td");
    const details = element("details");
    const text = finding.explanation;
    details.append(element("summary", text.length > 110 ? `${text.slice(0, 110)}…` : text));
    details.append(element("p", text, "explanation"));
    const list = element("dl");
    const add = (name, value) => {
      if (value !== null && value !== "") list.append(element("dt", name), element("dd", value));
    };
    add("what it means", Object.hasOwn(data.meanings, finding.kind) ? data.meanings[finding.kind] : null);
    add("why", finding.why);
    add("key", finding.key === null ? null : finding.key + (finding.key_b64 ? " (base64)" : ""));
    add("hash", finding.hash);
    add("consumers", evidence(finding.consumers, 0));
    add("positions", evidence(finding.positions, finding.more_positions));
    add("proved by lines (seq)", evidence(finding.seqs, finding.more_seqs));
    details.append(list);
    cell.append(details);
    line.append(cell);
    line.addEventListener("click", (event) => {
      // Within the details a click selects text, or is the browser's own.
      if (!event.target.closest("details")) details.open = !details.open;
    });
    return line;
  };

  const words = (finding) =>
    [finding.kind, finding.severity, finding.key, finding.hash, finding.why, finding.at, finding.explanation,
      ...finding.consumers, ...finding.positions].join("\n").toLowerCase();
  const texts = findings.map(words);
  let matching = [];
  let count = 0;

  const extend = () => {
    const page = document.createDocumentFragment();
    for (const at of matching.slice(count, count + STEP)) page.append(row(findings[at]));
    rows.append(page);
    count = Math.min(count + STEP, matching.length);
    more.hidden = count >= matching.length;
    shown.textContent = `${count} of ${matching.length} shown`;
  };
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    matching = [];
    findings.forEach((finding, at) => {
      if ((!kind.value || finding.kind === kind.value) && wanted.every((word) => texts[at].includes(word))) {
        matching.push(at);
      }
    });
    count = 0;
    rows.replaceChildren();
    extend();
  };
  search.addEventListener("input", filter);
  kind.addEventListener("change", filter);
  more.addEventListener("click", extend);
  filter();
})();
