// The form survives a reload and a restarted server: settings as text, the picture as the very file that was given.
import { keep, recall } from '../storage.js';
import { facts } from './component.js';
import { givePicture } from './pictures.js';

let mayKeep = false; // only after what was kept has been put back, else the defaults would overwrite it

/** Return the settings that were kept, as JSON. */
export const keptSettings = () => recall('form');

/** Begin to keep the settings: what was kept has been put back. */
export function restored() {
  mayKeep = true;
}

/** Keep the settings, but not what is this machine's own: another one, or another card, has its own. */
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

let isPictureKnown = false; // until the kept picture was looked for, an empty field says nothing

/** Keep the picture that the field holds, or none. */
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

/** Put the picture that was kept back into the field. */
export async function restorePicture() {
  try {
    const kept = await inPictures('readonly', (store) => store.get('start'));
    if (kept && !isPictureKnown) await givePicture(new File([kept.content], kept.name, { type: kept.type }));
  } catch (error) {
    console.info('The picture is not put back:', error);
  }
  isPictureKnown = true;
}
