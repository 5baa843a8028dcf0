// The frame that the stage shows, which a user saves, or uses as a picture of the next video.
import { onPress, saveFile } from '../elements.js';
import { putPicture } from '../form/describe.js';
import { upload } from '../server.js';
import { goTo, place } from '../tabs.js';

export function prepareStill(fold, player, report) {
  let scene = {};

  async function take() {
    const { first, video } = scene;
    // The first frame of some videos, and a picture, lie on the disk as they were before they were compressed.
    const isFirst = first && (video.isPicture || player.at === 0);
    const content = isFirst ? await fetch(first).then((answer) => answer.blob()) : await player.frame();
    const name = video.name.replace(/[.][^.]+$/, video.isPicture ? '' : `-at-${player.at.toFixed(2)}-s`);
    return new File([content], `${name}.png`, { type: 'image/png' });
  }

  async function use(name) {
    const picture = await upload(await take());
    if (place()[0] !== 'create') goTo('create');
    putPicture(name, picture);
  }

  const on = (name, act) => onPress(fold.querySelector(`[data-use="${name}"]`), act, report);
  on('save', async () => saveFile(await take()));
  for (const name of ['image', 'end_image']) on(name, () => use(name));
  return (now) => {
    scene = now;
    fold.hidden = !now.video;
  };
}
