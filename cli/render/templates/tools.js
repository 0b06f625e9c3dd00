"use strict";
// Mouse, touch and keys of the viewer: crosshair, slices, zoom, pan, window and ruler.

const tools = (() => {
  const { AXES, PAIRS, PLANES, part, root, state } = viewer;
  const LARGEST_ZOOM = 20, ZOOM_STEP = 1.25, PIXELS_A_SLICE = 6;
  const TOOLS = ["cross", "slices", "pan", "window", "ruler"];
  let tool = "cross";

  // -- Zoom and pan, the same for all images ---------------------------------------------------

  const within = (low, value, high) => Math.min(Math.max(value, low), high);

  // The middle of the panes, as shares of the volume; at its ends nothing else can come into view.
  function centreOn(axis, share) {
    const half = 0.5 / state.zoom;
    state.centre[axis] = within(half, share, 1 - half);
  }

  // zoom: about a place that stays where it is on the screen, by its shares of a plane.
  function zoomTo(zoom, plane, at) {
    if (!state.info) return;
    const before = state.zoom, [across, down, normal] = AXES[plane];
    state.zoom = within(1, zoom, LARGEST_ZOOM);
    [across, down].forEach((axis, which) => centreOn(axis, at[which] - ((at[which] - state.centre[axis]) * before) / state.zoom));
    centreOn(normal, (state.cursor[normal] + 0.5) / state.info.shape[normal]);
    viewer.draw();
  }

  function zoomBy(factor) {
    if (!state.info) return;
    const [across, down] = AXES[state.main];
    zoomTo(state.zoom * factor, state.main, [across, down].map((axis) => (state.cursor[axis] + 0.5) / state.info.shape[axis]));
  }

  function pan(plane, shares) {
    AXES[plane].slice(0, 2).forEach((axis, which) => centreOn(axis, state.centre[axis] - shares[which]));
    viewer.draw();
  }

  function fit() { Object.assign(state, { zoom: 1, centre: [0.5, 0.5, 0.5] }); viewer.draw(); }

  // Keeps the crosshair in view.
  function follow(axis) {
    const share = (state.cursor[axis] + 0.5) / state.info.shape[axis], half = 0.5 / state.zoom;
    if (Math.abs(share - state.centre[axis]) > half * 0.9) centreOn(axis, share);
  }

  function move(which, by) {
    if (!state.info) return;
    const axis = AXES[state.main][which];
    viewer.moveTo(axis, state.cursor[axis] + by);
    follow(axis);
    if (state.ruler?.isOpen) { state.ruler.to = cursorIn(state.main); viewer.draw(); }
  }

  // -- Ruler and window ---------------------------------------------------------------------------

  const cursorIn = (plane) => AXES[plane].slice(0, 2).map((axis) => state.cursor[axis]);

  function startRuler(plane, place) {
    state.ruler = { plane, index: state.cursor[AXES[plane][2]], from: place, to: place };
    viewer.draw();
  }

  // By keys: from where the crosshair is to where it is moved.
  function measure() {
    if (!state.info) return;
    if (state.ruler?.isOpen) { state.ruler.isOpen = false; return; }
    startRuler(state.main, cursorIn(state.main));
    state.ruler.isOpen = true;
    announce("Ruler: move the crosshair by Shift and arrow keys, and press d");
  }

  function adjust(role, [low, high], wider, brighter) {
    if (viewer.isGrey(role)) return;
    const width = (high - low) * Math.exp(wider), level = (low + high) / 2 + brighter * (high - low);
    viewer.setWindow(role, PAIRS[role] ? [-width / 2, width / 2] : [level - width / 2, level + width / 2]);
  }

  function adjustAll(wider, brighter) {
    if (!state.info) return;
    const roles = viewer.shown().filter((role) => !PAIRS[role]);
    for (const role of state.isOneWindow ? roles.slice(0, 1) : roles) adjust(role, viewer.windowOf(role), wider, brighter);
  }

  function nextPreset() {
    const role = state.info && viewer.shown().find((one) => state.info.images[one]?.presets.length);
    if (!role) return;
    const { presets } = state.info.images[role], at = presets.findIndex(([name]) => name === state.presets[role]);
    const [name] = presets[(at + 1) % presets.length];
    for (const one of viewer.shown()) {
      const found = state.info.images[one]?.presets.find(([other]) => other === name);
      if (found) viewer.setWindow(one, found.slice(1), name);
    }
    announce(`Window: ${name}`);
  }

  // -- Pointers -------------------------------------------------------------------------------------

  function listen({ role, plane, element: shown, cell }) {
    const [across, down, normal] = AXES[plane], pointers = new Map();
    let gesture = null, turned = 0;

    const shares = ({ x, y }) => { const box = shown.getBoundingClientRect(); return [(x - box.left) / box.width, (y - box.top) / box.height]; };
    const places = (share) => [across, down].map((axis, which) => share[which] * state.info.shape[axis] - 0.5);
    const at = (event) => ({ x: event.clientX, y: event.clientY });

    function start(event) {
      const isWindowing = event.button === 2 || event.shiftKey, kind = event.button === 1 ? "pan" : isWindowing ? "window" : tool;
      gesture = { kind, from: at(event), window: viewer.windowOf(role), index: state.cursor[normal] };
      if (kind === "ruler") startRuler(plane, places(shares(at(event))));
      if (kind === "cross") drag(event);
    }

    function drag(event) {
      const place = at(event), { from, kind } = gesture;
      const box = shown.getBoundingClientRect();
      if (kind === "cross") places(shares(place)).forEach((index, which) => viewer.moveTo(AXES[plane][which], index));
      else if (kind === "slices") viewer.moveTo(normal, gesture.index + Math.trunc((place.y - from.y) / PIXELS_A_SLICE));
      else if (kind === "pan") { pan(plane, [(place.x - from.x) / box.width, (place.y - from.y) / box.height]); gesture.from = place; }
      else if (kind === "window") adjust(role, gesture.window, (place.x - from.x) / 200, (place.y - from.y) / 300);
      else if (kind === "ruler") { state.ruler.to = places(shares(place)); viewer.draw(); }
      else if (kind === "pinch") pinch(box);
    }

    function pinch(box) {
      const [one, other] = pointers.values(), middle = { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 };
      const apart = Math.hypot(one.x - other.x, one.y - other.y) || 1;
      if (gesture.middle) {
        pan(plane, [(middle.x - gesture.middle.x) / box.width, (middle.y - gesture.middle.y) / box.height]);
        zoomTo((state.zoom * apart) / gesture.apart, plane, shares(middle));
      }
      Object.assign(gesture, { middle, apart });
    }

    cell.addEventListener("pointerdown", (event) => {
      if (!state.info) return;
      cell.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, at(event));
      if (pointers.size === 1) start(event);
      else gesture = { kind: pointers.size === 2 ? "pinch" : "none" };
      event.preventDefault();
    });
    cell.addEventListener("pointermove", (event) => {
      if (!state.info) return;
      if (pointers.has(event.pointerId)) pointers.set(event.pointerId, at(event));
      if (gesture) { drag(event); return; }
      const place = places(shares(at(event))).map(Math.round), inside = place.every((index, which) => index >= 0 && index < state.info.shape[AXES[plane][which]]);
      const whole = [...state.cursor];
      whole[across] = place[0];
      whole[down] = place[1];
      state.pointed = inside ? { plane, place: whole } : null;
      viewer.readOut();
    });
    cell.addEventListener("pointerleave", () => { state.pointed = null; if (state.info) viewer.readOut(); });
    for (const end of ["pointerup", "pointercancel"]) cell.addEventListener(end, (event) => {
      pointers.delete(event.pointerId);
      gesture = pointers.size ? { kind: "none" } : null;
    });
    cell.addEventListener("contextmenu", (event) => event.preventDefault());
    cell.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (!state.info) return;
      const turn = event.deltaMode ? event.deltaY * 40 : event.deltaY;
      if (event.ctrlKey) { zoomTo(state.zoom * Math.exp(-turn / 300), plane, shares(at(event))); return; }
      turned += turn;
      const steps = Math.trunc(turned / 40);
      turned -= steps * 40;
      if (steps) viewer.moveTo(normal, state.cursor[normal] + steps);
    }, { passive: false });
    cell.addEventListener("dblclick", () => viewer.turn(plane));
  }

  // -- Keys -----------------------------------------------------------------------------------------

  function choose(name) {
    tool = name;
    for (const button of root.querySelectorAll("[data-tool]")) button.setAttribute("aria-pressed", button.dataset.tool === name);
    root.dataset.using = name;
  }

  const SHIFTED = { ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(1, -1), ArrowDown: () => move(1, 1) };

  const KEYS = {
    ArrowUp: () => viewer.scroll(-1), ArrowDown: () => viewer.scroll(1), PageUp: () => viewer.scroll(-10), PageDown: () => viewer.scroll(10),
    ArrowLeft: () => viewer.step(-1), ArrowRight: () => viewer.step(1), p: () => viewer.step(-1), n: () => viewer.step(1), u: viewer.openUnmarked,
    1: () => viewer.mark("good"), 2: () => viewer.mark("doubtful"), 3: () => viewer.mark("bad"), 0: () => viewer.mark(null),
    c: () => part("comment").focus(), s: () => viewer.setMode("side"), o: () => viewer.setMode("overlay"), k: () => viewer.setMode("checkerboard"),
    v: () => viewer.turn(PLANES[(PLANES.indexOf(state.main) + 1) % PLANES.length]), r: viewer.resetWindows, b: nextPreset,
    t: () => viewer.shareWindow(!state.isOneWindow), "+": () => zoomBy(ZOOM_STEP), "=": () => zoomBy(ZOOM_STEP), "-": () => zoomBy(1 / ZOOM_STEP), f: fit, d: measure,
    "[": () => adjustAll(-0.1, 0), "]": () => adjustAll(0.1, 0), ",": () => adjustAll(0, -0.05), ".": () => adjustAll(0, 0.05),
    x: () => choose("cross"), l: () => choose("slices"), g: () => choose("pan"), w: () => choose("window"), m: () => choose("ruler"),
    "?": () => part("keys").showModal(), Escape: viewer.close,
  };

  document.addEventListener("keydown", (event) => {
    if (root.hidden || event.ctrlKey || event.metaKey || event.altKey || isAsking()) return;
    if (event.target.matches("textarea, input:not([type=checkbox]):not([type=range])")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.target.matches("input[type=range], select") && event.key.startsWith("Arrow")) return;
    if (event.target.matches("select") && /^[a-z]$/i.test(event.key)) return;
    const act = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  for (const button of root.querySelectorAll("[data-tool]")) button.addEventListener("click", () => choose(button.dataset.tool));
  part("closer").addEventListener("click", () => zoomBy(ZOOM_STEP));
  part("farther").addEventListener("click", () => zoomBy(1 / ZOOM_STEP));
  part("fit").addEventListener("click", fit);
  choose(TOOLS[0]);
  return { listen };
})();

viewer.follow();
