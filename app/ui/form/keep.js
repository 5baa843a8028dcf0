// The storage of the form in the browser, for a reload or a restarted server: settings as text, pictures as files.
import { keep, recall } from '../storage.js';
import { facts } from './component.js';
import { handOver, upload } from './uploaded.js';

let mayKeep = false; // true once the kept settings are back; before, the defaults would overwrite them

/** Return the settings that were kept, as JSON. */
export const keptSettings = () => recall('form');

/** Begin to keep the settings, now that the kept ones have been put back. */
export function restored() {
  mayKeep = true;
}

/** Keep the settings, but not this machine's own values, since another machine or card has others. */
export function keepSettings(names, ...values) {
  if (!mayKeep) return;
  const defaults = facts().defaults || {};
  const pairs = names.map((name, index) => [name, values[index]]);
  keep('form', JSON.stringify(Object.fromEntries(pairs.filter(([name, value]) => value !== defaults[name]))));
}

function inPictures(mode, use) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open('longtake', 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore('pictures');
    opening.onerror = () => fail(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const transaction = database.transaction('pictures', mode);
      const request = use(transaction.objectStore('pictures'));
      transaction.oncomplete = () => { database.close(); done(request.result); };
      transaction.onabort = () => { database.close(); fail(transaction.error); };
    };
  });
}

let arePicturesKnown = false; // an empty field means nothing until the kept pictures have been looked for
const fieldOf = (key) => (key === 'start' ? 'image' : key);
const keyOf = (name) => (name === 'image' ? 'start' : name); // earlier versions kept only one

/** Keep the picture that the field of a setting holds, if any. */
export async function keepPicture(name, value) {
  try {
    if (value?.url) {
      arePicturesKnown = true;
      const content = await (await fetch(value.url)).blob();
      const file = value.orig_name || value.path.split('/').pop();
      const kept = { content, name: file, type: value.mime_type || content.type };
      await inPictures('readwrite', (store) => store.put(kept, keyOf(name)));
    } else if (arePicturesKnown) await inPictures('readwrite', (store) => store.delete(keyOf(name)));
    document.documentElement.dataset.kept = value?.url ? 'picture' : '';
  } catch (error) {
    console.info('The picture is not kept:', error);
  }
}

/** Put the kept pictures back into their fields, and return those that were, by setting. */
export async function restorePictures() {
  const found = {};
  try {
    for (const key of await inPictures('readonly', (store) => store.getAllKeys())) {
      const kept = await inPictures('readonly', (store) => store.get(key));
      if (arePicturesKnown || !kept) continue;
      found[fieldOf(key)] = await upload(new File([kept.content], kept.name, { type: kept.type }));
      handOver(found[fieldOf(key)], fieldOf(key));
    }
  } catch (error) {
    console.info('The pictures are not put back:', error);
  }
  arePicturesKnown = true;
  return found;
}
