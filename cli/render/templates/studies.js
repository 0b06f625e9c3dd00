"use strict";
// Lists of studies: a table or pictures, sorted, filtered by words and by ranges of measures.

function listOf(root) {
  const studies = page.studies.slice(Number(root.dataset.first), Number(root.dataset.end));
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const state = { sort: "", falls: false, words: [], ranges: {}, mark: "", kind: "", shape: "table" };
  const TEXTS = { name: "Study", status: "Status", mark: "Mark" };
  const BINS = 30, WIDE = 240, HIGH = 56;
  const FEWEST = 8;  // studies that have a distribution
  const KINDS = {  // of the second filter; those that no study has are not offered
    failed: ["failed", (study) => study.status === "failed"],
    notes: ["with notes", (study) => study.notes.length > 0],
    suspicious: ["suspicious", (study) => study.state === "suspicious"],
    unjudged: ["not judged", (study) => study.state === "not judged"],
    waiting: ["not stored", (study) => marks.isWaiting(study)],
  };
  const hasStatus = studies.some((study) => study.status);
  let shownStudies = studies;
  let current = null;  // the study whose link the Tab key reaches; arrow keys move it
  const rows = new Map();  // by study: its row of the table, or its card

  for (const study of studies) {
    study.words = [study.name, study.status, study.reason, ...study.notes].join(" ").toLowerCase();
  }

  // -- Order and choice ---------------------------------------------------------------------

  function isTaken(study) {
    if (state.mark && (state.mark === "none" ? study.mark : study.mark !== state.mark)) return false;
    if (state.kind && !KINDS[state.kind][1](study)) return false;
    for (const word of state.words) if (!study.words.includes(word) && !study.comment.toLowerCase().includes(word)) return false;
    for (const [key, [low, high]] of Object.entries(state.ranges)) {
      const value = study[key];
      if (value === null || value === undefined || value < low || value > high) return false;
    }
    return true;
  }

  function compared(first, second) {
    const key = state.sort;
    let [one, other] = [first[key], second[key]];
    if (key === "mark") [one, other] = [one, other].map((mark) => (mark ? GRADES.indexOf(mark) : null));
    const [isMissing, otherIsMissing] = [one, other].map((value) => value === null || value === undefined);
    if (isMissing || otherIsMissing) return isMissing - otherIsMissing;
    const order = typeof one === "string" ? one.localeCompare(other, undefined, { numeric: true }) : one - other;
    return state.falls ? -order : order;
  }

  function choose() {
    shownStudies = studies.filter(isTaken);
    shownStudies.sort(state.sort ? compared : (first, second) => second.far - first.far);
    render();
  }

  function sortBy(key) {
    // Numbers fall first, as large ones deserve a look; of some measures low ones do.
    const measure = page.measures.find((one) => one.key === key);
    const first = Boolean(measure) && !measure.low;
    if (state.sort !== key) Object.assign(state, { sort: key, falls: first });
    else if (state.falls === first) state.falls = !first;
    else Object.assign(state, { sort: "", falls: false });
    choose();
  }

  // -- Table and pictures -------------------------------------------------------------------

  function badge(study) {
    const isWaiting = marks.isWaiting(study);
    if (!study.mark && !isWaiting) return null;
    return element("span", { class: `badge ${study.mark || ""}${isWaiting ? " waiting" : ""}` }, `${study.mark || (isWaiting ? "no mark" : "")}${isWaiting ? ", not stored" : ""}`);
  }

  const target = (study) => (page.opens ? `#${study.number}` : study.file);
  const link = (study) => element(target(study) ? "a" : "span", { class: "link", href: target(study), tabindex: study === current ? 0 : -1 }, study.name);
  const remark = (study) => study.reason || study.notes[0] || "";

  function tableRow(study) {
    const picture = pictures.of(study) ? pictures.image(study) : null;
    return element("tr", { "data-status": study.status },
      page.hasPictures ? element("td", { class: "thumbnail" }, picture) : null,
      element("td", { class: "name" }, link(study), remark(study) ? element("small", { class: "remark", title: remark(study) }, remark(study)) : null),
      element("td", { class: "mark" }, badge(study), study.comment ? element("small", {}, study.comment) : null, ...(study.others || []).map(([reader, mark]) => element("small", {}, `${reader}: ${mark || "comment"}`))),
      ...page.measures.map(({ key }) => element("td", { class: `number${study.flagged.includes(key) ? " flagged" : ""}` }, figure(study[key]))),
      hasStatus ? element("td", { class: `status ${study.status}` }, study.status) : null);
  }

  function card(study) {
    const image = pictures.of(study) ? pictures.image(study) : element("div", { class: "nothing" }, study.status === "failed" ? "failed" : "no preview");
    return element("article", {},
      target(study) ? element("a", { href: target(study), tabindex: -1, "aria-hidden": "true" }, image) : image,
      element("p", {}, link(study), badge(study)),
      remark(study) ? element("small", { class: "remark", title: remark(study) }, remark(study)) : null);
  }

  function head() {
    const cells = [["name"], ["mark"], ...page.measures.map(({ key, title, help }) => [key, title, help]), ...(hasStatus ? [["status"]] : [])];
    return element("tr", {}, page.hasPictures ? element("th", {}, element("span", { class: "unseen" }, "Picture")) : null, ...cells.map(([key, title, help]) => {
      const order = state.sort !== key ? "none" : state.falls ? "descending" : "ascending";
      return element("th", { "aria-sort": order, class: title ? "number" : "", scope: "col" },
        element("button", { type: "button", title: help || "", onclick: () => sortBy(key) }, title || TEXTS[key], element("span", { "aria-hidden": "true" }, { none: "", ascending: " ↑", descending: " ↓" }[order])));
    }));
  }

  function render() {
    const isTable = state.shape === "table", made = isTable ? tableRow : card;
    if (!shownStudies.includes(current)) current = shownStudies[0];
    rows.clear();
    for (const study of shownStudies) rows.set(study, made(study));
    if (!shownStudies.length) part("list").replaceChildren(element("p", { class: "none" }, "No study matches the filter."));
    else part("list").replaceChildren(isTable
      ? element("table", { "aria-label": "Studies" }, element("thead", {}, head()), element("tbody", {}, ...rows.values()))
      : element("div", { class: "cards" }, ...rows.values()));
    const all = studies.length;
    part("count").textContent = shownStudies.length === all ? `${all} ${all === 1 ? "study" : "studies"}` : `${shownStudies.length} of ${all} studies`;
    for (const button of root.querySelectorAll("[data-shape]")) button.setAttribute("aria-pressed", button.dataset.shape === state.shape);
    tally();
  }

  function renew(study) {
    const before = rows.get(study);
    if (!before) { tally(); return; }
    const hadFocus = before.contains(document.activeElement);
    const after = state.shape === "table" ? tableRow(study) : card(study);
    before.replaceWith(after);
    rows.set(study, after);
    if (hadFocus) focusOn(study);
    tally();
  }

  function tally() {
    const counts = GRADES.map((grade) => studies.filter((study) => study.mark === grade).length);
    const left = studies.length - counts.reduce((sum, count) => sum + count, 0);
    offer("mark", [["", "Any mark"], ...GRADES.map((grade, at) => [grade, `${grade} (${counts[at]})`]), ["none", `no mark (${left})`]]);
    const kinds = Object.entries(KINDS).map(([kind, [text, has]]) => [kind, text, studies.filter(has).length]);
    const offered = kinds.filter(([kind, , count]) => count || kind === state.kind);
    offer("kind", [["", "All studies"], ...offered.map(([kind, text, count]) => [kind, `${text} (${count})`])]);
    part("kind").hidden = !offered.length;
    part("reader").textContent = marks.reader() ? `Reader: ${marks.reader()}` : "Reader …";
    if (part("save")) part("save").disabled = left === studies.length && !studies.some((study) => study.comment);
  }

  function offer(name, options) {
    part(name).replaceChildren(...options.map(([value, text]) => element("option", { value, selected: value === state[name] }, text)));
  }

  // -- Histograms, a range of which is chosen by dragging ------------------------------------

  function histogram(measure) {
    const values = studies.map((study) => study[measure.key]).filter((value) => value !== null && value !== undefined);
    const low = Math.min(...values), high = Math.max(...values);
    if (values.length < FEWEST || !(high > low)) return null;
    const counts = new Array(BINS).fill(0);
    for (const value of values) counts[Math.min(Math.floor(((value - low) / (high - low)) * BINS), BINS - 1)]++;
    const most = Math.max(...counts), width = WIDE / BINS;
    const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": `Distribution of ${measure.title}` },
      shape("rect", { class: "brush", x: 0, y: 0, width: 0, height: HIGH }),
      ...counts.map((count, at) => shape("rect", { class: "bin", x: at * width + 0.5, width: width - 1, height: (count / most) * (HIGH - 4), y: HIGH - (count / most) * (HIGH - 4) })));
    const ends = ["From", "To"].map((label) => element("input", { type: "number", step: "any", placeholder: figure(label === "From" ? low : high), "aria-label": `${label}, ${measure.title}` }));
    const drawn = { measure, low, high, svg, ends };
    ends.forEach((end) => end.addEventListener("change", () => {
      const [from, to] = ends.map((one) => one.valueAsNumber);
      setRange(drawn, Number.isNaN(from) && Number.isNaN(to) ? null : [Number.isNaN(from) ? -Infinity : from, Number.isNaN(to) ? Infinity : to]);
    }));
    brushed(drawn);
    return element("figure", {}, element("figcaption", { title: measure.help }, measure.title), svg, element("div", {}, ends[0], element("span", {}, "–"), ends[1]));
  }

  function shape(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function brushed(drawn) {
    const { svg, low, high } = drawn;
    let from = null;
    const valueAt = (event) => {
      const frame = svg.getBoundingClientRect();
      return low + Math.min(Math.max((event.clientX - frame.left) / frame.width, 0), 1) * (high - low);
    };
    svg.addEventListener("pointerdown", (event) => { from = valueAt(event); svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointermove", (event) => { if (from !== null) showRange(drawn, sorted(from, valueAt(event))); });
    svg.addEventListener("pointerup", (event) => {
      const range = sorted(from, valueAt(event));
      from = null;
      setRange(drawn, range[1] - range[0] > (high - low) / 200 ? range : null);
    });
  }

  const sorted = (one, other) => (one < other ? [one, other] : [other, one]);

  function showRange({ low, high, svg }, range) {
    const [from, to] = (range || [low, low]).map((value) => ((Math.min(Math.max(value, low), high) - low) / (high - low)) * WIDE);
    const brush = svg.querySelector(".brush");
    brush.setAttribute("x", from);
    brush.setAttribute("width", to - from);
  }

  function setRange(drawn, range) {
    if (range) state.ranges[drawn.measure.key] = range;
    else delete state.ranges[drawn.measure.key];
    drawn.ends.forEach((end, at) => { end.value = range && Number.isFinite(range[at]) ? Number(range[at].toPrecision(4)) : ""; });
    showRange(drawn, range);
    choose();
  }

  // -- Keys ---------------------------------------------------------------------------------

  const linkOf = (study) => rows.get(study)?.querySelector(".link");
  const focused = () => shownStudies.find((one) => rows.get(one).contains(document.activeElement));

  function focusOn(study) {
    const found = linkOf(study);
    found?.focus({ preventScroll: true });
    found?.scrollIntoView({ block: "nearest" });
  }

  part("list").addEventListener("focusin", () => {
    const study = focused();
    if (!study || study === current) return;
    linkOf(current)?.setAttribute("tabindex", -1);
    current = study;
    linkOf(study).setAttribute("tabindex", 0);
  });

  const MOVES = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isAsking() || event.target.matches("input, select")) return;
    const study = focused();
    if (!study) return;
    const grade = { 1: "good", 2: "doubtful", 3: "bad" }[event.key];
    if (grade || event.key === "0") marks.put(study, { mark: grade === study.mark ? null : grade || null });
    else if (event.key in MOVES) {
      const at = shownStudies.indexOf(study) + MOVES[event.key];
      focusOn(shownStudies[Math.min(Math.max(at, 0), shownStudies.length - 1)]);
    } else return;
    event.preventDefault();
  });

  // Keys that need no focus; of several lists, those of the first.
  const ANYWHERE = {
    "/": () => part("filter").focus(),
    "?": () => part("keys").showModal(),
    u: () => goToUnmarked(),
    ArrowDown: () => focusOn(current),
  };

  // The first study without a mark after one; from the top again after the last.
  function nextUnmarked(study) {
    const after = shownStudies.indexOf(study) + 1;
    return [...shownStudies.slice(after), ...shownStudies.slice(0, after)].find((one) => !one.mark && one !== study);
  }

  function goToUnmarked() {
    const found = nextUnmarked(focused());
    if (found) focusOn(found);
    else announce("Every study has a mark");
  }

  document.addEventListener("keydown", (event) => {
    const isElsewhere = document.body.classList.contains("viewing") || root !== document.querySelector(".studies");
    if (isElsewhere || event.ctrlKey || event.metaKey || event.altKey || isAsking() || event.target.matches("input, textarea, select")) return;
    if (event.key === "ArrowDown" && document.activeElement !== document.body) return;
    const act = ANYWHERE[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  part("filter").addEventListener("input", (event) => {
    state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    choose();
  });
  for (const name of ["mark", "kind"]) part(name).addEventListener("change", (event) => { state[name] = event.target.value; choose(); });
  if (page.mode === "file") part("reader").addEventListener("click", () => marks.ask());
  part("help").addEventListener("click", () => part("keys").showModal());
  part("save")?.addEventListener("click", () => marks.download());
  for (const button of root.querySelectorAll("[data-shape]")) button.addEventListener("click", () => { state.shape = button.dataset.shape; render(); });
  document.addEventListener("marked", ({ detail }) => renew(detail));
  document.addEventListener("read", choose);

  part("histograms").replaceChildren(...page.measures.map(histogram).filter(Boolean));
  choose();
  return { order: () => shownStudies, nextUnmarked, show: (study) => { if (study) focusOn(study); } };
}

const lists = [...document.querySelectorAll(".studies")].map(listOf);
