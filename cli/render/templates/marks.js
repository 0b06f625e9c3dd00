"use strict";
// Marks of the reader: on the server beside the results, or in the browser's store if the page is a file.
// A change waits until it is stored: it is shown as such, sent again, and kept over a reload.

const marks = (() => {
  const isServer = page.mode === "server";
  const waiting = new Map();  // by study: the changes that are not stored
  const RETRIES_MS = [500, 1000, 2000, 5000, 10000], TIMEOUT_MS = 8000, PATIENCE_MS = 1500, TYPING_MS = 600;
  const part = (name) => document.querySelector(`[data-mark-part="${name}"]`);
  let reader = page.reader, failure = "", failures = 0, isSending = false, timer = null, since = 0, shownAs = "";

  const keyOf = (name) => `cuda-cyclegan review ${page.key} ${page.started} ${name}`;
  const read = (store, key) => { try { return JSON.parse(store().getItem(key)); } catch { return null; } };
  const session = () => sessionStorage, local = () => localStorage;
  const WAITING = `waiting ${location.pathname}`, READER = `reader ${page.key}`, READERS = "cuda-cyclegan readers";

  function write(store, key, value) {
    try { store().setItem(key, JSON.stringify(value)); } catch { return false; }
    return JSON.stringify(read(store, key)) === JSON.stringify(value);
  }

  const changed = (study) => document.dispatchEvent(new CustomEvent("marked", { detail: study }));

  // -- Changes --------------------------------------------------------------------------------

  function put(study, change, delay = 0) {
    if (!reader) { ask(() => put(study, change)); return; }
    Object.assign(study, change);
    if (!waiting.size) since = Date.now();
    waiting.set(study, { ...waiting.get(study), ...change });
    keepWaiting();
    changed(study);
    again(delay);
    setTimeout(show, PATIENCE_MS + 50);
  }

  function keepWaiting() {
    if (isServer) write(session, WAITING, [...waiting].map(([study, change]) => [study.number, change]));
  }

  function again(delay) {
    clearTimeout(timer);
    timer = setTimeout(send, delay);
  }

  // One change after the other, as two at a time could arrive in the other order.
  async function send() {
    if (isSending) return;
    isSending = true;
    const tried = new Set();
    for (let study; (study = [...waiting.keys()].find((one) => !tried.has(one)));) {
      const change = waiting.get(study);
      try {
        const stored = await store(study, change);
        settle(study, change, stored);
        failures = 0;
      } catch (error) {
        tried.add(study);
        failure = error.message;
        announce(`The mark of ${study.name} was not stored: ${failure}`);
        if (!(error instanceof RefusedError)) break;
      }
    }
    isSending = false;
    if (waiting.size) again(RETRIES_MS[Math.min(failures++, RETRIES_MS.length - 1)]);
    else failure = "";
    show();
  }

  function settle(study, change, stored) {
    const left = { ...waiting.get(study) };
    for (const [name, value] of Object.entries(change)) if (left[name] === value) delete left[name];
    if (Object.keys(left).length) waiting.set(study, left);
    else waiting.delete(study);
    keepWaiting();
    Object.assign(study, stored, left);
    changed(study);
    announce(study.mark ? `${study.name} is marked ${study.mark}` : `${study.name} has no mark`);
  }

  class RefusedError extends Error {}

  async function store(study, change) {
    if (!isServer) return keep(study);
    const request = { method: "POST", body: JSON.stringify(change), headers: { "Content-Type": "application/json" }, keepalive: true };
    let answer;
    try { answer = await fetch(`mark/${study.number}`, { ...request, signal: AbortSignal.timeout(TIMEOUT_MS) }); } catch {
      throw new Error("the program does not answer; it may have ended");
    }
    if (!answer.ok) throw new RefusedError(await answer.text());
    return answer.json();
  }

  // Other pages of this file may have stored marks meanwhile.
  function keep(study) {
    const { mark, comment } = study, when = new Date().toISOString().replace(/\.\d+Z/, "+00:00");
    const all = { ...read(local, keyOf(reader)) };
    if (mark || comment) all[idOf(study)] = { mark, comment, when };
    else delete all[idOf(study)];
    if (!write(local, keyOf(reader), all)) throw new RefusedError("this browser keeps nothing for the page; save the marks to a file");
    return { mark, comment, when };
  }

  // -- What waits is shown ----------------------------------------------------------------------

  function show() {
    const isLate = waiting.size && (failure || Date.now() - since > PATIENCE_MS);
    part("banner").hidden = !isLate;
    document.documentElement.style.setProperty("--banner", `${isLate ? part("banner").offsetHeight : 0}px`);
    const text = isLate ? `${waiting.size === 1 ? "The mark of 1 study is" : `The marks of ${waiting.size} studies are`} not stored: ${failure || "the program has not answered yet"}.` : "";
    if (text !== shownAs) part("why").textContent = shownAs = text;
    document.body.classList.toggle("late", Boolean(isLate));
  }

  // -- The reader of a page on a disk, who is asked for a name -----------------------------------

  function ask(then) {
    const dialog = part("reader"), input = part("name");
    input.value = reader || read(local, READERS)?.[0] || "";
    dialog.returnValue = "";
    dialog.onclose = () => {
      const name = input.value.trim().replace(/\p{C}/gu, "");
      if (dialog.returnValue !== "named" || !name) return;
      readAs(name);
      then?.();
    };
    dialog.showModal();
    input.select();
  }

  function readAs(name) {
    reader = name;
    write(session, READER, name);
    write(local, READERS, [name, ...(read(local, READERS) || []).filter((one) => one !== name)].slice(0, 20));
    const stored = read(local, keyOf(name)) || {};
    waiting.clear();
    for (const study of page.studies) Object.assign(study, { mark: null, comment: "", when: "" }, stored[idOf(study)]);
    document.dispatchEvent(new CustomEvent("read"));
  }

  // -- A file of the marks ------------------------------------------------------------------------

  // As the program writes it: halves of characters are escaped, and no cell is a formula.
  function cell(text) {
    const whole = text.replace(/[\r\ud800-\udfff]|\\(?=u(?:000d|005c|d[89a-f][0-9a-f]{2}))/gu, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
    const guarded = /^'*[=+\-@\t]/.test(whole) ? `'${whole}` : whole;
    return /[",\n]/.test(guarded) ? `"${guarded.replaceAll('"', '""')}"` : guarded;
  }

  function download() {
    if (!reader) { ask(download); return; }
    const marked = new Map(page.studies.filter((study) => study.mark || study.comment).map((study) => [idOf(study), study]));
    const rows = [...marked].map(([id, { mark, comment, when }]) => [id, mark || "", comment, reader, when || ""]);
    const text = [page.columns, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `review-${reader.replace(/[^\p{L}\p{N}_-]/gu, "_")}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // -- Start --------------------------------------------------------------------------------------

  if (isServer) {
    for (const [number, change] of read(session, WAITING) || []) {
      const study = page.studies[number];
      Object.assign(study, change);
      waiting.set(study, change);
    }
    if (waiting.size) again(0);
  } else {
    const name = read(session, READER);
    if (name) readAs(name);
    else if (read(local, READERS)?.some((one) => read(local, keyOf(one)))) ask();
  }
  part("again").addEventListener("click", () => again(0));
  part("save").addEventListener("click", download);
  window.addEventListener("online", () => again(0));
  window.addEventListener("beforeunload", (event) => { if (waiting.size) event.preventDefault(); });

  return {
    put, ask, download,
    reader: () => reader,
    isWaiting: (study, field = "mark") => Object.hasOwn(waiting.get(study) || {}, field),
    type: (study, comment) => put(study, { comment }, TYPING_MS),
  };
})();
