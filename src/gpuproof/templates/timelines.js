"use strict";
// Makes the timelines of a page zoomable with uPlot. Their data are one block of JSON; without this script, and on
// paper, the page shows the same as SVG. Nothing is loaded, and no number is made but by scaling to the screen.
(() => {
  const PREFIXES = {
    s: [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
    B: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  };
  const pictures = JSON.parse(document.getElementById("timelines").textContent);

  function element(name, attributes, ...inside) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }

  // The unit in which a value of that size is read, and what it is in the unit of the data.
  function prefix(size, unit) {
    const known = unit === "s" && size < 180 ? PREFIXES.s.slice(2) : PREFIXES[unit] || [[1, unit]];
    return size === 0 ? [1, unit] : known.find(([least]) => size >= least) || known.at(-1);
  }

  function written(value, [factor, name], digits = 4) {
    return `${Number((value / factor).toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 9 })} ${name}`.trim();
  }

  function figure(value, unit, digits = 4) {
    return value === null || value === undefined ? "–" : written(value, prefix(Math.abs(value), unit), digits);
  }

  // Ticks of one axis share a unit.
  function ticks(values, unit) {
    const largest = Math.max(...values.filter((value) => value !== null).map(Math.abs));
    return values.map((value) => (value === null ? "" : written(value, prefix(largest, unit), 6)));
  }

  function logarithmicSplits(low, high) {
    const splits = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const part of [1, 2, 5]) {
        const at = part * 10 ** power;
        if (at >= low * 0.999 && at <= high * 1.001) splits.push(at);
      }
    }
    return splits;
  }

  const DURATIONS = [
    ...Array.from({ length: 24 }, (_, place) => [1, 2, 5][place % 3] * 10 ** (Math.floor(place / 3) - 6)).filter((one) => one < 60),
    ...[60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 72000, 180000, 360000],
  ];
  const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

  // Columns of uPlot share one x: a time that stands twice in a series, a gap and the reading behind it, is moved on.
  function column(series, name) {
    const x = [], y = [];
    series.x.forEach((at, place) => {
      const before = x.length ? x[x.length - 1] : -Infinity;
      x.push(at > before ? at : before + Math.max(1e-9, Math.abs(before) * 1e-12));
      y.push(series[name][place]);
    });
    return [x, y];
  }

  const colourIn = (root, name) => (name.startsWith("#") ? name : getComputedStyle(root).getPropertyValue(`--${name}`).trim());
  const faint = (colour, share) => `color-mix(in srgb, ${colour} ${share * 100}%, transparent)`;

  class Timeline {
    constructor(place, picture, number) {
      this.place = place;
      this.root = element("div", { class: "over-time chart" });
      this.plots = [];
      this.isZooming = false;
      const ends = picture.charts.flatMap((chart) => (chart.x.reach.length ? chart.x.reach : chart.series.flatMap((one) => one.x)));
      this.whole = [Math.min(...ends), Math.max(...ends)];
      this.at = element("output", { "aria-live": "polite" });
      this.root.append(this.bar());
      place.append(this.root);
      const last = picture.charts.length - 1;
      picture.charts.forEach((chart, row) => this.draw(chart, `timeline-${number}`, row === 0, row === last));
      place.classList.add("live");
      this.zoom(...this.whole);
      new ResizeObserver(() => this.resize()).observe(this.root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plots.forEach((plot) => plot.redraw(false, true)));
    }

    bar() {
      const actions = {
        "Zoom in": () => this.scale(0.5),
        "Zoom out": () => this.scale(2),
        Earlier: () => this.move(-0.25),
        Later: () => this.move(0.25),
        Whole: () => this.zoom(...this.whole),
      };
      const bar = element("div", { class: "zoom", role: "group", "aria-label": "Part of the time that is shown" });
      for (const [name, act] of Object.entries(actions)) {
        const button = element("button", { type: "button" }, name);
        button.addEventListener("click", act);
        bar.append(button);
      }
      bar.append(this.at);
      return bar;
    }

    draw(chart, key, isFirst, isLast) {
      const hasNames = chart.y.names.length > 0;
      const tables = [], series = [{}], bands = [], names = new Map();
      const add = (one, name, options) => {
        tables.push(column(one, name));
        series.push({ label: one.name, ...options });
        names.set(one.name, [...(names.get(one.name) || []), series.length - 1]);
      };
      const paint = (one) => () => colourIn(this.root, one.colour);
      for (const one of chart.series) {
        if (one.form === "range" || !one.x.length) continue;
        if (one.form === "band") {
          add(one, "low", { points: { show: false }, width: 0, isEdge: true });
          add(one, "high", { points: { show: false }, width: 0, isEdge: true });
          bands.push({ series: [series.length - 1, series.length - 2], fill: () => faint(colourIn(this.root, one.colour), 0.2) });
        } else {
          const isMark = one.form === "points" || one.form === "tick";
          add(one, "y", {
            stroke: paint(one),
            width: 1.4,
            dash: one.form === "dashed" ? [7, 3] : undefined,
            paths: isMark ? () => null : one.form === "step" ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: isMark ? { show: true, size: 8, fill: paint(one) } : { size: 4, fill: paint(one) },
          });
        }
      }
      const data = tables.length ? uPlot.join(tables.map(([x, y]) => [x, y])) : [[...this.whole], [null, null]];
      if (!tables.length) series.push({});
      const ink = () => colourIn(this.root, "axis");
      const grid = { stroke: () => colourIn(this.root, "grid"), width: 1 };
      const axisFont = '12px system-ui, "DejaVu Sans", sans-serif';
      const options = {
        width: 300,
        height: (hasNames ? 12 + 22 * chart.y.names.length : 120) + (isFirst ? 14 : 0) + (isLast ? 30 : 0),
        padding: [isFirst ? 18 : 6, 16, isLast ? 0 : 6, 0],
        legend: { show: false },
        cursor: { sync: { key }, drag: { x: true, y: false }, points: { size: 6 } },
        scales: {
          x: { time: false, range: (plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
          y: hasNames
            ? { dir: -1, range: [-0.6, chart.y.names.length - 0.4] }
            : chart.y.is_logarithmic
              ? { distr: 3, range: (plot, low, high) => (low > 0 ? [low / 1.1, high * 1.1] : [0.1, 1]) }
              : { range: (plot, low, high) => this.ends(chart, low, high) },
        },
        series,
        bands,
        axes: [
          {
            stroke: ink,
            grid,
            ticks: { ...grid, show: isLast },
            font: axisFont,
            size: isLast ? 34 : 0,
            space: 64,
            incrs: DURATIONS,
            values: (plot, at) => (isLast ? ticks(at, "s") : at.map(() => "")),
          },
          {
            stroke: ink,
            grid,
            ticks: grid,
            font: axisFont,
            size: 84,
            incrs: chart.y.unit === "B" ? BINARY : undefined,
            splits: hasNames
              ? () => chart.y.names.map((_, row) => row)
              : chart.y.is_logarithmic
                ? (plot, axis, low, high) => logarithmicSplits(low, high)
                : undefined,
            filter: (plot, at) => at,
            values: (plot, at) => (hasNames ? at.map((row) => this.short(chart.y.names[row])) : ticks(at, chart.y.unit)),
          },
        ],
        hooks: {
          drawClear: [(plot) => this.shade(plot, chart, isFirst)],
          draw: [(plot) => this.mark(plot, chart, paint)],
          setScale: [(plot, scale) => scale === "x" && this.follow(plot)],
          setCursor: [(plot) => this.read(plot)],
        },
      };
      const label = `${chart.y.label}${chart.y.unit ? ` (${chart.y.unit})` : ""}`;
      const head = element("div", { class: "names-of" }, element("strong", {}, chart.y.label));
      const body = element("div", { class: "plot", role: "img", "aria-label": `${label} over time` });
      this.root.append(head, body);
      const plot = new uPlot(options, data, body);
      plot.body = body;
      plot.shown = [];
      plot.unit = chart.y.unit;
      for (const one of chart.series.filter((each) => each.form === "range")) names.set(one.name, []);
      for (const [name, places] of names) this.button(head, plot, name, places, chart.series.find((one) => one.name === name));
      this.plots.push(plot);
    }

    short(name) {
      return name.length > 12 ? `${name.slice(0, 11)}…` : name;
    }

    button(head, plot, name, places, one) {
      const swatch = element("i", {});
      const value = element("output", {});
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatch, name, value);
      const colour = () => { swatch.style.background = colourIn(this.root, one.colour); };
      colour();
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
      plot.hidden = plot.hidden || new Set();
      button.addEventListener("click", () => {
        const shows = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shows));
        if (shows) plot.hidden.delete(name); else plot.hidden.add(name);
        places.forEach((place) => plot.setSeries(place, { show: shows }));
        plot.redraw(false, false);
      });
      const line = places.filter((place) => !plot.series[place].isEdge)[0];
      if (line) plot.shown.push([line, value]);
      head.append(button);
    }

    ends(chart, low, high) {
      const reach = chart.y.reach.filter(Number.isFinite);
      const named = chart.references.filter((line) => line.label && line.x === null).map((line) => line.y);
      const bounds = [low, high, ...reach, ...named].filter((value) => value !== null && Number.isFinite(value));
      if (!bounds.length) return [0, 1];
      const [from, to] = [Math.min(...bounds), Math.max(...bounds)];
      const more = (to - from || Math.abs(to) || 1) * 0.06;
      return [from === 0 ? 0 : from - more, to + more];
    }

    shade(plot, chart, isFirst) {
      const { ctx } = plot;
      const { left, top, width, height } = plot.bbox;
      const ratio = devicePixelRatio;
      ctx.save();
      ctx.font = `${11 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
      ctx.textAlign = "center";
      const named = chart.shades.filter((one) => !one.colour);
      const order = [...new Set(named.map((one) => one.name))];
      const touch = named.some((one, place) => place && one.begin <= named[place - 1].end);
      for (const one of chart.shades) {
        const from = Math.max(left, plot.valToPos(one.begin, "x", true));
        const to = Math.min(left + width, plot.valToPos(one.end, "x", true));
        if (to <= from) continue;
        if (one.colour || !touch || order.indexOf(one.name) % 2 === 0) {
          ctx.fillStyle = one.colour ? faint(one.colour, 0.25) : colourIn(this.root, "shade");
          ctx.fillRect(from, top, Math.max(1, to - from), height);
        }
        const name = isFirst && !one.colour ? [one.name, one.name.split(" ").at(-1)].find((text) => ctx.measureText(text).width < to - from) : "";
        if (name) {
          ctx.fillStyle = colourIn(this.root, "axis");
          ctx.fillText(name, (from + to) / 2, top - 5 * ratio);
        }
      }
      ctx.restore();
    }

    mark(plot, chart, paint) {
      const { ctx } = plot;
      const { left, top, width, height } = plot.bbox;
      const ratio = devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, width, height);
      ctx.clip();
      for (const one of chart.series.filter((each) => each.form === "range" && !(plot.hidden && plot.hidden.has(each.name)))) {
        ctx.fillStyle = paint(one)();
        one.low.forEach((low, place) => {
          const from = plot.valToPos(low, "x", true);
          const to = plot.valToPos(one.high[place], "x", true);
          ctx.fillRect(from, plot.valToPos(one.y[place], "y", true) - 7 * ratio, Math.max(ratio, to - from), 14 * ratio);
        });
      }
      ctx.strokeStyle = ctx.fillStyle = colourIn(this.root, "ink");
      ctx.font = `${11 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
      ctx.textAlign = "right";
      for (const line of chart.references) {
        const isUpright = line.x !== null;
        const at = plot.valToPos(isUpright ? line.x : line.y, isUpright ? "x" : "y", true);
        ctx.setLineDash(line.label ? [5 * ratio, 4 * ratio] : []);
        ctx.lineWidth = (line.label ? 1.2 : 0.6) * ratio;
        ctx.beginPath();
        ctx.moveTo(isUpright ? at : left, isUpright ? top : at);
        ctx.lineTo(isUpright ? at : left + width, isUpright ? top + height : at);
        ctx.stroke();
        if (line.label && !isUpright) {
          const place = [line.label, left + width - 4 * ratio, at + (at - top > 14 * ratio ? -3 : 12) * ratio];
          ctx.setLineDash([]);
          ctx.save();
          ctx.strokeStyle = colourIn(this.root, "paper");
          ctx.lineWidth = 4 * ratio;
          ctx.strokeText(...place);
          ctx.restore();
          ctx.fillText(...place);
        }
      }
      ctx.restore();
    }

    follow(plot) {
      const { min, max } = plot.scales.x;
      if (!this.isZooming && Number.isFinite(min) && Number.isFinite(max)) this.zoom(min, max);
    }

    zoom(from, to) {
      const [first, last] = this.whole;
      const least = (last - first) / 1e4 || 1e-6;
      const begin = Math.max(first, from);
      const end = Math.min(last, Math.max(to, begin + least));
      this.isZooming = true;
      this.plots.forEach((plot) => plot.setScale("x", { min: begin, max: end }));
      this.isZooming = false;
      this.place.dataset.from = begin;
      this.place.dataset.to = end;
      this.at.textContent = `${figure(begin, "s", 5)} to ${figure(end, "s", 5)}`;
    }

    scale(factor) {
      const [from, to] = [Number(this.place.dataset.from), Number(this.place.dataset.to)];
      const half = ((to - from) * factor) / 2;
      this.zoom((from + to) / 2 - half, (from + to) / 2 + half);
    }

    move(share) {
      const [from, to] = [Number(this.place.dataset.from), Number(this.place.dataset.to)];
      const by = Math.min(this.whole[1] - to, Math.max(this.whole[0] - from, (to - from) * share));
      this.zoom(from + by, to + by);
    }

    read(plot) {
      for (const [place, value] of plot.shown) {
        const data = plot.data[place];
        let at = plot.cursor.idx;
        while (at > 0 && data[at] === undefined) at -= 1;
        value.textContent = at === null || at === undefined ? "" : figure(data[at], plot.unit);
      }
    }

    resize() {
      const width = this.root.clientWidth;
      if (width && width !== this.width) {
        this.width = width;
        this.plots.forEach((plot) => plot.setSize({ width, height: plot.height }));
      }
    }
  }

  for (const place of document.querySelectorAll("figure[data-timeline]")) {
    const number = Number(place.dataset.timeline);
    new Timeline(place, pictures[number], number);
  }
})();
