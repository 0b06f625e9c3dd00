"use strict";
// What all scripts of the page share: its data, and the source of planes and pictures.

const page = JSON.parse(document.getElementById("page-data").textContent);
const GRADES = ["good", "doubtful", "bad"];

// A study has no id if that is its name, and no others if there are none.
const idOf = (study) => study.id ?? study.name;
const isAsking = () => document.querySelector("dialog[open]") !== null;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  for (const [letter, unit] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= unit && size >= 10 ** (digits + 1)) return `${(value / unit).toPrecision(digits)}${letter}`;
  }
  if (Number.isInteger(value) || size >= 10 ** digits) return String(Math.round(value));
  if (size >= 1e-3) return value.toPrecision(digits);
  return size >= 1e-5 ? value.toFixed(5) : value.toExponential(0);
}

const ARRAYS = [Int8Array, Uint8Array, Int16Array, Uint16Array, Int32Array, Float32Array];

// Planes from the server, a few at a time; the browser never holds a volume.
const serverSource = {
  async study(study) {
    const answer = await fetch(`study/${study.number}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  },

  // The server reads a study that will be opened next.
  ahead(study) { fetch(`ahead/${study.number}`).catch(() => {}); },

  async plane(study, role, plane, index) {
    const answer = await fetch(`plane/${study.number}/${role}/${plane}/${index}`);
    if (!answer.ok) throw new Error(await answer.text());
    const bytes = await answer.arrayBuffer();
    const head = new DataView(bytes);
    return {
      rows: head.getUint32(0, true), columns: head.getUint32(4, true),
      values: new ARRAYS[head.getUint32(8, true)](bytes, 32),
      slope: head.getFloat64(16, true), intercept: head.getFloat64(24, true),
    };
  },
};

// Levels of whole small volumes, from a script beside the page, as a page from a disk may fetch nothing.
const fileSource = {
  waiting: new Map(),
  number: -1,  // of the study that was asked for last; others may arrive after it
  volumes: null,

  study(study) {
    this.number = study.number;
    return new Promise((resolve, reject) => {
      const script = element("script", { src: `${study.number}.js` });
      script.onerror = () => reject(new Error("its file is missing"));
      this.waiting.set(study.number, resolve);
      script.onload = () => script.remove();
      document.head.append(script);
    });
  },

  ahead() {},

  receive(number, info, levels) {
    if (number !== this.number) return;
    this.volumes = {};
    for (const [role, text] of Object.entries(levels)) this.volumes[role] = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    this.waiting.get(number)?.(info);
    this.info = info;
  },

  async plane(study, role, plane, index) {
    const [x, y, z] = this.info.shape, volume = this.volumes[role];
    const [low, high] = this.info.images[role].levels;
    const scale = { slope: (high - low) / 255, intercept: low };
    if (plane === "axial") return { rows: y, columns: x, values: volume.subarray(index * x * y, (index + 1) * x * y), ...scale };
    const columns = plane === "coronal" ? x : y;
    const values = new Uint8Array(z * columns);
    for (let row = 0; row < z; row++) {
      const start = row * x * y + (plane === "coronal" ? index * x : index), step = plane === "coronal" ? 1 : x;
      for (let column = 0; column < columns; column++) values[row * columns + column] = volume[start + column * step];
    }
    return { rows: z, columns, values, ...scale };
  },
};

const source = page.mode === "server" ? serverSource : fileSource;

// Called by the script of a study in an export.
function receiveStudy(number, info, levels) {
  fileSource.receive(number, info, levels);
}

// Pictures are shown when they are scrolled to.
const pictures = {
  stored: null,

  of(study) {
    if (!study.picture) return null;
    if (page.mode === "server") return `picture/${study.number}`;
    this.stored ??= JSON.parse(document.getElementById("pictures")?.textContent || "{}");
    const found = this.stored[study.number];
    return found ? `data:image/webp;base64,${found}` : null;
  },

  watcher: new IntersectionObserver((entries, watcher) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      target.src = pictures.of(target.study);
    }
  }, { rootMargin: "400px" }),

  image(study) {
    const image = element("img", { alt: `Middle slices of ${study.name}`, width: 420, height: 140 });
    image.study = study;
    this.watcher.observe(image);
    return image;
  },
};
