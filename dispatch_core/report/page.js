"use strict";
// Draws the pictures and builds the list of findings. Texts of the data reach the page as text only, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const byId = (id) => document.getElementById(id);
  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const SEVERITIES = ["critical", "major", "minor", "info"];
  const severityOf = (finding) => (SEVERITIES.includes(finding.severity) ? finding.severity : "info");
  const clock = (ms) => new Date(ms).toISOString().slice(11, 23);
  const between = ([from, until]) => (clock(from) === clock(until) ? clock(from) : `${clock(from)} to ${clock(until)}`);

  const pictures = (() => {
    const figures = data.ranges === null ? data.pictures : { ...data.pictures, ring: data.ranges.figure };
    const TIME = "date";
    const isTimed = (name) => figures[name].layout.xaxis.type === TIME;
    const HOVER = "%{customdata[0]}<br>%{customdata[1]}<extra></extra>";
    const settings = { responsive: true, displayModeBar: false, doubleClick: false, showTips: false };
    const drawn = new Set();
    const hidden = new Set(); // "picture trace" of what the legend has switched off
    let shown = [...data.view]; // the time that the pictures show, milliseconds
    let hashes = null; // the hashes that the picture of the ranges shows; null = all
    let chosen = null; // the time of the finding that was asked for
    let paperWidth = null; // while the page is printed
    let onMark = () => {};

    const plotOf = (name) => byId(`plot-${name}`);
    const isNarrow = () => paperWidth === null && innerWidth < 640;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const inkOf = (severity) => colour({ critical: "fail-ink", major: "major", minor: "minor" }[severity] ?? "dim");

    // Findings of one part of the shown time share a mark; zooming in takes them apart.
    const bins = () => {
      const [from, until] = shown;
      const most = isNarrow() ? 24 : 60;
      const found = new Map();
      data.findings.forEach((finding, at) => {
        if (finding.t_ms === null || finding.t_ms < from || finding.t_ms > until) return;
        const bin = Math.floor(((finding.t_ms - from) / (until - from)) * most);
        if (!found.has(bin)) found.set(bin, []);
        found.get(bin).push(at);
      });
      return [...found.entries()].sort((a, b) => a[0] - b[0]).map(([, rows]) => {
        const times = rows.map((at) => data.findings[at].t_ms);
        const severity = SEVERITIES[Math.min(...rows.map((at) => SEVERITIES.indexOf(severityOf(data.findings[at]))))];
        const count = rows.length === 1 ? "1 finding" : `${rows.length} findings, the worst`;
        return { rows, severity, when: [Math.min(...times), Math.max(...times)], text: `${count} ${severity}` };
      });
    };
    let marks = bins();
    const lastAxis = (layout) => Object.keys(layout).filter((key) => /^yaxis\d*$/.test(key)).length;
    const marksTrace = (layout) => {
      const last = lastAxis(layout);
      return {
        type: "scatter", mode: "markers", name: "findings", meta: "findings", cliponaxis: false,
        xaxis: last > 1 ? `x${last}` : "x", yaxis: "y9",
        x: marks.map((mark) => (mark.when[0] + mark.when[1]) / 2), y: marks.map(() => (last > 1 ? 0.06 : 0.025)),
        customdata: marks.map((mark) => [mark.text, `${between(mark.when)}: a click lists them`]), hovertemplate: HOVER,
        marker: {
          symbol: "diamond", size: 12, color: marks.map((mark) => inkOf(mark.severity)),
          line: { color: colour("panel"), width: 1 },
        },
      };
    };

    const laidOut = (name) => {
      const given = figures[name].layout;
      const layout = { ...given, paper_bgcolor: colour("panel"), plot_bgcolor: colour("plot") };
      layout.font = { ...given.font, color: colour("ink"), size: isNarrow() ? 11 : 12 };
      layout.dragmode = isNarrow() || matchMedia("(pointer: coarse)").matches ? false : "zoom";
      for (const key of Object.keys(given)) {
        if (!/^[xy]axis\d*$/.test(key)) continue;
        layout[key] = { ...given[key], gridcolor: colour("grid") };
        if (given[key].title) layout[key].title = { ...given[key].title, standoff: 6 };
        if (given[key].type === TIME) {
          Object.assign(layout[key], { range: [...shown], tickangle: 0, nticks: isNarrow() ? 4 : 10 });
          // Marks of findings stand on the axis, above its texts.
          Object.assign(layout[key], { ticks: "outside", ticklen: 8, tickcolor: colour("grid") });
        } else if (key[0] === "y" && isTimed(name)) {
          layout[key].fixedrange = name !== "ring" || data.ranges === null;
        }
      }
      if (name === "ring" && data.ranges !== null && hashes !== null) layout.yaxis.range = [...hashes];
      if (isTimed(name)) {
        const last = lastAxis(given);
        layout.yaxis9 = { overlaying: last > 1 ? `y${last}` : "y", range: [0, 1], visible: false, fixedrange: true };
        if (chosen !== null) {
          const line = { color: colour("chosen"), width: 2 };
          layout.shapes = [
            ...(given.shapes ?? []),
            { type: "line", x0: chosen, x1: chosen, yref: "paper", y0: 0, y1: 1, line },
          ];
        }
      }
      layout.legend = { ...given.legend, itemdoubleclick: false };
      if (paperWidth !== null) layout.width = paperWidth;
      return layout;
    };
    const traces = (name) => {
      const made = figures[name].data.map((trace) =>
        trace.meta === "hold"
          ? { ...trace, line: { ...trace.line, color: colour("ink") }, marker: { ...trace.marker, color: colour("ink") } }
          : trace);
      if (name === "ring" && data.ranges !== null) made.unshift(...rangesTraces());
      if (isTimed(name) && marks.length) made.push(marksTrace(figures[name].layout));
      return made.map((trace) => (hidden.has(`${name} ${trace.name}`) ? { ...trace, visible: "legendonly" } : trace));
    };

    // The ranges of the shown time and hashes: exact where few edges lie, else each cell has the owner in its middle.
    const edges = (values, [from, until], most) => {
      const inside = [...new Set([from, ...values.filter((value) => value > from && value < until), until])];
      if (inside.length <= most) return inside.sort((a, b) => a - b);
      return Array.from({ length: most + 1 }, (_, at) => from + ((until - from) * at) / most);
    };
    const rangesTraces = () => {
      const { owner, from, until, low, high, times, labels, colours } = data.ranges;
      const all = [Math.min(...low), low.reduce((most, value, at) => Math.max(most, high[at]), 0)];
      const [bottom, top] = hashes ?? all;
      const rows = owner.map((_, at) => at).filter((at) =>
        times[until[at]] > shown[0] && times[from[at]] < shown[1] && high[at] > bottom && low[at] < top);
      const xs = edges(rows.flatMap((at) => [times[from[at]], times[until[at]]]), shown, 300);
      const ys = edges(rows.flatMap((at) => [low[at], high[at]]), [bottom, top], 400);
      const middles = (of) => of.slice(1).map((value, at) => (value + of[at]) / 2);
      const [columns, lines] = [middles(xs), middles(ys)];
      const first = (of, value) => {
        let [begin, end] = [0, of.length];
        while (begin < end) {
          const middle = (begin + end) >> 1;
          if (of[middle] < value) begin = middle + 1; else end = middle;
        }
        return begin;
      };
      const z = lines.map(() => new Array(columns.length).fill(null));
      const text = lines.map(() => new Array(columns.length).fill(""));
      for (const at of rows) {
        const words = `${labels[owner[at]]}<br>hashes ${low[at]} to ${high[at] - 1}<br>` +
          between([times[from[at]], times[until[at]]]);
        const [begin, end] = [first(columns, times[from[at]]), first(columns, times[until[at]])];
        for (let line = first(lines, low[at]); line < first(lines, high[at]); line++) {
          z[line].fill(owner[at], begin, end);
          text[line].fill(words, begin, end);
        }
      }
      const steps = colours.flatMap((shade, at) => [[at / colours.length, shade], [(at + 1) / colours.length, shade]]);
      const legend = labels.slice(0, 30).map((label, at) => ({
        type: "scatter", mode: "markers", x: [null], y: [null], name: label,
        marker: { symbol: "square", size: 10, color: colours[at] }, hoverinfo: "skip",
      }));
      const map = {
        type: "heatmap", x: xs, y: ys, z, customdata: text, hovertemplate: "%{customdata}<extra></extra>",
        zmin: 0, zmax: colours.length, colorscale: steps, showscale: false, zsmooth: false,
      };
      // A value in the middle of its step of the scale.
      map.z = z.map((line) => line.map((value) => (value === null ? null : value + 0.5)));
      return [map, ...legend];
    };

    const draw = (name) => {
      const plot = plotOf(name);
      if (plot.closest("details:not([open])")) return;
      Plotly.react(plot, traces(name), laidOut(name), settings);
      if (drawn.has(name)) return;
      drawn.add(name);
      plot.on("plotly_afterplot", () => offer(name));
      plot.on("plotly_legendclick", ({ curveNumber }) => {
        switchTrace(name, plot.data[curveNumber].name);
        return false;
      });
      offer(name);
      if (!isTimed(name)) return;
      plot.tabIndex = 0;
      plot.on("plotly_relayout", (change) => moved(name, change));
      plot.on("plotly_doubleclick", () => {
        if (name === "ring") hashes = null;
        show(...data.view);
      });
      plot.on("plotly_click", ({ points }) => {
        const point = points.find((each) => each.data.meta === "findings");
        if (point) onMark(marks[point.pointNumber]);
      });
    };
    const drawAll = () => {
      marks = bins();
      for (const name of Object.keys(figures)) draw(name);
    };

    const msOf = (value) => (typeof value === "number" ? value : Date.parse(`${value.replace(" ", "T")}Z`));
    const show = (from, until) => {
      const [first, last] = data.view;
      const width = Math.min(Math.max(until - from, 0.05), last - first);
      const begin = Math.min(Math.max(from, first), last - width);
      shown = [begin, begin + width];
      const words = width < 1000 ? `${width.toPrecision(3)} ms` : `${(width / 1000).toFixed(2)} s`;
      byId("window").textContent = width >= last - first ? "" : `${between(shown)} (${words})`;
      marks = bins();
      for (const name of drawn) if (isTimed(name)) draw(name);
    };
    const showHashes = (low, high) => {
      const all = [Math.min(...data.ranges.low), data.ranges.high.reduce((a, b) => Math.max(a, b), 0)];
      const width = Math.min(Math.max(high - low, 2), all[1] - all[0]);
      const begin = Math.min(Math.max(low, all[0]), all[1] - width);
      hashes = [begin, begin + width];
      draw("ring");
    };
    let isFollowing = false;
    const moved = (name, change) => {
      const keys = Object.keys(change);
      const along = (axis) => keys.some((key) => new RegExp(`^${axis}axis\\d*\\.(range|autorange)`).test(key));
      if (isFollowing || !(along("x") || along("y"))) return;
      isFollowing = true;
      const { xaxis, yaxis } = plotOf(name).layout;
      if (name === "ring" && data.ranges !== null && along("y")) showHashes(...yaxis.range);
      if (along("x")) {
        const isReset = keys.some((key) => key.endsWith("autorange"));
        show(...(isReset ? data.view : xaxis.range.map(msOf)));
      }
      isFollowing = false;
    };
    const actions = {
      in: (from, until) => [from + (until - from) / 4, until - (until - from) / 4],
      out: (from, until) => [from - (until - from) / 2, until + (until - from) / 2],
      earlier: (from, until) => [from - (until - from) / 4, until - (until - from) / 4],
      later: (from, until) => [from + (until - from) / 4, until + (until - from) / 4],
      all: () => data.view,
    };
    const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all", Home: "all" };

    const switchTrace = (name, trace) => {
      const key = `${name} ${trace}`;
      if (!hidden.delete(key)) hidden.add(key);
      draw(name);
    };
    // Tab leads to the first of some parts of a picture, arrows to the others, Enter does what a click does.
    const reachable = (parts, labelOf, act) => {
      parts.forEach((part, at) => {
        part.setAttribute("tabindex", at ? "-1" : "0");
        part.setAttribute("role", "button");
        part.setAttribute("aria-label", labelOf(part, at));
        part.onkeydown = (event) => {
          const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (step) parts[(at + step + parts.length) % parts.length].focus();
          else if (event.key === "Enter" || event.key === " ") act(part, at);
          else return;
          event.preventDefault();
          event.stopPropagation();
        };
      });
    };
    const offer = (name) => {
      const plot = plotOf(name);
      const traceOf = (item) => item.__data__[0].trace;
      const items = [...plot.querySelectorAll(".legend .traces")];
      reachable(items, (item) => `${traceOf(item).name}: show or hide`, (item, at) => {
        switchTrace(name, traceOf(item).name);
        plot.querySelectorAll(".legend .traces")[at].focus();
      });
      items.forEach((item) => item.setAttribute("aria-pressed", String(traceOf(item).visible === true)));
      if (!isTimed(name)) return;
      const last = lastAxis(figures[name].layout);
      const points = [...plot.querySelectorAll(`.x${last > 1 ? last : ""}y9 .scatterlayer .point`)];
      const markOf = (point, at) => marks[point.__data__?.i ?? at];
      reachable(
        points.filter((point, at) => markOf(point, at)),
        (point, at) => `${markOf(point, at).text}, ${between(markOf(point, at).when)}: list them`,
        (point, at) => onMark(markOf(point, at)),
      );
    };

    const start = () => {
      drawAll();
      const isAnyTimed = Object.keys(figures).some(isTimed);
      if (isAnyTimed) byId("time-tools").hidden = false;
      for (const button of document.querySelectorAll("[data-time]")) {
        button.addEventListener("click", () => show(...actions[button.dataset.time](...shown)));
      }
      for (const button of document.querySelectorAll("[data-hash]")) {
        const all = [0, Infinity];
        button.addEventListener("click", () => {
          const now = hashes ?? plotOf("ring").layout.yaxis.range;
          showHashes(...(button.dataset.hash === "all" ? all : actions[button.dataset.hash](...now)));
        });
      }
      for (const name of Object.keys(figures).filter(isTimed)) {
        plotOf(name).addEventListener("keydown", (event) => {
          if (event.target !== plotOf(name) || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
          event.preventDefault();
          show(...actions[KEYS[event.key]](...shown));
        });
        plotOf(name).closest("details")?.addEventListener("toggle", () => draw(name));
      }
      for (const button of document.querySelectorAll(".save")) {
        button.addEventListener("click", () => {
          Plotly.downloadImage(plotOf(button.dataset.picture), { format: "png", filename: button.dataset.picture, scale: 2 });
        });
      }
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
      let wasNarrow = isNarrow();
      addEventListener("resize", () => {
        if (isNarrow() !== wasNarrow) {
          wasNarrow = isNarrow();
          drawAll();
        }
      });
      // On paper: light colours, and the width of a page.
      const print = (width) => {
        paperWidth = width;
        document.documentElement.toggleAttribute("data-print", width !== null);
        drawAll();
      };
      addEventListener("beforeprint", () => print(640));
      addEventListener("afterprint", () => print(null));
    };
    const fail = () => {
      for (const name of Object.keys(figures)) {
        plotOf(name).textContent =
          `No picture: the file ${data.library} is not where it was beside this page. ` +
          "dispatch-audit report --self-contained makes a page that needs no other file.";
      }
      for (const button of document.querySelectorAll(".save, .hash")) button.hidden = true;
    };
    if (data.library === null) {
      start();
    } else {
      const script = document.createElement("script");
      script.src = data.library;
      script.onload = start;
      script.onerror = fail;
      document.head.append(script);
    }

    return {
      // A line in all pictures at the time of a finding.
      locate: (ms) => {
        chosen = ms;
        if (ms < shown[0] || ms > shown[1]) show(...data.view);
        else for (const name of drawn) if (isTimed(name)) draw(name);
        const plot = document.querySelector("#timed .plot");
        plot.closest("section").scrollIntoView();
        plot.focus({ preventScroll: true });
      },
      canLocate: (ms) => ms !== null && ms >= data.view[0] && ms <= data.view[1] && Object.keys(figures).some(isTimed),
      onMark: (handler) => { onMark = handler; },
    };
  })();

  const list = byId("findings");
  if (!list) return;
  const STEP = 10;
  const { findings, causes } = data;
  const search = byId("search");
  const kind = byId("kind");
  const more = byId("more");
  const anyTime = byId("any-time");
  let when = null; // only findings of this time, milliseconds

  const evidence = (items, left) => items.join(", ") + (left ? `, and ${left} more` : "");
  const body = (finding) => {
    const made = document.createDocumentFragment();
    // The sentence of a cause of one finding is the finding's explanation.
    if (causes[finding.cause].count > 1) made.append(element("p", finding.explanation, "explanation"));
    const facts = element("dl", null, "lines");
    const add = (name, value) => {
      if (value !== null && value !== "") facts.append(element("dt", name), element("dd", value));
    };
    add("what it means", Object.hasOwn(data.meanings, finding.kind) ? data.meanings[finding.kind] : null);
    add("why", finding.why);
    add("when", finding.at);
    add("key", finding.key === null ? null : finding.key + (finding.key_b64 ? " (base64)" : ""));
    add("hash", finding.hash);
    add("consumers", evidence(finding.consumers, 0));
    add("positions", evidence(finding.positions, finding.more_positions));
    add("proved by lines (seq)", evidence(finding.seqs, finding.more_seqs));
    made.append(facts);
    if (pictures.canLocate(finding.t_ms)) {
      const button = element("button", "Show in the pictures", "locate");
      button.type = "button";
      button.addEventListener("click", () => pictures.locate(finding.t_ms));
      made.append(button);
    }
    return made;
  };
  // The contents are made when they are opened for the first time.
  const opened = (details, fill) => {
    let isFilled = false;
    const open = () => {
      if (details.open && !isFilled) {
        isFilled = true;
        fill();
      }
    };
    details.addEventListener("toggle", open);
    details.expand = () => {
      details.open = true;
      open();
    };
  };
  const row = (at) => {
    const finding = findings[at];
    const line = element("li");
    line.id = `finding-${at}`;
    const details = element("details", null, "finding");
    const summary = element("summary");
    summary.append(element("span", finding.at.slice(11), "when"), " ", element("b", finding.kind), " ");
    if (finding.key !== null) summary.append(element("span", finding.key, "key"), " ");
    const text = finding.explanation;
    summary.append(element("span", text.length > 110 ? `${text.slice(0, 110)}…` : text, "dim short"));
    details.append(summary);
    opened(details, () => details.append(body(finding)));
    line.append(details);
    return line;
  };
  const headline = (cause, worst) => {
    const summary = element("summary");
    const grade = cause.severity + (cause.uncertain ? ", uncertain" : "");
    summary.append(element("span", grade, `word ${severityOf(cause)}`), " ");
    summary.append(element("span", cause.count > 1 ? `${cause.count} findings` : worst.kind, "dim"), " ");
    summary.append(element("span", cause.sentence, "sentence"));
    return summary;
  };
  const group = (at, rows) => {
    const cause = causes[at];
    const line = element("li", null, "cause");
    const details = element("details");
    details.append(headline(cause, findings[rows[0]]));
    line.append(details);
    if (cause.count === 1) {
      line.id = `finding-${rows[0]}`;
      details.classList.add("finding");
      opened(details, () => details.append(body(findings[rows[0]])));
      return line;
    }
    let count = 0;
    const inner = element("ol", null, "plain rows");
    const next = element("button", null, "next");
    next.type = "button";
    const extend = (most) => {
      for (const each of rows.slice(count, most)) inner.append(row(each));
      count = Math.min(most, rows.length);
      next.hidden = count >= rows.length;
      next.textContent = `Show ${Math.min(STEP, rows.length - count)} more (${count} of ${rows.length})`;
    };
    next.addEventListener("click", () => {
      const before = count;
      extend(count + STEP);
      inner.children[before].querySelector("summary").focus();
    });
    line.extendTo = (finding) => extend(Math.max(count, rows.indexOf(finding) + 1));
    opened(details, () => {
      details.append(inner, next);
      extend(STEP);
    });
    return line;
  };

  const words = (finding) =>
    [finding.kind, finding.severity, finding.uncertain ? "uncertain" : "", finding.key, finding.hash, finding.why,
      finding.at, finding.explanation, ...finding.consumers, ...finding.positions].join("\n").toLowerCase();
  const texts = findings.map(words);
  let matching = []; // [index of the cause, indexes of its findings]
  let count = 0;

  const extend = (most) => {
    for (const [at, rows] of matching.slice(count, most)) list.append(group(at, rows));
    count = Math.min(most, matching.length);
    more.hidden = count >= matching.length;
    more.textContent = `Show more causes (${count} of ${matching.length})`;
  };
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Map();
    let left = 0;
    findings.forEach((finding, at) => {
      if (kind.value && finding.kind !== kind.value) return;
      if (when !== null && !(finding.t_ms >= when[0] && finding.t_ms <= when[1])) return;
      if (!wanted.every((word) => texts[at].includes(word))) return;
      left += 1;
      if (!found.has(finding.cause)) found.set(finding.cause, []);
      found.get(finding.cause).push(at);
    });
    matching = [...found.entries()];
    count = 0;
    list.replaceChildren();
    extend(STEP);
    list.querySelector("details")?.expand();
    anyTime.hidden = when === null;
    anyTime.textContent = when === null ? "" : `Only ${between(when)}: show all times`;
    const of = left === findings.length ? `${left}` : `${left} of ${findings.length}`;
    byId("shown").textContent = `${of} ${findings.length === 1 ? "finding" : "findings"}, ` +
      `${matching.length} ${matching.length === 1 ? "cause" : "causes"}`;
  };
  const reveal = (at) => {
    const place = matching.findIndex(([, rows]) => rows.includes(at));
    if (place < 0) return;
    extend(Math.max(count, place + 1));
    const line = list.children[place];
    line.querySelector("details").expand();
    line.extendTo?.(at);
    const details = byId(`finding-${at}`).querySelector("details");
    details.expand();
    details.querySelector("summary").focus();
    details.scrollIntoView({ block: "center" });
  };
  const follow = () => {
    const named = /^#finding-(\d+)$/.exec(location.hash);
    if (!named || !findings[Number(named[1])]) return;
    search.value = kind.value = "";
    when = null;
    filter();
    reveal(Number(named[1]));
  };
  search.addEventListener("input", filter);
  kind.addEventListener("change", filter);
  more.addEventListener("click", () => {
    const before = count;
    extend(count + STEP);
    list.children[before].querySelector("summary").focus();
  });
  anyTime.addEventListener("click", () => {
    when = null;
    filter();
    search.focus();
  });
  pictures.onMark((mark) => {
    search.value = kind.value = "";
    when = mark.when;
    filter();
    reveal(matching[0][1][0]);
  });
  addEventListener("hashchange", follow);
  filter();
  // The browser takes the focus away when it goes to the address of a loaded page.
  addEventListener("load", () => setTimeout(follow));
})();
