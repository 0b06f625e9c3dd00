"use strict";
// The viewer: linked planes of the images of one study, drawn on 2-D canvases slice by slice.

const viewer = (() => {
  const [list] = lists;
  const PLANES = ["axial", "coronal", "sagittal"];
  const AXES = { axial: [0, 1, 2], coronal: [0, 2, 1], sagittal: [1, 2, 0] };  // across, down, normal
  const EDGES = { axial: "RLAP", coronal: "RLSI", sagittal: "APSI" };
  const SIDES = ["left", "right", "top", "bottom"];
  const TITLES = { input: "Input", result: "Result", truth: "Truth", spread: "Spread",
    disagreement: "Disagreement", cycle: "Cycle error", difference: "Result − input", error: "Result − truth" };
  const PAIRS = { difference: ["input", "result"], error: ["truth", "result"] };
  const ORDER = ["input", "result", "difference", "truth", "error", "spread", "disagreement", "cycle"];
  const ONE_WINDOW = ["input", "result", "truth"];
  const MAPS = { spread: "result", disagreement: "result", cycle: "input" };  // and the image whose unit they have
  const CACHED_BYTES = 64 << 20;
  const AHEAD = 3;

  const root = document.getElementById("viewer");
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const state = {
    study: null, info: null, cursor: [0, 0, 0], main: "axial", mode: "side", mix: 0.5, stride: 1,
    windows: {}, presets: {}, isOneWindow: false, hidden: new Set(Object.keys(MAPS)), grey: false, opened: 0, ahead: null,
    zoom: 1, centre: [0.5, 0.5, 0.5], pointed: null, ruler: null,
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
  // From black over violet and orange to a pale yellow, by its red, green and blue at even steps.
  const HEAT = Uint32Array.from({ length: COLOURS }, (_, at) => {
    const stops = [[0, 0, 0], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];
    const place = (at / (COLOURS - 1)) * (stops.length - 1), first = Math.min(Math.floor(place), stops.length - 2);
    const [red, green, blue] = [0, 1, 2].map((channel) => stops[first][channel] + (place - first) * (stops[first + 1][channel] - stops[first][channel]));
    return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
  });
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

  function paintLevels(pixels, levels, colours) {
    for (let at = 0; at < pixels.length; at++) pixels[at] = colours[levels[at]];
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
    if (!second) { paintLevels(pixels, levels, role in MAPS ? HEAT : GREY); return; }
    const other = levelsOf(second, windowOf("result"));
    if (state.mode === "overlay") paintOverlay(pixels, levels, other);
    else paintChecks(pixels, levels, other, first.columns);
  }

  const valueAt = (found, at) => found.values[at] * found.slope + found.intercept;
  const isGrey = (role) => role === "difference" && state.grey;

  const windowOf = (role) => state.windows[role] || automatic(role);

  function automatic(role) {
    if (PAIRS[role]) {
      const most = state.info.differences[role] || 1;
      return [-most, most];
    }
    const [low, high] = state.info.images[role].window;
    return role in MAPS ? [0, Math.max(high, 1e-6)] : [low, high];
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
    const places = { "--x": (state.cursor[across] + 0.5) / shape[across], "--y": (state.cursor[down] + 0.5) / shape[down], "--centre-x": state.centre[across], "--centre-y": state.centre[down], "--zoom": state.zoom };
    for (const [name, place] of Object.entries(places)) {
      if (frame.element.style.getPropertyValue(name) !== String(place)) frame.element.style.setProperty(name, place);
    }
    showRuler(frame);
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

  // Between two voxels of a plane, on all images.
  function rulerLength() {
    const [across, down] = AXES[state.ruler.plane], { spacing } = state.info, { from, to } = state.ruler;
    return Math.hypot((to[0] - from[0]) * spacing[across], (to[1] - from[1]) * spacing[down]);
  }

  function showRuler({ plane, line, length }) {
    const { ruler } = state, [across, down, normal] = AXES[plane];
    const isThere = ruler?.plane === plane && ruler.index === state.cursor[normal];
    line.parentNode.hidden = length.hidden = !isThere;
    line.parentNode.style.display = isThere ? "" : "none";
    if (!isThere) return;
    const share = ([x, y]) => [(x + 0.5) / state.info.shape[across], (y + 0.5) / state.info.shape[down]];
    const [[x1, y1], [x2, y2]] = [share(ruler.from), share(ruler.to)];
    for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(name, value);
    length.style.left = `${x2 * 100}%`;
    length.style.top = `${y2 * 100}%`;
    length.style.transform = x2 > state.centre[across] ? "translateX(calc(-100% - 1rem))" : "";
    length.textContent = `${rulerLength().toFixed(1)} mm`;
  }

  // Colours of a difference or map with the values at their ends.
  function colourBar(role) {
    const canvas = element("canvas", { width: 1, height: 128, "aria-hidden": "true" }), context = canvas.getContext("2d");
    const colours = PAIRS[role] ? SIGNED : HEAT, picture = context.createImageData(1, 128), pixels = new Uint32Array(picture.data.buffer);
    for (let at = 0; at < 128; at++) pixels[at] = colours[Math.round(((127 - at) / 127) * (colours.length - 1))];
    context.putImageData(picture, 0, 0);
    return element("div", { class: "scale", "data-bar": role }, element("b", {}), canvas, element("b", {}));
  }

  function showBars() {
    for (const bar of root.querySelectorAll("[data-bar]")) {
      const role = bar.dataset.bar, [low, high] = windowOf(role), unit = isGrey(role) ? "grey levels" : unitOf(role);
      const ends = isGrey(role) ? [-LARGEST_OF_GREY, LARGEST_OF_GREY] : [low, high];
      bar.firstChild.textContent = `${figure(ends[1])} ${unit}`.trim();
      bar.lastChild.textContent = figure(ends[0]);
    }
  }

  // Of the difference of two images that both have one unit, that; else none is known.
  function unitOf(role) {
    const units = (PAIRS[role] || [MAPS[role] || role]).map((one) => state.info.images[one]?.unit || "");
    return units.every((unit) => unit === units[0]) ? units[0] : "";
  }

  function frameOf(role, plane) {
    const [across, down] = AXES[plane], { shape, spacing } = state.info;
    const canvas = element("canvas", { role: "img", "aria-label": `${TITLES[role]}, ${plane}` });
    const label = element("span", { class: "slice" });
    const letters = [...EDGES[plane]].map((letter, at) => element("span", { class: `edge ${SIDES[at]}` }, letter));
    const lines = SIDES.map((side) => element("i", { class: side }));
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line"), drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 1 1", preserveAspectRatio: "none", class: "ruler", "aria-hidden": "true" })) drawing.setAttribute(name, value);
    drawing.append(line);
    const length = element("em", { hidden: true });
    const made = element("div", { class: "frame" }, canvas, ...lines, drawing, length);
    made.style.setProperty("--aspect", (shape[across] * spacing[across]) / (shape[down] * spacing[down]));
    const cell = element("div", { class: "plane", "data-plane": plane, "data-main": String(plane === state.main) }, made, ...letters, label,
      plane === state.main && (PAIRS[role] || role in MAPS) ? colourBar(role) : null);
    const frame = { role, plane, canvas, element: made, cell, label, line, length };
    tools.listen(frame);
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

  // Values where the pointer is, or else at the crosshair, of all images in that plane.
  function readOut() {
    const { plane, place } = state.pointed || { plane: state.main, place: state.cursor };
    const [across, down, normal] = AXES[plane], values = {};
    for (const role of Object.keys(state.info.images)) {
      const found = planes.find(role, plane, place[normal]);
      if (found) values[role] = valueAt(found, place[down] * found.columns + place[across]);
    }
    for (const role of shown()) {
      const pair = PAIRS[role];
      const value = pair ? values[pair[1]] - values[pair[0]] : values[role];
      const output = root.querySelector(`output[data-role="${role}"]`);
      if (output) output.textContent = value === undefined || Number.isNaN(value) ? "–" : `${figure(value, 5)} ${unitOf(role)}`.trim();
    }
    part("place").textContent = `${millimetres(place)} · voxel ${place.map((at) => at + 1).join(", ")}`;
    const axis = AXES[state.main][2], slider = part("slice");
    Object.assign(slider, { max: state.info.shape[axis], value: state.cursor[axis] + 1 });
    slider.setAttribute("aria-valuetext", `${state.main} slice ${state.cursor[axis] + 1} of ${state.info.shape[axis]}`);
    part("zoom").textContent = `${Math.round(state.zoom * 100)} %`;
    showBars();
  }

  // Millimetres in the patient's space, towards these sides.
  function millimetres(place) {
    const sides = ["RL", "AP", "SI"], at = [...place, 1];
    const [x, y, z] = state.info.toSpace.slice(0, 3).map((row) => row.reduce((sum, step, axis) => sum + step * at[axis], 0));
    return [-x, -y, -z].map((value, axis) => `${sides[axis][value > 0 ? 1 : 0]} ${Math.abs(value).toFixed(1)}`).join("  ") + " mm";
  }

  // -- The study ----------------------------------------------------------------------------

  async function open(study) {
    part("comment").blur();  // so that it is stored for the study that is left
    const opened = ++state.opened;
    Object.assign(state, { study, info: null, windows: {}, presets: {}, stride: 1, zoom: 1, centre: [0.5, 0.5, 0.5], pointed: null, ruler: null });
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
    const { study } = state, isWaiting = marks.isWaiting(study);
    for (const button of root.querySelectorAll("[data-mark]")) {
      const isChosen = button.dataset.mark === study.mark;
      button.setAttribute("aria-pressed", isChosen ? (isWaiting ? "mixed" : "true") : "false");
    }
    const comment = part("comment");
    if (document.activeElement !== comment || comment.dataset.study !== String(study.number)) comment.value = study.comment;
    comment.dataset.study = study.number;
    comment.classList.toggle("waiting", marks.isWaiting(study, "comment"));
    const marked = page.studies.filter((one) => one.mark).length;
    part("progress").textContent = isWaiting || marks.isWaiting(study, "comment") ? "Not stored yet" : `${marked} of ${page.studies.length} marked`;
    part("others").replaceChildren(...(study.others || []).map(([reader, mark, words]) => element("p", {}, element("b", {}, reader), `: ${mark || "no mark"}${words ? `, “${words}”` : ""}`)));
  }

  function showWindows() {
    const singles = shown().filter((role) => !isGrey(role));
    const focused = part("windows").contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    part("windows").replaceChildren(...singles.map((role) => {
      const ends = windowOf(role), presets = PAIRS[role] ? [] : state.info.images[role].presets, chosen = state.presets[role] || (state.windows[role] ? "own" : "");
      const input = (at, label) => element("input", { type: "number", step: "any", value: Number(ends[at].toPrecision(4)), "aria-label": `${label} of ${TITLES[role]}`,
        disabled: PAIRS[role] && at === 0, onchange: (event) => setWindow(role, at ? [windowOf(role)[0], event.target.valueAsNumber] : [event.target.valueAsNumber, windowOf(role)[1]]) });
      const options = [["", "Automatic"], ...presets.map(([name]) => [name, name]), ...(chosen === "own" ? [["own", "Own"]] : [])];
      return element("div", {}, element("span", {}, TITLES[role]), input(0, "Black"), input(1, "White"),
        presets.length ? element("select", { "aria-label": `Window of ${TITLES[role]}`, onchange: (event) => choosePreset(role, event.target.value) },
          ...options.map(([value, text]) => element("option", { value, selected: value === chosen }, text))) : null);
    }));
    if (focused) part("windows").querySelector(`[aria-label="${focused}"]`)?.focus();
    part("levels").hidden = page.mode !== "file";
    part("together").checked = state.isOneWindow;
  }

  function choosePreset(role, name) {
    const [, low, high] = state.info.images[role].presets.find(([one]) => one === name) || [null, ...automatic(role)];
    setWindow(role, [low, high], name);
  }

  // One window for scan, result and truth if the reader chose that.
  function setWindow(role, [low, high], preset = "") {
    if (!(high > low)) return;
    const all = state.isOneWindow && ONE_WINDOW.includes(role) ? ONE_WINDOW : [role];
    for (const one of all) {
      state.windows[one] = PAIRS[one] ? [-high, high] : [low, high];
      state.presets[one] = state.info.images[one]?.presets.some(([name]) => name === preset) ? preset : "";
    }
    showWindows();
    draw();
  }

  function shareWindow(isOne) {
    state.isOneWindow = isOne;
    if (state.info?.images.result && isOne) setWindow("result", windowOf("result"), state.presets.result);
    else showWindows();
  }

  // -- Commands -------------------------------------------------------------------------------

  function moveTo(axis, index) {
    const to = Math.min(Math.max(Math.round(index), 0), state.info.shape[axis] - 1);
    if (to === state.cursor[axis]) return;
    if (axis === AXES[state.main][2]) state.stride = to - state.cursor[axis];
    state.cursor[axis] = to;
    state.pointed = null;
    draw();
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

  function openUnmarked() {
    const found = list.nextUnmarked(state.study);
    if (found) go(`#${found.number}`);
    else announce("Every other study has a mark");
  }

  function resetWindows() { Object.assign(state, { windows: {}, presets: {}, isOneWindow: false }); if (state.info) { showWindows(); draw(); } }

  part("back").addEventListener("click", close);
  part("previous").addEventListener("click", () => step(-1));
  part("next").addEventListener("click", () => step(1));
  part("help").addEventListener("click", () => part("keys").showModal());
  part("unmarked").addEventListener("click", openUnmarked);
  part("comment").addEventListener("input", () => marks.type(state.study, part("comment").value));
  part("comment").addEventListener("change", () => marks.put(state.study, { comment: part("comment").value.trim() }));
  part("slice").addEventListener("input", (event) => moveTo(AXES[state.main][2], event.target.valueAsNumber - 1));
  part("together").addEventListener("change", (event) => shareWindow(event.target.checked));
  part("mix").addEventListener("input", (event) => { state.mix = event.target.valueAsNumber / 100; draw(); });
  part("grey").addEventListener("change", (event) => { state.grey = event.target.checked; layOut(); });
  part("reset").addEventListener("click", resetWindows);
  for (const button of root.querySelectorAll("[data-mark]")) button.addEventListener("click", () => mark(button.dataset.mark));
  for (const button of root.querySelectorAll("[data-mode]")) button.addEventListener("click", () => setMode(button.dataset.mode));
  for (const button of root.querySelectorAll("[data-turn]")) button.addEventListener("click", () => turn(button.dataset.turn));
  for (const event of ["marked", "read"]) document.addEventListener(event, () => { if (state.study) showMark(); });

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
  return {
    AXES, PAIRS, PLANES, close, draw, follow, isGrey, mark, moveTo, openUnmarked, part, readOut, resetWindows, root, scroll, setMode, setWindow,
    shareWindow, shown, showRuler, state, step, turn, windowOf,
  };
})();
