// The storage of the form in the browser, for a reload or a restarted server: settings as text, the picture as a file.
import { keep, recall } from '../storage.js';
import { facts } from './component.js';
import { givePicture } from './pictures.js';

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

let isPictureKnown = false; // an empty field means nothing until the kept picture has been looked for

/** Keep the picture that the field holds, if any. */
export async function keepPicture(value) {
  try {
    if (value?.url) {
      isPictureKnown = true;
      const content = await (await fetch(value.url)).blob();
      const name = value.orig_name || value.path.split('/').pop();
      const kept = { content, name, type: value.mime_type || content.type };
      await inPictures('readwrite', (store) => store.put(kept, 'start'));
    } else if (isPictureKnown) await inPictures('readwrite', (store) => store.delete('start'));
    document.documentElement.dataset.kept = value?.url ? 'picture' : '';
  } catch (error) {
    console.info('The picture is not kept:', error);
  }
}

/** Put the kept picture back into the field. */
export async function restorePicture() {
  try {
    const kept = await inPictures('readonly', (store) => store.get('start'));
    if (kept && !isPictureKnown) await givePicture(new File([kept.content], kept.name, { type: kept.type }));
  } catch (error) {
    console.info('The picture is not put back:', error);
  }
  isPictureKnown = true;
}
