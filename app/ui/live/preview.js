// The rough preview of the section that is being made. The user may enlarge it or hide it for good.
import { hasChanged, make, reducedMotion, setText } from '../elements.js';
import { keep, recall } from '../storage.js';

/** Return the first frame of a moving picture, as an address. */
function stillOf(picture) {
  const canvas = make('canvas', { width: picture.naturalWidth, height: picture.naturalHeight });
  canvas.getContext('2d').drawImage(picture, 0, 0);
  return canvas.toDataURL();
}

function draw(picture, data) {
  if (!reducedMotion.matches) {
    picture.src = data;
    return;
  }
  const moving = new Image();
  moving.addEventListener('load', () => { picture.src = stillOf(moving); });
  moving.src = data;
}

/** The preview in a corner of the stage. */
export class Preview {
  #shown = ''; // the section that is shown
  #next = null; // the preview that follows once this one has moved to its end
  #turn = 0;
  #box;
  #back; // the button that brings back a hidden preview
  #size;
  #preview = null;

  constructor(stage) {
    this.#box = stage.querySelector('.lt-latent');
    this.#back = stage.querySelector('.lt-latent-show');
    this.#size = stage.querySelector('.lt-latent-size');
    stage.querySelector('.lt-latent-hide').addEventListener('click', () => this.#choose('preview', 'hidden', this.#back));
    this.#back.addEventListener('click', () => this.#choose('preview', 'shown', this.#size));
    this.#size.addEventListener('click', () => {
      this.#choose('preview-size', this.#box.classList.contains('lt-large') ? 'small' : 'large', this.#size);
    });
  }

  #choose(name, value, focused) {
    keep(name, value);
    this.show(this.#preview);
    focused.focus();
  }

  /** Show a moving picture of a section, and the newest other one of the same section when it has ended. */
  #play({ data, label, seconds }) {
    this.#next = { data, label, seconds };
    if (this.#turn && label === this.#shown) return;
    clearTimeout(this.#turn);
    this.#shown = label;
    this.#next = null;
    draw(this.#box.querySelector('img'), data);
    this.#turn = setTimeout(() => {
      this.#turn = 0;
      if (this.#next) this.#play(this.#next);
    }, 1000 * seconds);
  }

  /** Show a preview, `{ data, label, seconds }`, or none. */
  show(preview) {
    this.#preview = preview;
    const isAway = recall('preview') === 'hidden';
    const isLarge = recall('preview-size') === 'large';
    this.#box.hidden = !preview || isAway;
    this.#back.hidden = !preview || !isAway;
    this.#box.classList.toggle('lt-large', isLarge);
    this.#size.setAttribute('aria-pressed', String(isLarge));
    this.#size.textContent = isLarge ? 'Make small' : 'Enlarge';
    if (!preview) return;
    if (hasChanged(this.#box, preview.data)) this.#play(preview);
    setText(this.#box.querySelector('.lt-latent-label').lastElementChild, preview.label);
  }
}
