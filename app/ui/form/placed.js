// The tile of a section of the strip, with the picture that the section begins with.
import { call } from '../calls/call.js';
import { make } from '../elements.js';
import { facts } from './describe.js';
import { addressOf, upload } from './uploaded.js';

const STEPS = { ArrowLeft: -0.05, ArrowUp: -0.05, ArrowRight: 0.05, ArrowDown: 0.05, Home: -1, End: 1 };
const within = (crop) => Math.round(100 * Math.min(1, Math.max(0, crop))) / 100;

/** A tile: a button that chooses a picture, or the picture, which is moved like the start picture's crop. */
export class Tile {
  element = make('div', { className: 'lt-placed' });
  #choose = make('button', { type: 'button', textContent: '+ Picture' });
  #image = make('img', { tabIndex: 0, draggable: false });
  #remove = make('button', { type: 'button', textContent: '×' });
  #input = make('input', { type: 'file', accept: 'image/*', hidden: true });
  #section = null;
  #save;

  /** `save` is called with a section's place and its picture, `{ path, crop }` or null, and `report` with an error's text. */
  constructor(save, report) {
    this.#save = save;
    this.#image.setAttribute('role', 'slider');
    this.element.append(this.#choose, this.#image, this.#remove, this.#input);
    this.#choose.addEventListener('click', () => this.#input.click());
    this.#remove.addEventListener('click', () => { save(this.#section.place, null); this.#choose.focus(); });
    this.#input.addEventListener('change', () => this.#take().catch((error) => report(error.message)));
    this.#image.addEventListener('keydown', (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      this.#move(this.#section.picture.crop + STEPS[event.key]);
    });
    this.#image.addEventListener('pointerdown', (event) => this.#drag(event));
  }

  async #take() {
    const [file] = this.#input.files;
    const { place } = this.#section;
    const { path } = await upload(file);
    this.#input.value = '';
    await call('picture_check', { path });
    this.#save(place, { path, crop: 0.5 });
  }

  #move(crop) { this.#save(this.#section.place, { ...this.#section.picture, crop: within(crop) }); }

  #drag(down) {
    const listening = new AbortController();
    const { crop } = this.#section.picture;
    const box = this.#image.getBoundingClientRect();
    this.#image.setPointerCapture(down.pointerId);
    const at = (event) => within(crop - (event.clientX - down.clientX) / box.width - (event.clientY - down.clientY) / box.height);
    const show = (event) => { this.#image.style.objectPosition = `${100 * at(event)}% ${100 * at(event)}%`; };
    this.#image.addEventListener('pointermove', show, { signal: listening.signal });
    this.#image.addEventListener('lostpointercapture', (event) => {
      listening.abort();
      if (at(event) !== crop) this.#move(at(event));
    }, { signal: listening.signal });
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
    const values = { 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': Math.round(100 * picture.crop) };
    for (const [name, value] of Object.entries(values)) this.#image.setAttribute(name, value);
    if (this.#image.getAttribute('src') !== addressOf(picture.path)) this.#image.src = addressOf(picture.path);
    this.#image.style.aspectRatio = facts().ratio;
    this.#image.style.objectPosition = `${100 * picture.crop}% ${100 * picture.crop}%`;
  }
}
