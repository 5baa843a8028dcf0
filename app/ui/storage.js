// The texts that this browser keeps between two visits, or only over a reload: those in its `sessionStorage`. A private
// window may refuse; then nothing is kept.

const key = (name) => `longtake.${name}`;

/** Return the text that was kept under the name, or null. */
export function recall(name, area = 'localStorage') {
  try {
    return window[area].getItem(key(name));
  } catch {
    return null;
  }
}

/** Return the value whose JSON was kept under the name; null if there is none, or it is damaged. */
export function recallValue(name, area) {
  try {
    return JSON.parse(recall(name, area));
  } catch {
    return null;
  }
}

/** Return the texts that were kept under the name. */
export const recallTexts = (name) => [recallValue(name)].flat().filter((one) => typeof one === 'string');

/** Keep a text under the name; null takes it away. */
export function keep(name, text, area = 'localStorage') {
  try {
    if (text === null) window[area].removeItem(key(name));
    else window[area].setItem(key(name), text);
  } catch { /* The browser does not allow it. */ }
}
