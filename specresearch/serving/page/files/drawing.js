// Draws the drafts of steps as SVG.

import { draftsOf, visible } from "./steps.js";

const LONGEST_LABEL = 12;
const CHARACTER = 8;
const ROW = 30;
const GAP = 34;
const HEIGHT = 22;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A bar for each step: its drafts, and in front of them the accepted ones.
export function drawBars(svg, steps, chosen, onChoose) {
  const most = Math.max(1, ...steps.map(draftsOf));
  svg.setAttribute("viewBox", `0 0 ${Math.max(steps.length, 40)} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  const bars = steps.flatMap((step, number) => {
    const heights = [["drafted", draftsOf(step)], ["accepted", step.tree.accepted.length]];
    const parts = heights.map(([name, count]) => {
      const height = (92 * count) / most;
      return element("rect", { class: name, x: number + 0.1, width: 0.8, y: 92 - height, height });
    });
    if (number === chosen) parts.push(element("rect", { class: "marker", x: number, width: 1, y: 94, height: 6 }));
    const target = element("rect", { x: number, width: 1, y: 0, height: 100, opacity: 0 });
    target.addEventListener("click", () => onChoose(number));
    return [...parts, target];
  });
  svg.replaceChildren(...bars);
}

// The drafts of a step from left to right, each below its siblings; the target's own token behind the accepted ones.
export function drawTree(svg, step) {
  const nodes = placed(step);
  const links = nodes.filter((node) => node.parent).map((node) => {
    const { parent } = node;
    const from = parent.x + parent.width;
    const middle = (from + node.x) / 2;
    const d = `M${from} ${parent.y} C${middle} ${parent.y} ${middle} ${node.y} ${node.x} ${node.y}`;
    return element("path", { d, class: node.name === "refused" ? "" : "taken" });
  });
  const boxes = nodes.map((node) => {
    const group = element("g", { class: node.name });
    const { x, y, width } = node;
    group.append(
      element("rect", { x, y: y - HEIGHT / 2, width, height: HEIGHT, rx: 5 }),
      element("text", { x: x + width / 2, y: y + 4.5, "text-anchor": "middle" }, node.label),
      element("title", {}, node.title),
    );
    return group;
  });
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + 4;
  const height = Math.max(...nodes.map((node) => node.y)) + ROW;
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
  svg.replaceChildren(...links, ...boxes);
}

function placed({ tree, tokens }) {
  const accepted = new Set(tree.accepted);
  const nodes = tree.parents.map((parent, number) => ({
    parentNumber: parent,
    name: number === 0 || accepted.has(number) ? "taken" : "refused",
    title: number === 0 ? "the last token before the step" : accepted.has(number) ? "accepted" : "refused",
    text: tree.texts[number],
  }));
  const last = tree.accepted.at(-1) ?? 0;
  for (const token of tokens.filter((each) => each.position === null)) {
    nodes.push({ parentNumber: last, name: "own-node", title: "the target's own", text: token.text });
  }
  for (const node of nodes) {
    node.parent = nodes[node.parentNumber];
    node.depth = node.parent ? node.parent.depth + 1 : 0;
    node.children = [];
    node.parent?.children.push(node);
    const label = visible(node.text);
    node.label = label.length > LONGEST_LABEL ? `${label.slice(0, LONGEST_LABEL - 1)}…` : label;
    node.width = CHARACTER * node.label.length + 14;
  }
  placeColumns(nodes);
  placeRows(nodes[0], 0);
  return nodes;
}

function placeColumns(nodes) {
  const widest = [];
  for (const node of nodes) widest[node.depth] = Math.max(widest[node.depth] ?? 0, node.width);
  for (const node of nodes) {
    node.x = 2 + widest.slice(0, node.depth).reduce((total, width) => total + width + GAP, 0);
  }
}

// The accepted path stays in the first row; returns the next free row.
function placeRows(node, row) {
  node.y = ROW * (row + 0.6);
  const ordered = [...node.children].sort((a, b) => (a.name === "refused") - (b.name === "refused"));
  let next = row;
  for (const child of ordered) next = placeRows(child, next);
  return Math.max(next, row + 1);
}
