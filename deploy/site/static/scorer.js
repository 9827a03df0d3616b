"use strict";
// Order of search results: a name that is exactly that of a public class or function, then guides, the reference, and records last.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (/^dfact(\.selection|\.report)?\.\w+$/.test(title) && score >= 16 && page.startsWith("reference/")) return score + 40;
    if (/(^|\/)(changelog|evidence|references|CONTRIBUTING)$/.test(page) || page.startsWith("benchmarks/")) return score - 10;
    if (/\/(architecture|extending)$/.test(page)) return score + 10;
    if (/^(README|dfact\/guides\/.*)$/.test(page)) return score + 25;
    if (page.startsWith("commands/")) return score + 5;
    return score;
  },
  // Sphinx's own figures.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
