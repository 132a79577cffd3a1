"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const replay = JSON.parse($("replay").textContent);
  const details = JSON.parse($("details").textContent);
  const COLOURS = ["--one", "--two", "--three", "--four", "--five", "--six"];
  // Lines differ by dash and by point, so that they are told apart without colour.
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 4]];
  const POINTS = ["circle", "rect", "triangle", "rectRot", "cross", "star"];
  let charts = [];

  window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  function bytes(value) {
    if (value === null || value === undefined) { return "-"; }
    for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (value >= unit) { return (value / unit).toFixed(2) + " " + name; }
    }
    return value + " B";
  }
  function duration(us) {
    if (us >= 1e6) { return (us / 1e6).toFixed(us >= 1e7 ? 1 : 3) + " s"; }
    if (us >= 1e3) { return (us / 1e3).toFixed(2) + " ms"; }
    return us + " us";
  }

  function fill(table, heads, rows) {
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    for (const [name, text] of heads) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      if (text) { cell.className = "text"; }
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      line.className = row.kind || "";
      if (row.frames && row.frames.length > 0) { line.title = row.frames.join("\n"); }
      row.cells.forEach((value, i) => {
        const cell = line.insertCell();
        if (heads[i][1]) { cell.className = "text"; }
        if (value !== null && typeof value === "object") {
          cell.textContent = value.text;
          cell.dataset.value = value.value;
        } else {
          cell.textContent = value;
        }
      });
    }
  }
  const exact = (value) => ({ text: bytes(value), value });

  function showRuns(trace) {
    const ratio = (value) => (trace.peak_live_bytes > 0 ? (value / trace.peak_live_bytes).toFixed(3) : "-");
    const least = Object.fromEntries(trace.min_capacity.map((one) => [one.allocator, one]));
    const rows = trace.runs.map((run) => ({
      cells: [
        run.allocator + (run.model ? " (model)" : ""),
        exact(run.peak_reserved_bytes),
        ratio(run.peak_reserved_bytes),
        run.driver_us === null ? "-" : (run.driver_us / 1000).toFixed(1),
        run.driver_us_percent_of_trace === null ? "-" : run.driver_us_percent_of_trace.toFixed(2),
        least[run.allocator] && least[run.allocator].bytes !== null ? ratio(least[run.allocator].bytes) : "-",
        run.completed ? "completed" : run.oom ? "out of memory at event " + grouped(run.oom.event) : "failed",
      ],
    }));
    for (const [name, value, what] of [
      ["peak live", trace.peak_live_bytes, "bound of every allocator"],
      ["whole granules", trace.granule_bound_bytes, "bound of those that share no granule"],
    ]) {
      rows.push({ kind: "bound", cells: [name, exact(value), ratio(value), "-", "-", "-", what] });
    }
    const heads = [["allocator", true], ["peak reserved"], ["over peak live"], ["driver ms"], ["% of time"],
      ["min capacity"], ["outcome", true]];
    fill($("runs"), heads, rows);
  }

  function showOom(trace, more) {
    const box = $("oom");
    box.replaceChildren();
    const say = (text) => {
      const part = document.createElement("p");
      part.className = "oom";
      part.textContent = text;
      box.append(part);
    };
    for (const run of trace.runs) {
      if (run.oom) {
        say(`${run.allocator} ran out of memory at event ${grouped(run.oom.event)}: it was asked for ` +
          `${bytes(run.oom.requested_bytes)} with ${bytes(run.oom.live_bytes)} live and ` +
          `${bytes(run.oom.reserved_bytes)} reserved, ${bytes(run.oom.free_granule_bytes)} of that in free granules. ` +
          (run.oom.cause === "fragmentation" ? "Joined, what was not live would have held it."
            : "What was live and the request are more than the capacity."));
      } else if (run.error) {
        say(`${run.allocator} failed: ${run.error}`);
      }
    }
    for (const one of more.explained) {
      const share = Math.round(100 * one.explain.confidence);
      say(`Why, for ${one.allocator}: ${one.explain.cause.replaceAll("_", " ")} (${share} % sure). ` +
        [...one.explain.evidence, ...one.explain.advice].join(" "));
    }
    if (more.ranges_at_peak.length > 0) {
      say(`At the peak the program was in: ${more.ranges_at_peak.join(", ")}.`);
    }
    const shown = more.marks.slice(0, 10);
    for (const mark of shown) {
      const left = mark.free_bytes === null ? "" : `, ${bytes(mark.free_bytes)} free on the device`;
      const limit = mark.limit_bytes === null ? "" : `, refused by the job's own limit of ${bytes(mark.limit_bytes)}`;
      say(`Recorded: out of memory before event ${grouped(mark.event)} (${duration(mark.time_us)}), ` +
        `${bytes(mark.requested_bytes)} requested${limit}${left}.`);
    }
    if (more.marks.length > shown.length) {
      const rest = more.marks.length - shown.length;
      say(`Recorded: ${grouped(rest)} more ${rest === 1 ? "refusal" : "refusals"} after these ` +
        `${shown.length}, ${grouped(more.marks.length)} in all.`);
    }
    if (shown.length > 0) {
      say("What was refused when this was recorded is not in the numbers above: no run is asked for it.");
    }
  }

  function showTables(more) {
    const by = more.by === "call site" ? "call site" : "size";
    $("grouptitle").textContent = `What is live at the peak, by ${by}`;
    const groups = more.groups.map((group) => ({
      cells: [group.name, exact(group.bytes_at_peak), grouped(group.blocks_at_peak), bytes(group.largest),
        grouped(group.allocations)],
      frames: group.frames,
    }));
    fill($("groups"), [[by, true], ["bytes at peak"], ["blocks at peak"], ["largest"], ["allocations"]], groups);
    const heads = [["block"], ["size"], ["lives"], ["from"], ["to"], ["stream"], ["call site", true]];
    for (const [id, list] of [["biggest", more.biggest], ["longest", more.longest]]) {
      fill($(id), heads, list.map((block) => ({
        cells: [block.id, exact(block.bytes), duration(block.to_us - block.from_us), duration(block.from_us),
          block.freed ? duration(block.to_us) : "the end", block.stream, block.site || "-"],
        frames: block.frames,
      })));
    }
  }

  function lineOptions(title, format) {
    const ink = colour("--ink"), line = colour("--line");
    return {
      animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: { type: "linear", title: { display: true, text: "seconds", color: ink }, ticks: { color: ink }, grid: { color: line } },
        y: { min: 0, title: { display: true, text: title, color: ink }, ticks: { color: ink, callback: format }, grid: { color: line } },
      },
      plugins: {
        legend: { labels: { color: ink, usePointStyle: false } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}`, title: (items) => items.length ? items[0].parsed.x.toFixed(6) + " s" : "" } },
      },
    };
  }
  function series(label, points, i, name) {
    const tint = colour(name || COLOURS[i % COLOURS.length]);
    const sparse = Math.max(1, Math.floor(points.length / 12));
    return {
      label, data: points, borderColor: tint, backgroundColor: tint, borderWidth: 2, stepped: "after",
      borderDash: DASHES[i % DASHES.length], pointStyle: POINTS[i % POINTS.length],
      pointRadius: (context) => ((context.dataIndex + i) % sparse === 0 ? 4 : 0),
    };
  }
  function points(times, values) {
    return times.map((time, i) => ({ x: time / 1e6, y: values[i] }));
  }

  function drawLines(more) {
    const live = series("live", points(more.live.time_us, more.live.highest), 0, "--live");
    live.fill = true;
    live.borderDash = [];
    live.pointRadius = 0;
    live.backgroundColor = colour("--live") + "33";
    const memory = [live];
    const waste = [];
    more.runs.forEach((run, i) => {
      memory.push(series(run.allocator + ", reserved", points(run.time_us, run.reserved), i));
      if (run.pending.some((value) => value > 0)) {
        memory.push(series(run.allocator + ", pending", points(run.time_us, run.pending), i + 3));
      }
      const share = run.reserved.map((value, k) => {
        const needed = Math.min(more.live.last[Math.min(k, more.live.last.length - 1)], value);
        return value > 0 ? (100 * (value - needed)) / value : 0;
      });
      waste.push(series(run.allocator, points(run.time_us, share), i));
    });
    charts.push(new Chart($("memory"), { type: "line", data: { datasets: memory }, options: lineOptions("memory", bytes) }));
    charts.push(new Chart($("waste"), { type: "line", data: { datasets: waste }, options: lineOptions("% of reserved", (v) => v.toFixed(1) + " %") }));
  }

  function drawBars(id, bins, label) {
    const ink = colour("--ink"), line = colour("--line");
    const options = {
      animation: false, responsive: true, maintainAspectRatio: false,
      scales: {
        x: { ticks: { color: ink }, grid: { color: line } },
        y: { type: "logarithmic", title: { display: true, text: "blocks", color: ink }, ticks: { color: ink }, grid: { color: line } },
      },
      plugins: {
        legend: { display: false },
        tooltip: { callbacks: { label: (item) => `${grouped(bins[item.dataIndex].blocks)} blocks, ${bytes(bins[item.dataIndex].bytes)}` } },
      },
    };
    const data = { labels: bins.map(label), datasets: [{ label: "blocks", data: bins.map((bin) => bin.blocks), backgroundColor: colour("--one") }] };
    charts.push(new Chart($(id), { type: "bar", data, options }));
  }

  const COLUMNS = 128;
  let map = null, levels = null;
  function cellAddress(cell) {
    for (const area of map.areas) {
      if (cell < area.cells) { return area.address + cell * map.cell_bytes; }
      cell -= area.cells;
    }
    return 0;
  }
  function drawMoment() {
    const moment = map.moments[Number($("moment").value)];
    levels = Uint8Array.from(atob(moment.levels), (c) => c.charCodeAt(0));
    const canvas = $("map");
    const rows = Math.ceil(levels.length / COLUMNS);
    const size = 8;
    canvas.width = COLUMNS * size;
    canvas.height = Math.max(1, rows) * size;
    const context = canvas.getContext("2d");
    context.fillStyle = colour("--paper");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = colour("--full");
    // Full cells are filled, others have as high a bar as they are full: form, not colour, tells.
    levels.forEach((level, i) => {
      if (level > 0) {
        const height = Math.max(1, Math.round((size - 1) * level / 255));
        context.fillRect((i % COLUMNS) * size, Math.floor(i / COLUMNS) * size + (size - 1 - height), size - 1, height);
      }
    });
    const now = $("now");
    now.dataset.live = moment.live_bytes;
    now.dataset.blocks = moment.blocks;
    now.dataset.events = moment.events;
    now.textContent = `After ${grouped(moment.events)} events, at ${duration(moment.time_us)}: ` +
      `${bytes(moment.live_bytes)} live in ${grouped(moment.blocks)} blocks${moment.is_peak ? " (the peak)" : ""}.`;
  }
  function showMap(more) {
    map = more.map;
    $("mapped").hidden = map === null;
    if (map === null) { return; }
    const cells = map.areas.reduce((sum, area) => sum + area.cells, 0);
    $("mapabout").textContent = `Where ${map.allocator} puts blocks: ${grouped(cells)} cells of ${bytes(map.cell_bytes)} ` +
      `in ${grouped(map.areas.length)} areas, left to right, top to bottom. The higher a cell is filled, the fuller it is; ` +
      "addresses that were never used are left out.";
    const slider = $("moment");
    slider.max = map.moments.length - 1;
    const peak = map.moments.findIndex((moment) => moment.is_peak);
    slider.value = peak >= 0 ? peak : map.moments.length - 1;
    $("peak").disabled = peak < 0;
    $("peak").onclick = () => { slider.value = peak; slider.dispatchEvent(new Event("input")); };
    drawMoment();
  }
  $("moment").addEventListener("input", drawMoment);
  $("map").addEventListener("mousemove", (event) => {
    const box = $("map").getBoundingClientRect();
    const rows = Math.ceil(levels.length / COLUMNS);
    const column = Math.floor(((event.clientX - box.left) / box.width) * COLUMNS);
    const cell = Math.floor(((event.clientY - box.top) / box.height) * rows) * COLUMNS + column;
    if (cell >= 0 && cell < levels.length) {
      const address = cellAddress(cell);
      $("cell").textContent = `0x${address.toString(16)} to 0x${(address + map.cell_bytes).toString(16)}: ` +
        `${Math.round((100 * levels[cell]) / 255)} % in use`;
    }
  });

  let shown = 0;
  function show(number) {
    shown = number;
    const trace = replay.traces[number], more = details[number];
    charts.forEach((chart) => chart.destroy());
    charts = [];
    const device = trace.runs.length > 0 ? trace.runs[0].device : "";
    const limit = trace.runs.length > 0 && trace.runs[0].capacity_bytes !== null ? ` with ${bytes(trace.runs[0].capacity_bytes)}` : "";
    $("about").textContent = `${trace.path} (${trace.format}): ${grouped(trace.events)} events, ` +
      `${grouped(trace.streams)} streams, ${duration(trace.duration_us)}; peak live ${bytes(trace.peak_live_bytes)}, ` +
      `${bytes(trace.live_at_end_bytes)} live at the end; replayed on ${device}${limit}.`;
    $("warnings").replaceChildren(...(trace.warnings || []).map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }));
    showRuns(trace);
    showOom(trace, more);
    showTables(more);
    drawLines(more);
    drawBars("sizes", more.sizes, (bin) => bytes(bin.from));
    drawBars("lifetimes", more.lifetimes_us, (bin) => duration(bin.from));
    showMap(more);
  }

  // "#moment=17": a link to one picture of the address map.
  function follow() {
    const wanted = /moment=(\d+)/.exec(location.hash);
    if (wanted && map !== null) {
      $("moment").value = wanted[1];
      $("moment").dispatchEvent(new Event("input"));
    }
  }

  $("version").textContent = replay.nofrag_version;
  const select = $("trace");
  replay.traces.forEach((trace, i) => {
    const name = trace.path + (trace.trace_device === undefined ? "" : `, ${trace.trace_device_name || "device " + trace.trace_device}`);
    select.add(new Option(name, i));
  });
  $("choose").hidden = replay.traces.length < 2;
  select.addEventListener("change", () => show(Number(select.value)));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(shown));
  window.addEventListener("hashchange", follow);
  show(0);
  follow();
  document.body.dataset.ready = "yes";
})();
