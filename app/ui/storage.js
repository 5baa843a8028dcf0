// The texts that this browser keeps between two visits, or over a reload, if it allows that.

const key = (name) => `longtake.${name}`;

export function recall(name, area = 'localStorage') {
  try {
    return window[area].getItem(key(name));
  } catch {
    return null;
  }
}

export function recallValue(name, area) {
  try {
    return JSON.parse(recall(name, area));
  } catch {
    return null;
  }
}

export const recallTexts = (name) => [recallValue(name)].flat().filter((text) => typeof text === 'string');

export function keep(name, text, area = 'localStorage') {
  try {
    if (text === null) window[area].removeItem(key(name));
    else window[area].setItem(key(name), text);
  } catch { /* The browser does not allow it. */ }
}
