// Order of the site's search results: answers to questions first. Sphinx reads this as its scorer.
var Scorer = {
  score: ([docname, , , , score]) => (docname.startsWith("how-to/") ? score + 20 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
