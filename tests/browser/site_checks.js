// What site_checks.py asks of a page. Each function returns the list of problems that it found.

const named = (e) => `<${e.tagName.toLowerCase()} class="${e.className}">`;
const start = (text) => text.trim().slice(0, 60);

function textNodes() {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) found.push(walk.currentNode);
  return found;
}

function remembered(f) {
  const known = new Map();
  return (x) => known.get(x) ?? known.set(x, f(x)).get(x);
}

function unfold() {
  for (const e of document.querySelectorAll("details")) e.open = true;
}

// \( \[ $$ $x$ of formulas, ]( of links, ** of bold type
const SOURCE = /\\\(|\\\[|\$\$|\$\S[^$\n]*\$|\]\(|\*\*/;

async function markup() {
  const problems = [];
  for (const e of document.querySelectorAll(".math"))
    if (!e.querySelector(".katex")) problems.push(`not set: ${start(e.textContent)}`);
  for (const e of document.querySelectorAll(".katex-error"))
    problems.push(`KaTeX error: ${start(e.textContent)}`);
  const elsewhere = "pre, code, script, style, .katex, .katex-error, .math";
  for (const node of textNodes())
    if (!node.parentElement.closest(elsewhere) && SOURCE.test(node.data))
      problems.push(`raw: ${start(node.data)}`);
  await document.fonts.ready;
  for (const font of document.fonts)
    if (font.status === "error") problems.push(`font ${font.family} is missing`);
  return problems;
}

async function pictures() {
  const problems = [];
  for (const e of document.images) {
    const name = e.src.slice(-80).split("/").pop();
    e.loading = "eager";
    await e.decode().catch(() => {});
    if (!e.naturalWidth) problems.push(`picture ${name} is missing`);
    // Sphinx falls back on the path of the file.
    if (!e.alt.trim() || e.alt.endsWith(name)) problems.push(`picture ${name} has no alt text`);
  }
  for (const e of document.querySelectorAll("main svg")) {
    const decoration = e.closest("[aria-hidden=true], a, button, .katex");
    if (!decoration && !e.matches("[aria-label], [aria-labelledby]") && !e.querySelector("title"))
      problems.push(`drawing ${e.id} has no label`);
  }
  return problems;
}

// https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
function contrast() {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = remembered((colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  });
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
  const behind = remembered((e) =>
    e ? over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [255, 255, 255],
  );
  const opacity = remembered((e) =>
    e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1,
  );
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  unfold();
  for (const fade of document.getAnimations()) fade.finish();
  const problems = new Map();
  for (const node of textNodes()) {
    const e = node.parentElement;
    const box = e.getBoundingClientRect();
    const shown = e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!node.data.trim() || !shown || box.width < 2 || box.height < 2) continue;
    if (e.closest(":disabled, script, style, .katex-mathml")) continue;
    const style = getComputedStyle(e);
    const back = behind(e);
    const [r, g, b, a] = rgba(style.color);
    const front = over([r, g, b, a * opacity(e)], back);
    const [low, high] = [luminance(front), luminance(back)].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const colours = `${style.color} on ${back.map(Math.round)}: ${ratio.toFixed(2)}`;
      problems.set(colours, `${colours} in ${named(e)}: ${start(node.data)}`);
    }
  }
  return [...problems.values()];
}

function sideways() {
  const root = document.documentElement;
  const width = root.clientWidth;
  const problems = [];
  if (root.scrollWidth > width)
    problems.push(`the page is ${root.scrollWidth} wide on a screen of ${width}`);
  const boxed = (e) =>
    e !== document.body && (getComputedStyle(e).overflowX !== "visible" || boxed(e.parentElement));
  for (const e of document.querySelectorAll("article *")) {
    const right = e.getBoundingClientRect().right;
    if (right <= width + 1 || !e.checkVisibility() || e.closest(".katex-mathml")) continue;
    if (!boxed(e.parentElement)) problems.push(`${named(e)} ends at ${Math.round(right)}`);
  }
  return problems;
}

function codeWidth() {
  unfold();
  const problems = [];
  for (const e of document.querySelectorAll("main pre")) {
    const longest = Math.max(...e.textContent.split("\n").map((line) => line.length));
    if (longest <= 80 && e.scrollWidth > e.clientWidth)
      problems.push(`${longest} columns need scrolling: ${start(e.textContent)}`);
  }
  return problems;
}
