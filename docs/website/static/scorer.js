// Sphinx's scores, with the pages first whose titles the query names: results of equal scores are otherwise in
// alphabetical order, guides among all commands and fields of classes that mention the word.
const titleStems = (text) =>
  (text.toLowerCase().match(/[\p{L}\p{N}]{2,}/gu) ?? []).map((word) => word.replace(/(ing|ers?|e?s|ed|e)$/, ""));

var Scorer = {
  score: ([_docname, title, anchor, _description, score]) => {
    const query = titleStems(new URLSearchParams(location.search).get("q") ?? "");
    const words = titleStems(title.split(" > ").at(-1));
    const shared = query.filter((word) => words.includes(word)).length;
    if (!shared) return score;
    // Entries of classes and functions have scores of their own; a field named like the query comes after pages.
    if (title.includes(".")) return title.split(".").length > 2 ? score - 5 : score;
    return score + (20 * shared) / query.length + (10 * shared) / words.length - (anchor ? 5 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
