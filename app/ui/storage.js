// The texts that this browser keeps between two visits. A private window may refuse; then nothing is kept.

const key = (name) => `longtake.${name}`;

/** Return the text that was kept under the name, or the fallback. */
export function recall(name, fallback = null) {
  try {
    return localStorage.getItem(key(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Return the list of texts that was kept under the name, or an empty list if anything else was. */
export function recallTexts(name) {
  try {
    const kept = JSON.parse(recall(name));
    return Array.isArray(kept) ? kept.filter((item) => typeof item === 'string' && item) : [];
  } catch {
    return [];
  }
}

/** Keep a text under the name. */
export function keep(name, text) {
  try {
    localStorage.setItem(key(name), text);
  } catch { /* The browser does not allow it. */ }
}
