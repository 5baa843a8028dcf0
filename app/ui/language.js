// The page's language: its choice, and the texts of the scripts, which are translated where they appear.

const texts = JSON.parse(document.querySelector('#texts').textContent);
const ATTRIBUTES = ['alt', 'aria-label', 'data-hint', 'data-many', 'data-missing', 'data-note', 'data-state', 'label', 'placeholder', 'title'];
const HOLDER = /\{\w+\}/g;
const YEAR = 31536000; // seconds

const templates = Object.keys(texts).filter((text) => text.match(HOLDER)).map((text) => [
  new RegExp(`^${text.split(HOLDER).map(RegExp.escape).join('((?:(?! · ).)*?)')}$`), text.match(HOLDER), texts[text],
]);

function fitting(text) {
  for (const [pattern, holders, translation] of templates) {
    const values = text.match(pattern);
    if (values) return holders.reduce((all, holder, index) => all.replace(holder, () => translated(values[index + 1])), translation);
  }
  return null;
}

/** Translate a text of the scripts. Others, such as those that the server has translated, stay as they are. */
export function translated(text) {
  if (!text || Object.hasOwn(texts, text)) return texts[text] ?? text;
  const parts = text.split(' · ');
  return fitting(text) ?? (parts.length > 1 ? parts.map(translated).join(' · ') : text);
}

function translateText(node) {
  const words = node.data.trim().replace(/[:,]$/, '');
  const translation = translated(words);
  if (translation !== words && !node.parentElement?.closest('[translate=no], textarea')) node.data = node.data.replace(words, () => translation);
}

function translateElement(element) {
  for (const name of ATTRIBUTES) {
    const translation = translated(element.getAttribute(name));
    if (translation !== element.getAttribute(name)) element.setAttribute(name, translation);
  }
}

function translateAll(root) {
  if (root.nodeType === Node.TEXT_NODE) return translateText(root);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = root; node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) translateText(node);
    else if (node.nodeType === Node.ELEMENT_NODE) translateElement(node);
  }
  return null;
}

/** Offer the languages, and translate what appears before it is painted. */
export default function startLanguage() {
  const choice = document.querySelector('#language');
  choice.addEventListener('change', () => {
    document.cookie = `language=${choice.value}; max-age=${YEAR}; path=/; samesite=strict`;
    window.location.reload();
  });
  if (!Object.keys(texts).length) return;
  new MutationObserver((changes) => {
    for (const change of changes) {
      if (change.type === 'attributes') translateElement(change.target);
      else if (change.type === 'characterData') translateText(change.target);
      else change.addedNodes.forEach(translateAll);
    }
  }).observe(document.documentElement, { subtree: true, childList: true, characterData: true, attributeFilter: ATTRIBUTES });
}
