// The form survives a reload and a restarted server: settings as text, the picture as the very file that was given.
const FORM = 'longtake.form';
let mayKeep = false; // only after what was kept has been put back, else the defaults would overwrite it

shared.restored = () => { mayKeep = true; };
shared.keep = (names, values) => {
  if (!mayKeep) return;
  // What is this machine's own is not kept: another one, or another card, has its own.
  const defaults = props.value?.defaults || {};
  const pairs = names.map((name, index) => [name, values[index]]);
  const settings = Object.fromEntries(pairs.filter(([name, value]) => value !== defaults[name]));
  try { localStorage.setItem(FORM, JSON.stringify(settings)); } catch { /* not allowed to keep anything */ }
};

function pictures(mode, use) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open('longtake', 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore('pictures');
    opening.onerror = () => fail(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const deed = database.transaction('pictures', mode);
      const asked = use(deed.objectStore('pictures'));
      deed.oncomplete = () => { database.close(); done(asked.result); };
      deed.onabort = () => { database.close(); fail(deed.error); };
    };
  });
}

let pictureKnown = false; // until the kept picture was looked for, an empty field says nothing
shared.keepPicture = async (value) => {
  try {
    if (value?.url) {
      pictureKnown = true;
      const content = await (await fetch(value.url)).blob();
      const name = value.orig_name || value.path.split('/').pop();
      await pictures('readwrite', (store) => store.put({ content, name, type: value.mime_type || content.type }, 'start'));
    } else if (pictureKnown) await pictures('readwrite', (store) => store.delete('start'));
    document.documentElement.dataset.kept = value?.url ? 'picture' : '';
  } catch (error) { console.info('The picture is not kept:', error); }
};

shared.restorePicture = async () => {
  try {
    const kept = await pictures('readonly', (store) => store.get('start'));
    if (kept && !pictureKnown) await shared.givePicture(new File([kept.content], kept.name, { type: kept.type }));
  } catch (error) { console.info('No picture is put back:', error); }
  pictureKnown = true;
};
