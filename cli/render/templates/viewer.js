"use strict";
// The viewer: linked planes of the images of one study, drawn on 2-D canvases slice by slice.

const viewer = (() => {
  const [list] = lists;
  const PLANES = ["axial", "coronal", "sagittal"];
  const AXES = { axial: [0, 1, 2], coronal: [0, 2, 1], sagittal: [1, 2, 0] };  // across, down, normal
  const EDGES = { axial: "RLAP", coronal: "RLSI", sagittal: "APSI" };
  const SIDES = ["left", "right", "top", "bottom"];
  const TITLES = { input: "Input", result: "Result", truth: "Truth", spread: "Spread", cycle: "Cycle error",
    difference: "Result − input", error: "Result − truth" };
  const PAIRS = { difference: ["input", "result"], error: ["truth", "result"] };
  const ORDER = ["input", "result", "difference", "truth", "error", "spread", "cycle"];
  const CACHED_BYTES = 64 << 20;
  const AHEAD = 3;

  const root = document.getElementById("viewer");
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const state = {
    study: null, info: null, cursor: [0, 0, 0], main: "axial", mode: "side", mix: 0.5, stride: 1,
    windows: {}, hidden: new Set(["spread", "cycle"]), grey: false, opened: 0, ahead: null,
  };

  // Planes that were received, the last ones only, and the requests for others.
  const planes = {
    kept: new Map(), bytes: 0, slots: new Map(),

    clear() { this.kept.clear(); this.slots.clear(); this.bytes = 0; },

    find(role, plane, index) {
      const key = `${role}/${plane}/${index}`, found = this.kept.get(key);
      if (found) { this.kept.delete(key); this.kept.set(key, found); }
      return found;
    },

    // One request for each image and direction is in flight; of later ones only the newest is kept.
    want(role, plane, index) {
      const name = `${role}/${plane}`, slot = this.slots.get(name);
      if (slot) { slot.next = index; return; }
      const mine = { next: null, opened: state.opened };
      this.slots.set(name, mine);
      source.plane(state.study, role, plane, index).then((found) => {
        if (mine.opened === state.opened) this.keep(`${name}/${index}`, found);
      }).catch((error) => announce(error.message)).finally(() => {
        if (mine.opened !== state.opened) return;
        this.slots.delete(name);
        draw();
        if (mine.next !== null && !this.find(role, plane, mine.next)) this.want(role, plane, mine.next);
      });
    },

    keep(key, found) {
      this.kept.set(key, found);
      this.bytes += found.values.byteLength;
      for (const [oldest, held] of this.kept) {
        if (this.bytes <= CACHED_BYTES) break;
        this.kept.delete(oldest);
        this.bytes -= held.values.byteLength;
      }
    },
  };

  const roles = () => ORDER.filter((role) => (PAIRS[role] || [role]).every((one) => state.info?.images[one]));
  const shown = () => roles().filter((role) => !state.hidden.has(role));
  const sourcesOf = (role) => (role === "result" && fused() ? ["input", "result"] : PAIRS[role] || [role]);
  const fused = () => state.mode !== "side" && state.info?.images.input && state.info?.images.result;

  // -- Levels -------------------------------------------------------------------------------

  const COLOURS = 256, LARGEST_OF_GREY = 200;
  const palette = (count, [red, green, blue]) => Uint32Array.from({ length: count }, (_, at) => {
    const share = at / (count - 1);
    return (0xff000000 | ((blue * share) << 16) | ((green * share) << 8) | (red * share)) >>> 0;
  });
  const GREY = palette(COLOURS, [255, 255, 255]);
  const SIGNED = Uint32Array.from([...palette(COLOURS, [64, 156, 255]).reverse(), ...palette(COLOURS, [255, 140, 40])]);
  const SHORT = { Int8Array: 128, Uint8Array: 0, Int16Array: 32768, Uint16Array: 0 };  // minus their lowest values

  // Grey levels of a plane; short types by a table, as a plane has more voxels than they have values.
  function levelsOf({ values, slope, intercept }, [low, high]) {
    const factor = (255 * slope) / (high - low), base = (255 * (intercept - low)) / (high - low);
    const count = values.length, levels = new Uint8ClampedArray(count), below = SHORT[values.constructor.name];
    if (below === undefined) {
      for (let at = 0; at < count; at++) levels[at] = values[at] * factor + base;
      return levels;
    }
    const table = new Uint8ClampedArray(256 ** values.BYTES_PER_ELEMENT);
    for (let at = 0; at < table.length; at++) table[at] = (at - below) * factor + base;
    for (let at = 0; at < count; at++) levels[at] = table[values[at] + below];
    return levels;
  }

  // Colour of a difference in steps, COLOURS for none; NaN is black.
  const signed = (level) => SIGNED[level >= 2 * COLOURS ? 2 * COLOURS - 1 : level > 0 ? level | 0 : level <= 0 ? 0 : COLOURS];

  function paintValues(pixels, first, second, high) {
    const factor = COLOURS / high, one = first.values, other = second.values;
    const a = -first.slope * factor, b = second.slope * factor, base = (second.intercept - first.intercept) * factor + COLOURS;
    for (let at = 0; at < pixels.length; at++) {
      const level = one[at] * a + other[at] * b + base;
      pixels[at] = signed(level);
    }
  }

  function paintLevels(pixels, levels) {
    for (let at = 0; at < pixels.length; at++) pixels[at] = GREY[levels[at]];
  }

  function paintGreyDifference(pixels, one, other) {
    const factor = COLOURS / LARGEST_OF_GREY;
    for (let at = 0; at < pixels.length; at++) pixels[at] = signed((other[at] - one[at]) * factor + COLOURS);
  }

  // The result in amber over the input in grey: two greys of reverse contrast would cancel out.
  function paintOverlay(pixels, one, other) {
    const over = state.mix, under = 1 - state.mix;
    for (let at = 0; at < pixels.length; at++) {
      const below = one[at] * under, above = other[at] * over;
      pixels[at] = 0xff000000 | ((below + above * 0.15) << 16) | ((below + above * 0.65) << 8) | (below + above);
    }
  }

  function paintChecks(pixels, one, other, columns) {
    const edge = Math.max(Math.round(columns / (4 + 20 * state.mix)), 2);
    for (let at = 0; at < pixels.length; at++) {
      const isOdd = (((at % columns) / edge) ^ (at / columns / edge)) & 1;
      pixels[at] = GREY[isOdd ? one[at] : other[at]];
    }
  }

  function paintPixels(pixels, role, [first, second]) {
    if (PAIRS[role]) {
      const [from, to] = PAIRS[role];
      if (isGrey(role)) paintGreyDifference(pixels, levelsOf(first, windowOf(from)), levelsOf(second, windowOf(to)));
      else paintValues(pixels, first, second, windowOf(role)[1]);
      return;
    }
    const levels = levelsOf(first, windowOf(second ? "input" : role));
    if (!second) { paintLevels(pixels, levels); return; }
    const other = levelsOf(second, windowOf("result"));
    if (state.mode === "overlay") paintOverlay(pixels, levels, other);
    else paintChecks(pixels, levels, other, first.columns);
  }

  const valueAt = (found, at) => found.values[at] * found.slope + found.intercept;
  const isGrey = (role) => role === "difference" && state.grey;

  function windowOf(role) {
    if (state.windows[role]) return state.windows[role];
    if (PAIRS[role]) {
      const most = state.info.differences[role] || 1;
      return [-most, most];
    }
    const [low, high] = state.info.images[role].window;
    return ["spread", "cycle"].includes(role) ? [0, Math.max(high, 1e-6)] : [low, high];
  }

  // Images in one unit are compared by values, others by grey levels.
  function looksLikeOneUnit() {
    const { input, result } = state.info.images;
    if (!input || !result) return true;
    const ratio = (input.window[1] - input.window[0]) / (result.window[1] - result.window[0]);
    return ratio > 0.5 && ratio < 2;
  }

  // -- Drawing ------------------------------------------------------------------------------

  const frames = new Map();  // by role and plane: a canvas of a pixel a voxel, and what lies on it
  let isDue = false;

  function draw() {
    if (isDue || !state.info) return;
    isDue = true;
    root.dataset.ready = "false";
    requestAnimationFrame(() => {
      isDue = false;
      if (!state.info || root.hidden) return;
      let isWhole = true;
      for (const frame of frames.values()) isWhole = drawPlane(frame) && isWhole;
      root.dataset.ready = isWhole;
      readOut();
      if (isWhole) lookAhead();
    });
  }

  function drawPlane(frame) {
    const { role, plane } = frame, [across, down, normal] = AXES[plane], { shape } = state.info;
    const index = state.cursor[normal];
    const found = sourcesOf(role).map((one) => planes.find(one, plane, index));
    sourcesOf(role).forEach((one, at) => { if (!found[at]) planes.want(one, plane, index); });
    if (!found.every(Boolean)) return false;
    paint(frame, found);
    for (const [name, axis] of [["--x", across], ["--y", down]]) {
      const share = String((state.cursor[axis] + 0.5) / shape[axis]);
      if (frame.element.style.getPropertyValue(name) !== share) frame.element.style.setProperty(name, share);
    }
    const position = `${index + 1} / ${shape[normal]}`;
    if (frame.label.textContent !== position) frame.label.textContent = position;
    return true;
  }

  // Nothing is painted while only the crosshair moves.
  function paint(frame, found) {
    const { role, canvas } = frame, { rows, columns } = found[0];
    const look = JSON.stringify([state.mode, state.mix, isGrey(role), sourcesOf(role).map(windowOf), windowOf(role)]);
    if (frame.look === look && found.every((one, at) => one === frame.found[at])) return;
    const context = canvas.getContext("2d");
    if (frame.picture?.width !== columns || frame.picture.height !== rows) {
      Object.assign(canvas, { width: columns, height: rows });
      frame.picture = context.createImageData(columns, rows);
    }
    paintPixels(new Uint32Array(frame.picture.data.buffer), role, found);
    context.putImageData(frame.picture, 0, 0);
    Object.assign(frame, { look, found });
  }

  function frameOf(role, plane) {
    const [across, down] = AXES[plane], { shape, spacing } = state.info;
    const canvas = element("canvas", { role: "img", "aria-label": `${TITLES[role]}, ${plane}` });
    const label = element("span", { class: "slice" });
    const letters = [...EDGES[plane]].map((letter, at) => element("span", { class: `edge ${SIDES[at]}` }, letter));
    const lines = SIDES.map((side) => element("i", { class: side }));
    const made = element("div", { class: "frame" }, canvas, ...lines);
    made.style.setProperty("--aspect", (shape[across] * spacing[across]) / (shape[down] * spacing[down]));
    const cell = element("div", { class: "plane", "data-plane": plane, "data-main": String(plane === state.main), }, made, ...letters, label);
    const frame = { role, plane, canvas, element: made, cell, label };
    listen(frame);
    return frame;
  }

  // Once all that is shown is there: planes that scrolling will reach next, and the next study.
  function lookAhead() {
    const order = list.order(), next = order[order.indexOf(state.study) + 1];
    if (next && state.ahead !== next) source.ahead(next);
    state.ahead = next;
    const normal = AXES[state.main][2], most = state.info.shape[normal];
    const wanted = new Set(shown().flatMap(sourcesOf));
    for (const role of wanted) {
      for (let step = 1; step <= AHEAD; step++) {
        const index = state.cursor[normal] + step * state.stride;
        if (index < 0 || index >= most || planes.find(role, state.main, index)) continue;
        if (!planes.slots.has(`${role}/${state.main}`)) planes.want(role, state.main, index);
        break;
      }
    }
  }

  function readOut() {
    const values = {};
    const plane = state.main, [across, down, normal] = AXES[plane];
    for (const role of Object.keys(state.info.images)) {
      const found = planes.find(role, plane, state.cursor[normal]);
      if (found) values[role] = valueAt(found, state.cursor[down] * found.columns + state.cursor[across]);
    }
    for (const role of shown()) {
      const pair = PAIRS[role];
      const value = pair ? values[pair[1]] - values[pair[0]] : values[role];
      const output = root.querySelector(`output[data-role="${role}"]`);
      if (output) output.textContent = value === undefined || Number.isNaN(value) ? "–" : figure(value, 5);
    }
    part("place").textContent = `Voxel ${state.cursor.map((at) => at + 1).join(", ")}`;
  }

  // -- The study ----------------------------------------------------------------------------

  async function open(study) {
    part("comment").blur();  // so that it is stored for the study that is left
    const opened = ++state.opened;
    Object.assign(state, { study, info: null, windows: {}, stride: 1 });
    planes.clear();
    root.hidden = false;
    document.body.classList.add("viewing");
    root.dataset.ready = "false";
    const isEntered = root.contains(document.activeElement);
    showStudy();
    showMark();
    if (!isEntered) part("name").focus();
    else announce(`${study.name}, ${part("position").textContent}`);
    part("columns").replaceChildren(element("p", { class: "waiting" }, "Reading the scans …"));
    frames.clear();
    try {
      const info = await source.study(study);
      if (opened !== state.opened) return;
      state.info = info;
      start();
    } catch (error) {
      if (opened === state.opened) part("columns").replaceChildren(element("p", { class: "waiting" }, `The study cannot be shown: ${error.message}`));
    }
  }

  function start() {
    const { shape } = state.info;
    part("faults").replaceChildren(...Object.entries(state.info.faults).map(([role, why]) => element("p", {}, `${TITLES[role]}: ${why}`)));
    if (!shape) { part("columns").replaceChildren(element("p", { class: "waiting" }, "No image of this study can be shown.")); return; }
    state.cursor = shape.map((extent) => extent >> 1);
    state.grey = !looksLikeOneUnit();
    part("grey").checked = state.grey;
    if (state.study.roles.includes("truth")) state.hidden.delete("truth");
    layOut();
    for (const role of Object.keys(state.info.images)) {
      const { moved, notes } = state.info.images[role];
      if (moved) part("faults").append(element("p", {}, `${TITLES[role]}: on another grid; nearest voxels are shown.`));
      for (const note of notes) part("faults").append(element("p", {}, `${TITLES[role]}: ${note}`));
    }
  }

  function layOut() {
    frames.clear();
    const sections = shown().map((role) => {
      const drawn = PLANES.map((plane) => {
        const frame = frameOf(role, plane);
        frames.set(`${role}/${plane}`, frame);
        return frame.cell;
      });
      const title = role === "result" && fused() ? "Input and result" : TITLES[role];
      return element("figure", { "data-role": role },
        element("figcaption", {}, element("b", {}, title), element("output", { "data-role": role, "aria-live": "off", "aria-label": `${title} at the crosshair`, title: "Value at the crosshair" }, "–")),
        element("div", { class: "planes" }, ...drawn));
    });
    part("columns").replaceChildren(...sections);
    part("images").replaceChildren(...roles().map((role) => element("label", {},
      element("input", { type: "checkbox", checked: !state.hidden.has(role), onchange: (event) => {
        state.hidden[event.target.checked ? "delete" : "add"](role);
        layOut();
      } }), TITLES[role])));
    for (const button of root.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === state.mode);
    for (const button of root.querySelectorAll("[data-turn]")) button.setAttribute("aria-pressed", button.dataset.turn === state.main);
    part("mix").disabled = state.mode === "side";
    part("mix").setAttribute("aria-label", state.mode === "checkerboard" ? "Number of squares" : "Share of the result");
    part("less").textContent = state.mode === "checkerboard" ? "Few" : "Input";
    part("more").textContent = state.mode === "checkerboard" ? "Many" : "Result";
    showWindows();
    draw();
  }

  function showStudy() {
    const { study } = state, at = list.order().indexOf(study);
    part("name").textContent = study.name;
    part("position").textContent = `${at + 1} of ${list.order().length}`;
    part("previous").disabled = at <= 0;
    part("next").disabled = at === list.order().length - 1;
    document.title = `${study.name} · ${page.title}`;
    for (const name of ["faults", "images", "windows", "place"]) part(name).replaceChildren();
    part("facts").replaceChildren(...page.measures.filter(({ key }) => study[key] !== null && study[key] !== undefined).flatMap(({ key, title }) => [
      element("dt", {}, title), element("dd", {}, figure(study[key]))]));
    part("notes").replaceChildren(...[study.reason, ...study.notes].filter(Boolean).map((note) => element("p", {}, note)));
  }

  function showMark() {
    for (const button of root.querySelectorAll("[data-mark]")) button.setAttribute("aria-pressed", button.dataset.mark === state.study.mark);
    if (document.activeElement !== part("comment")) part("comment").value = state.study.comment;
    const marked = page.studies.filter((study) => study.mark).length;
    part("progress").textContent = `${marked} of ${page.studies.length} marked`;
  }

  function showWindows() {
    const singles = shown().filter((role) => !isGrey(role));
    part("windows").replaceChildren(...singles.map((role) => {
      const ends = windowOf(role);
      const input = (at, label) => element("input", { type: "number", step: "any", value: Number(ends[at].toPrecision(4)), "aria-label": `${label} of ${TITLES[role]}`,
        disabled: PAIRS[role] && at === 0, onchange: (event) => setWindow(role, at ? [windowOf(role)[0], event.target.valueAsNumber] : [event.target.valueAsNumber, windowOf(role)[1]]) });
      return element("div", {}, element("span", {}, TITLES[role]), input(0, "Black"), input(1, "White"));
    }));
  }

  function setWindow(role, [low, high]) {
    if (!(high > low)) return;
    state.windows[role] = PAIRS[role] ? [-high, high] : [low, high];
    showWindows();
    draw();
  }

  // -- Mouse, touch, keys -------------------------------------------------------------------

  function moveTo(axis, index) {
    const to = Math.min(Math.max(Math.round(index), 0), state.info.shape[axis] - 1);
    if (to === state.cursor[axis]) return;
    if (axis === AXES[state.main][2]) state.stride = to - state.cursor[axis];
    state.cursor[axis] = to;
    draw();
  }

  function listen({ role, plane, element: shown, cell }) {
    const [across, down, normal] = AXES[plane];
    let pointed = null, turned = 0;
    const point = (event) => {
      const place = shown.getBoundingClientRect();
      moveTo(across, ((event.clientX - place.left) / place.width) * state.info.shape[across] - 0.5);
      moveTo(down, ((event.clientY - place.top) / place.height) * state.info.shape[down] - 0.5);
    };
    cell.addEventListener("pointerdown", (event) => {
      cell.setPointerCapture(event.pointerId);
      const isWindowing = event.button === 2 || event.shiftKey;
      pointed = { x: event.clientX, y: event.clientY, window: windowOf(role), isWindowing };
      if (!isWindowing) point(event);
      event.preventDefault();
    });
    cell.addEventListener("pointermove", (event) => {
      if (!pointed) return;
      if (!pointed.isWindowing) { point(event); return; }
      const [low, high] = pointed.window, width = (high - low) * Math.exp((event.clientX - pointed.x) / 200);
      const level = (low + high) / 2 + ((event.clientY - pointed.y) * (high - low)) / 300;
      if (!isGrey(role)) setWindow(role, PAIRS[role] ? [-width / 2, width / 2] : [level - width / 2, level + width / 2]);
    });
    for (const end of ["pointerup", "pointercancel"]) cell.addEventListener(end, () => { pointed = null; });
    cell.addEventListener("contextmenu", (event) => event.preventDefault());
    cell.addEventListener("wheel", (event) => {
      event.preventDefault();
      turned += event.deltaMode ? event.deltaY * 40 : event.deltaY;
      const steps = Math.trunc(turned / 40);
      turned -= steps * 40;
      if (steps) moveTo(normal, state.cursor[normal] + steps);
    }, { passive: false });
    cell.addEventListener("dblclick", () => turn(plane));
  }

  function turn(plane) { state.main = plane; if (state.info) layOut(); }
  function setMode(mode) { state.mode = mode; state.hidden.delete("result"); if (state.info) layOut(); }

  function step(by) {
    const order = list.order(), next = order[order.indexOf(state.study) + by];
    if (next) go(`#${next.number}`);
    else announce(by > 0 ? "This is the last study" : "This is the first study");
  }

  function mark(grade) {
    marks.put(state.study, { mark: state.study.mark === grade ? null : grade });
  }

  // At once: keys pressed before the browser reports the new address are meant for the study that it names.
  function go(hash) { location.hash = hash; follow(); }

  function close() { go("#"); }

  function scroll(by) { const normal = AXES[state.main][2]; if (state.info) moveTo(normal, state.cursor[normal] + by); }

  const KEYS = {
    ArrowUp: () => scroll(-1), ArrowDown: () => scroll(1), PageUp: () => scroll(-10), PageDown: () => scroll(10),
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), p: () => step(-1), n: () => step(1),
    1: () => mark("good"), 2: () => mark("doubtful"), 3: () => mark("bad"), 0: () => marks.put(state.study, { mark: null }),
    c: () => part("comment").focus(), s: () => setMode("side"), o: () => setMode("overlay"), k: () => setMode("checkerboard"),
    v: () => turn(PLANES[(PLANES.indexOf(state.main) + 1) % 3]),
    r: () => { state.windows = {}; showWindows(); draw(); },
    "?": () => part("keys").showModal(), Escape: close,
  };

  document.addEventListener("keydown", (event) => {
    if (root.hidden || event.ctrlKey || event.metaKey || event.altKey || part("keys").open) return;
    if (event.target.matches("textarea, input:not([type=checkbox]):not([type=range])")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  part("back").addEventListener("click", close);
  part("previous").addEventListener("click", () => step(-1));
  part("next").addEventListener("click", () => step(1));
  part("help").addEventListener("click", () => part("keys").showModal());
  part("comment").addEventListener("change", () => marks.put(state.study, { comment: part("comment").value.trim() }));
  part("mix").addEventListener("input", (event) => { state.mix = event.target.valueAsNumber / 100; draw(); });
  part("grey").addEventListener("change", (event) => { state.grey = event.target.checked; layOut(); });
  part("reset").addEventListener("click", KEYS.r);
  for (const button of root.querySelectorAll("[data-mark]")) button.addEventListener("click", () => mark(button.dataset.mark));
  for (const button of root.querySelectorAll("[data-mode]")) button.addEventListener("click", () => setMode(button.dataset.mode));
  for (const button of root.querySelectorAll("[data-turn]")) button.addEventListener("click", () => turn(button.dataset.turn));
  document.addEventListener("marked", () => { if (state.study) showMark(); });

  function follow() {
    const number = /^#\d+$/.test(location.hash) ? Number(location.hash.slice(1)) : -1;
    const study = page.studies.find((one) => one.number === number);
    if (study) { if (study !== state.study || root.hidden) open(study); return; }
    part("comment").blur();
    const left = state.study;
    state.opened++;
    Object.assign(state, { study: null, info: null });
    planes.clear();
    root.hidden = true;
    document.body.classList.remove("viewing");
    document.title = page.title;
    list.show(left);
  }

  window.addEventListener("hashchange", follow);
  return { follow, state };
})();

viewer.follow();
