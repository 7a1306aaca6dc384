// Plots as plain SVG: lines over the last five minutes, and sparklines.

const NS = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `value`. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999999);
}

/** A path through points; a missing value starts a new line. */
function path(points) {
  let text = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) { pen = "M"; continue; }
    text += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  return text;
}

/**
 * A plot of `lines` over `seconds`, each with a class and the name of a value of a point. `output` describes the point at
 * the pointer, or at the cursor that the arrow keys move.
 */
export class Plot {
  constructor(element, output, { seconds, lines, format, describe, empty = "no requests in the last minute" }) {
    Object.assign(this, { element, output, seconds, lines, format, describe, empty, points: [], at: null });
    element.addEventListener("pointermove", (event) => this.point(event.offsetX));
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("blur", () => this.leave());
    element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!step || !this.points.length) return;
      event.preventDefault();
      const last = this.points.length - 1;
      this.at = Math.min(last, Math.max(0, (this.at ?? last) + step));
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(element);
  }

  set(points) {
    // The cursor stays at its time.
    const shown = this.at === null ? null : this.points[this.at]?.time;
    this.points = points;
    this.at = shown === null ? null : points.findIndex((point) => point.time === shown);
    if (this.at === -1) this.at = null;
    this.draw();
  }

  point(x) {
    if (!this.points.length) return;
    const { left, width } = this.box();
    const now = this.points.at(-1).time;
    const time = now - this.seconds * (1 - (x - left) / width);
    const distance = (point) => Math.abs(point.time - time);
    this.at = this.points.reduce((best, point, at) => (distance(point) < distance(this.points[best]) ? at : best), 0);
    this.draw();
  }

  leave() {
    this.at = null;
    this.draw();
  }

  box() {
    const { clientWidth, clientHeight } = this.element;
    return { left: 46, top: 8, width: Math.max(clientWidth - 52, 10), height: Math.max(clientHeight - 28, 10) };
  }

  draw() {
    const { left, top, width, height } = this.box();
    const values = this.points.flatMap((point) => this.lines.map(({ value }) => point[value])).filter((value) => value !== null);
    const most = roundUp(Math.max(...values, 0));
    const now = this.points.at(-1)?.time ?? 0;
    const x = (time) => left + width * (1 - (now - time) / this.seconds);
    const y = (value) => top + height * (1 - value / most);
    const svg = shape("svg", { "aria-hidden": "true" });
    for (const part of [0, 0.5, 1]) {
      svg.append(shape("line", { class: "grid", x1: left, x2: left + width, y1: y(most * part), y2: y(most * part) }));
      if (!values.length) continue;
      svg.append(shape("text", { x: left - 6, y: y(most * part) + 4, "text-anchor": "end" }, this.format(most * part)));
    }
    if (!values.length) {
      svg.append(shape("text", { x: left + width / 2, y: top + height / 2 - 6, "text-anchor": "middle" }, this.empty));
    }
    const labels = [["start", left, `${this.seconds / 60} min ago`], ["end", left + width, "now"]];
    for (const [anchor, place, text] of labels) {
      svg.append(shape("text", { x: place, y: top + height + 16, "text-anchor": anchor }, text));
    }
    const shown = this.points.filter((point) => point.time > now - this.seconds);
    for (const { name, value, area } of this.lines) {
      const points = shown.map((point) => [x(point.time), point[value] === null ? null : y(point[value])]);
      const drawn = path(points);
      if (area && points.length > 1) {
        const close = `L${points.at(-1)[0].toFixed(1)} ${y(0)}L${points[0][0].toFixed(1)} ${y(0)}Z`;
        svg.append(shape("path", { class: `area ${name}`, d: drawn + close }));
      }
      svg.append(shape("path", { class: `line ${name}`, d: drawn }));
    }
    const point = this.at === null ? null : this.points[this.at];
    if (point) {
      svg.append(shape("line", { class: "cursor", x1: x(point.time), x2: x(point.time), y1: top, y2: top + height }));
    }
    this.element.replaceChildren(svg);
    this.output.textContent = point ? this.describe(point, true) : "";
    const last = this.points.at(-1);
    if (last) this.element.setAttribute("aria-label", this.describe(last, false));
  }
}

/** A sparkline of `series`, each with a class and its values, one a second; `length` of them fill it. */
export function sparkline(series, length) {
  const [width, height] = [110, 22];
  const most = Math.max(...series.flatMap(({ values }) => values), 1e-9);
  const svg = shape("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  for (const { name, values } of series) {
    const x = (at) => width - ((values.length - 1 - at) * width) / (length - 1);
    const points = values.map((value, at) => [x(at), 1.5 + (height - 3) * (1 - value / most)]);
    svg.append(shape("path", { class: `line ${name}`, d: path(points) }));
  }
  return svg;
}
