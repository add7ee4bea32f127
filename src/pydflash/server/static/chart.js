// A line over time and a draft tree, drawn as SVG from numbers and plain text.

const SPACE = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const round = (x) => Number(x.toFixed(1));

/**
 * A line of samples, oldest first, from zero up; its label says in words what the line shows.
 * @param {{at: number, value: number}[]} samples `at` in seconds
 */
export function lineChart(samples, unit) {
  const [width, height, left, low] = [360, 120, 34, 100];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  const values = samples.map((sample) => sample.value);
  const top = ceiling(Math.max(...values, 0));
  const last = values.at(-1);
  const words = samples.length
    ? `${unit}: now ${last.toFixed(2)}, lowest ${Math.min(...values).toFixed(2)}, highest ${Math.max(...values).toFixed(2)}`
    : `${unit}: nothing measured yet`;
  svg.setAttribute("aria-label", words);
  svg.append(
    shape("path", { class: "axis", d: `M${left} 10V${low}H${width}`, fill: "none" }),
    shape("text", { class: "scale", x: left - 4, y: 18, "text-anchor": "end" }, String(top)),
    shape("text", { class: "scale", x: left - 4, y: low, "text-anchor": "end" }, "0"),
  );
  if (!samples.length) {
    svg.append(shape("text", { class: "scale", x: left + 10, y: 60 }, "nothing measured yet"));
    return svg;
  }
  const first = samples[0].at;
  const span = Math.max(samples.at(-1).at - first, 1);
  const x = (at) => round(left + ((at - first) / span) * (width - left - 6));
  const y = (value) => round(low - (value / top) * (low - 14));
  const points = samples.map(({ at, value }) => `${x(at)},${y(value)}`).join(" ");
  svg.append(
    shape("polyline", { class: "curve", points }),
    shape("circle", { class: "dot", cx: x(samples.at(-1).at), cy: y(last), r: 3 }),
    shape("text", { class: "scale", x: left, y: height - 4 }, `${Math.round(span)} s ago`),
    shape("text", { class: "scale", x: width, y: height - 4, "text-anchor": "end" }, "now"),
  );
  return svg;
}

/** The next of 1, 2, 5, 10, 20, ... at or above a value. */
function ceiling(value) {
  for (let unit = 1; ; unit *= 10) {
    for (const step of [1, 2, 5]) if (step * unit >= value) return step * unit;
  }
}

/**
 * A draft tree as it was verified: depth to the right, the accepted path on top.
 * @param {{tokens: string[], parents: number[], path: number[], drawn?: string}} tree parents come first
 */
export function treeChart({ tokens, parents, path, drawn }) {
  const [box, gap, line] = [88, 22, 30];
  const taken = new Set(path);
  const depth = [];
  const children = tokens.map(() => []);
  parents.forEach((parent, node) => {
    depth.push(parent < 0 ? 0 : depth[parent] + 1);
    if (parent >= 0) children[parent].push(node);
  });
  const row = new Array(tokens.length).fill(0);
  let rows = 0;
  const order = [0]; // depth first, without recursion; a path's nodes before their siblings
  while (order.length) {
    const node = order.pop();
    const isFirst = node === 0 || sorted(children[parents[node]], taken)[0] === node;
    row[node] = isFirst && node !== 0 ? row[parents[node]] : rows++;
    order.push(...sorted(children[node], taken).reverse());
  }
  const end = path.at(-1) ?? 0;
  const nodes = tokens.map((text, node) => ({ text, node, depth: depth[node], row: row[node] }));
  const place = (node) => [node.depth * (box + gap) + 1, node.row * line + 1];
  const parts = [];
  for (const node of nodes) {
    if (parents[node.node] < 0) continue;
    parts.push(edge(place(nodes[parents[node.node]]), place(node), box, taken.has(node.node)));
  }
  if (drawn !== undefined) {
    // The model's own token hangs below what was refused, or goes on where nothing follows.
    const isFree = children[end].length === 0;
    const own = { text: drawn, depth: depth[end] + 1, row: isFree ? row[end] : rows++, own: true };
    parts.push(edge(place(nodes[end]), place(own), box, true));
    nodes.push(own);
  }
  for (const node of nodes) {
    const [x, y] = place(node);
    const kind = node.own ? "node drawn" : taken.has(node.node) ? "node taken" : "node";
    const label = shape("text", { x: x + box / 2, y: y + 16, "text-anchor": "middle" }, visible(node.text));
    const rect = shape("rect", { x, y, width: box, height: 23, rx: 5 });
    parts.push(shape("g", { class: kind }, rect, label, shape("title", {}, node.text)));
  }
  parts.sort((a, b) => rank(a) - rank(b)); // what was taken is drawn over what was not
  const width = (Math.max(...nodes.map((node) => node.depth)) + 1) * (box + gap) - gap + 2;
  const svg = shape("svg", { width, height: rows * line, role: "img" }, ...parts);
  const accepted = path.slice(1).map((node) => tokens[node]).join("");
  svg.setAttribute(
    "aria-label",
    `Draft of ${tokens.length - 1} tokens, ${path.length - 1} accepted: ${accepted}${drawn ?? ""}`,
  );
  return svg;
}

const rank = (part) => ["edge", "edge taken"].indexOf(part.getAttribute("class")) + 1 || 3;

const sorted = (nodes, taken) => [...nodes].sort((a, b) => taken.has(b) - taken.has(a));

function edge([fromX, fromY], [toX, toY], box, taken) {
  const [x, y, middle] = [fromX + box, fromY + 12, toX - 11];
  const d = `M${x} ${y}H${middle}V${toY + 12}H${toX}`;
  return shape("path", { class: taken ? "edge taken" : "edge", d });
}

/** Short, and with its spaces and line ends to be seen. */
function visible(text) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return shown.length > 11 ? `${shown.slice(0, 10)}…` : shown;
}
