// The crop, drawn over each picture as the form shows it. It can be moved where the picture is longer than the video.
import { make } from '../elements.js';
import { changed } from './keep.js';
import { facts, onDescribed } from './describe.js';
import { makeMovable } from './moving.js';
import { pictureNames, read, write } from './values.js';

const LEAST_ROOM = 0.5; // percent of the picture; the crop cannot be moved by less

/** Return the name of a picture's field as people read it. */
export const labelOf = (name) => document.querySelector(`#set-${name} .lt-label`).textContent;

/** The crop over the picture of one field. */
class Crop {
  #name;
  #block;
  #hole;
  #frame;
  #sizes = new ResizeObserver(() => this.place());
  #described = null; // the picture that the server's crop belongs to
  #path = null; // the path of the picture in the field

  constructor(name) {
    this.#name = name;
    this.#block = document.querySelector(`#set-${name}`);
    this.#hole = make('i', { role: 'slider', ariaLabel: `Part of the ${labelOf(name).toLowerCase()} that the video shows`, ariaValueMin: 0, ariaValueMax: 100 });
    this.#frame = make('div', { className: 'lt-crop' }, this.#hole);
    makeMovable(this.#hole, {
      at: () => this.#position, way: (x, y) => this.#wayOf(x, y), move: (position) => this.#move(position), done: changed,
    });
    this.#sizes.observe(this.#block);
    onDescribed(() => {
      this.#described = this.#image?.getAttribute('src') ?? null;
      this.place();
    });
  }

  get #image() { return this.#block.querySelector('img'); }

  get #crop() { return facts().crops?.[this.#name]; }

  get #position() { return read(this.#block.dataset.crop); }

  get #room() { const [, , width, height] = this.#crop; return [100 - width, 100 - height]; }

  /** Return where the picture lies in its block: an image element is larger than the picture that it fits in. */
  #placeOf(image) {
    const box = image.getBoundingClientRect();
    const outer = this.#block.getBoundingClientRect();
    const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
    const width = image.naturalWidth * scale;
    const height = image.naturalHeight * scale;
    const zoom = this.#block.currentCSSZoom ?? 1; // boxes are measured in the window's pixels
    return {
      left: (box.left - outer.left + (box.width - width) / 2) / zoom,
      top: (box.top - outer.top + (box.height - height) / 2) / zoom,
      width: width / zoom,
      height: height / zoom,
    };
  }

  #describeHole() {
    const [across, down] = this.#room;
    const isMovable = Math.max(across, down) > LEAST_ROOM;
    this.#frame.dataset.moves = isMovable ? (across > down ? 'across' : 'down') : '';
    this.#hole.tabIndex = isMovable ? 0 : -1;
    this.#hole.setAttribute('aria-disabled', !isMovable);
    this.#hole.setAttribute('aria-orientation', across > down ? 'horizontal' : 'vertical');
    this.#hole.setAttribute('aria-valuenow', Math.round(100 * this.#position));
  }

  /** Draw the crop where it belongs. */
  place() {
    const image = this.#image;
    this.#frame.hidden = !this.#crop || !image?.naturalWidth || this.#described !== image.getAttribute('src');
    if (this.#frame.hidden) return;
    if (this.#frame.parentElement !== this.#block) this.#block.append(this.#frame);
    this.#sizes.observe(image);
    for (const [name, length] of Object.entries(this.#placeOf(image))) this.#frame.style[name] = `${length}px`;
    const [, , width, height] = this.#crop;
    const [x, y] = this.#room.map((share) => share * this.#position);
    this.#frame.style.setProperty('--hole', `${y}% ${100 - x - width}% ${100 - y - height}% ${x}%`);
    this.#frame.dataset.crop = this.#crop.join(' ');
    this.#describeHole();
  }

  #wayOf(x, y) {
    const box = this.#frame.getBoundingClientRect();
    const [across, down] = this.#room;
    if (!this.#frame.dataset.moves) return null;
    return this.#frame.dataset.moves === 'across' ? (100 * x) / box.width / across : (100 * y) / box.height / down;
  }

  #move(position) {
    write(this.#block.dataset.crop, position);
    this.place();
  }

  /** Move the crop back to the middle when another picture replaces one, whose path is given. */
  take(path) {
    const isOther = this.#path !== null && this.#path !== path;
    this.#path = path;
    if (isOther) write(this.#block.dataset.crop, 0.5);
    this.place();
  }
}

const crops = {};

/** Draw each crop where it belongs. */
export function placeCrops() {
  for (const one of Object.values(crops)) one.place();
}

/** Tell the crop of a field which picture it lies over, by its path. */
export function takePicture(name, path) {
  crops[name]?.take(path);
}

/** Keep the crops in their places while descriptions come and pictures change their sizes. */
export function watchPictures() {
  for (const name of pictureNames()) crops[name] = new Crop(name);
}
