// What follows from each change of the form, and its storage in the browser, for another visit: settings as text,
// pictures as files.
import { keep, recall } from '../storage.js';
import { describe, facts } from './describe.js';
import { check } from './notice.js';
import { pictureNames, values } from './values.js';

let mayKeep = false; // true once the kept settings are back; before, the defaults would overwrite them

/** Return the settings that were kept, as JSON. */
export const keptSettings = () => recall('form') ?? '';

/** Begin to keep the settings, now that the kept ones have been put back. */
export function restored() {
  mayKeep = true;
}

// This machine's own values are not kept, since another machine or card has others.
function keepSettings() {
  if (!mayKeep) return;
  const [defaults, pictures] = [facts().defaults ?? {}, pictureNames()];
  const own = Object.entries(values()).filter(([name, value]) => value !== defaults[name] && !pictures.includes(name));
  keep('form', JSON.stringify(Object.fromEntries(own)));
}

/** Act on a change of the form's values. */
export function changed() {
  keepSettings();
  check();
  describe();
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

const keyOf = (name) => (name === 'image' ? 'start' : name); // earlier versions kept only one

/** Keep the picture of a setting; null for none. */
export async function keepPicture(name, file) {
  try {
    if (!file) await inPictures('readwrite', (store) => store.delete(keyOf(name)));
    else await inPictures('readwrite', (store) => store.put({ content: file, name: file.name, type: file.type }, keyOf(name)));
    document.documentElement.dataset.kept = file ? 'picture' : '';
  } catch (error) {
    console.info('The picture is not kept:', error);
  }
}

/** Return the kept picture of a setting as a file, or null. */
export async function keptPicture(name) {
  try {
    const kept = await inPictures('readonly', (store) => store.get(keyOf(name)));
    return kept ? new File([kept.content], kept.name, { type: kept.type }) : null;
  } catch (error) {
    console.info('The picture is not put back:', error);
    return null;
  }
}
