// The slider of the video's length, most of which is for short videos. It replaces Gradio's slider.

const FINE_END = 20; // seconds
const FINE_SHARE = 0.6; // of the slider, for the lengths up to that one
const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

const block = () => document.querySelector('#set-seconds');
const stepAt = (seconds) => (seconds < FINE_END ? 0.1 : 1);
const rounded = (seconds) => Number((Math.round(seconds / stepAt(seconds)) * stepAt(seconds)).toFixed(1));

/** Return the position of a length on the slider, from 0 to 1. */
export function shareOf(seconds, low, high) {
  if (seconds <= FINE_END) return (FINE_SHARE * (seconds - low)) / (FINE_END - low);
  return FINE_SHARE + ((1 - FINE_SHARE) * (seconds - FINE_END)) / (high - FINE_END);
}

/** Return the length at a position on the slider. */
export function lengthAt(share, low, high) {
  if (share <= FINE_SHARE) return rounded(low + (share / FINE_SHARE) * (FINE_END - low));
  return rounded(FINE_END + ((share - FINE_SHARE) / (1 - FINE_SHARE)) * (high - FINE_END));
}

/** Replace Gradio's slider. */
export function prepareLength() {
  const field = block().querySelector('input[type="number"]');
  const theirs = block().querySelector('input[type="range"]');
  const [low, high] = [Number(field.min), Number(field.max)];
  const slider = theirs.cloneNode();
  Object.assign(slider, { id: 'length-slider', min: 0, max: 1, step: 'any', name: '' });

  function show() {
    const seconds = Math.min(high, Math.max(low, Number(field.value) || low));
    slider.value = shareOf(seconds, low, high);
    slider.style.setProperty('--range_progress', `${100 * slider.value}%`);
    slider.setAttribute('aria-valuetext', `${seconds} seconds`);
  }

  function choose(seconds) {
    field.value = Math.min(high, Math.max(low, seconds));
    field.dispatchEvent(new Event('input', { bubbles: true }));
    show();
  }

  slider.addEventListener('input', () => choose(lengthAt(Number(slider.value), low, high)));
  slider.addEventListener('keydown', (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const now = Number(field.value) || low;
    const isDownFromEnd = STEPS[event.key] < 0 && now <= FINE_END;
    choose(rounded(now + STEPS[event.key] * (isDownFromEnd ? 0.1 : stepAt(now))));
  });
  field.addEventListener('input', show);
  block().querySelector('label[for]').htmlFor = slider.id;
  theirs.before(slider);
  theirs.hidden = true;
  theirs.removeAttribute('aria-label');
  // Gradio writes each new value of its slider, wherever it comes from, into its style.
  new MutationObserver(show).observe(theirs, { attributeFilter: ['style'] });
  show();
}
