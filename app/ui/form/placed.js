// The tile of a section of the strip, with the picture that the section begins with.
import { addressOf, call, upload } from '../calls/call.js';
import { actOnce, make } from '../elements.js';
import { facts } from './describe.js';
import { makeMovable } from './moving.js';

/** A tile: a button that chooses a picture, or the picture, which is moved like the start picture's crop. */
export class Tile {
  element = make('div', { className: 'lt-placed' });
  #choose = make('button', { type: 'button', textContent: '+ Picture' });
  #image = make('img', { tabIndex: 0, draggable: false });
  #remove = make('button', { type: 'button', textContent: '×' });
  #input = make('input', { type: 'file', accept: 'image/*', hidden: true });
  #section = null;
  #crop = 0.5;
  #save;

  /** `save` is called with a section's place and its picture, `{ path, crop }` or null, and `report` with an error's text. */
  constructor(save, report) {
    this.#save = save;
    this.#image.setAttribute('role', 'slider');
    this.element.append(this.#choose, this.#image, this.#remove, this.#input);
    this.#choose.addEventListener('click', () => this.#input.click());
    this.#remove.addEventListener('click', () => { save(this.#section.place, null); this.#choose.focus(); });
    this.#input.addEventListener('change', () => actOnce(this.#choose, () => this.#take(), report));
    makeMovable(this.#image, {
      at: () => this.#crop, way: (x, y) => this.#wayOf(x, y), move: (crop) => this.#move(crop),
      done: () => save(this.#section.place, { ...this.#section.picture, crop: this.#crop }),
    });
  }

  async #take() {
    const [file] = this.#input.files;
    const { place } = this.#section;
    const { path } = await upload(file);
    this.#input.value = '';
    await call('picture_check', { path });
    this.#save(place, { path, crop: 0.5 });
  }

  #wayOf(x, y) {
    const box = this.#image.getBoundingClientRect();
    return -x / box.width - y / box.height;
  }

  #move(crop) {
    this.#crop = crop;
    this.#image.setAttribute('aria-valuenow', Math.round(100 * crop));
    this.#image.style.objectPosition = `${100 * crop}% ${100 * crop}%`;
  }

  /** Show the picture of a section; the first one begins with the start picture, which has its own field. */
  show(section) {
    const { picture, time, place } = section;
    this.#section = section;
    this.element.hidden = place === 0;
    this.#choose.hidden = Boolean(picture);
    for (const one of [this.#image, this.#remove]) one.hidden = !picture;
    this.#choose.setAttribute('aria-label', `Choose a picture for ${time}`);
    this.#remove.setAttribute('aria-label', `Remove the picture for ${time}`);
    if (!picture) return;
    const label = `Part of the picture for ${time} that the video shows`;
    const values = { 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100 };
    for (const [name, value] of Object.entries(values)) this.#image.setAttribute(name, value);
    if (this.#image.getAttribute('src') !== addressOf(picture.path)) this.#image.src = addressOf(picture.path);
    this.#image.style.aspectRatio = facts().ratio;
    this.#move(picture.crop);
  }
}
