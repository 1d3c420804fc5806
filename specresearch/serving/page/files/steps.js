// The steps of an answer, taken from its chunks: the drafts of each and the tokens that it wrote.

export class Steps {
  constructor() {
    this.all = [];
  }

  // Returns the new steps; each has its tree and its tokens, whose position is null for the target's own.
  add(speculation) {
    const tokens = [...speculation.tokens];
    const added = speculation.trees.map((tree) => ({ tree, tokens: tokens.splice(0, tree.accepted.length + 1) }));
    this.all.push(...added);
    return added;
  }

  get numDrafts() {
    return this.#sum((step) => draftsOf(step));
  }

  get numAccepted() {
    return this.#sum((step) => step.tree.accepted.length);
  }

  // Accepted drafts and the target's own token, over the steps that drafted.
  get meanLength() {
    const drafting = this.#sum((step) => draftsOf(step) > 0);
    return drafting ? 1 + this.numAccepted / drafting : 1;
  }

  #sum(value) {
    return this.all.reduce((total, step) => total + value(step), 0);
  }
}

export function draftsOf(step) {
  return step.tree.parents.length - 1;
}

export function describe(step) {
  const drafts = draftsOf(step);
  const own = step.tokens.filter((token) => token.position === null).map((token) => visible(token.text));
  const ending = own.length ? `the target's own ${own.join("")}` : "the end of the answer";
  if (!drafts) return `No drafts: ${ending}.`;
  const accepted = step.tree.accepted.map((node) => visible(step.tree.texts[node]));
  const kept = accepted.length ? `${accepted.length} accepted, ${accepted.join(" ")}` : "none accepted";
  return `${drafts} ${drafts === 1 ? "draft" : "drafts"}: ${kept}; then ${ending}.`;
}

// Spaces and line ends as signs.
export function visible(text) {
  const shown = text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return shown === "" ? "∅" : shown;
}
